"""``oah key``: bearer keys. A secret is printed once, when its key is made."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from oah.cli.arguments import DURATION, given, workspace_option
from oah.cli.connection import Connection, actor, pass_connection
from oah.cli.direct import direct_option, direct_store
from oah.cli.output import age, emit_json, field, json_option, listing, plain

if TYPE_CHECKING:
    from oah.core.model.workspace import ApiKey
    from oah.settings import Settings

_SCOPES = ("read", "run", "operate", "admin")
_COLUMNS = (
    ("KEY", field("id")),
    ("NAME", field("name")),
    ("WORKSPACE", field("workspace_id")),
    ("SCOPES", field("scopes")),
    ("AGE", lambda item: age(item.get("created_at"))),
    ("EXPIRES", field("expires_at")),
    ("REVOKED", field("revoked_at")),
)


@click.group()
def key() -> None:
    """Bearer keys: who may do what."""


@key.command()
@click.option("--name", required=True, help="What it is for.")
@click.option("--scope", "scopes", type=click.Choice(_SCOPES), multiple=True, help="Repeatable; read and run else.")
@click.option("--expires-in", type=DURATION, help="It ends after this.")
@workspace_option
@direct_option
@json_option
@pass_connection
def create(
    connection: Connection,
    /,
    *,
    name: str,
    scopes: tuple[str, ...],
    workspace: str | None,
    expires_in: float | None,
    direct: bool,
    as_json: bool,
) -> None:
    """Make a key and print its secret, which is shown here and nowhere else.

    A key with scope admin sees every workspace; every other key belongs to one ("default" when left out).
    """
    expires_at = None if expires_in is None else datetime.now(UTC) + timedelta(seconds=expires_in)
    options = given(name=name, workspace=workspace, expires_at=expires_at, scopes=scopes or ("read", "run"))
    if direct:
        made = _create_directly(connection.settings, **options)
    else:
        made = connection.client.create_key(**options)
    if as_json:
        emit_json(made)
    else:
        click.echo(f"{made['id']} {','.join(made['scopes'])} {made.get('workspace_id') or 'every workspace'}", err=True)
        click.echo(made["secret"])


@key.command("list")
@workspace_option
@direct_option
@json_option
@pass_connection
def list_(connection: Connection, /, *, workspace: str | None, direct: bool, as_json: bool) -> None:
    """Keys without their secrets."""
    if direct:
        with direct_store(connection.settings) as store:
            scope = None if workspace is None else store.workspace(workspace).id
            items: Sequence[Any] = [_document(each) for each in store.keys(scope)]
    else:
        items = connection.client.keys(**given(workspace=workspace))
    listing(items, _COLUMNS, as_json=as_json)


@key.command()
@click.argument("key_id", metavar="KEY")
@direct_option
@json_option
@pass_connection
def revoke(connection: Connection, /, key_id: str, *, direct: bool, as_json: bool) -> None:
    """End a key at once."""
    if direct:
        from oah.core.model.ids import KeyId
        from oah.services import keys

        with direct_store(connection.settings) as store:
            ended: Any = _document(keys.revoke(store, KeyId(key_id), by=actor()))
    else:
        ended = connection.client.revoke_key(key_id)
    if as_json:
        emit_json(ended)
    else:
        click.echo(f"{key_id} revoked")


def _create_directly(
    settings: Settings,
    *,
    name: str,
    scopes: Sequence[str],
    workspace: str | None = None,
    expires_at: datetime | None = None,
) -> dict[str, Any]:
    from oah.bootstrap.kit import system_ids
    from oah.core.model.ids import WorkspaceId
    from oah.core.model.workspace import DEFAULT_WORKSPACE, Scope
    from oah.services import keys

    wanted = frozenset(Scope(scope) for scope in scopes)
    place = WorkspaceId(workspace) if workspace else None if Scope.ADMIN in wanted else DEFAULT_WORKSPACE
    with direct_store(settings) as store:
        store.migrate()
        made = keys.create(
            store, system_ids(), name=name, workspace_id=place, scopes=wanted, expires_at=expires_at, by=actor()
        )
    return {**_document(made.key), "secret": made.secret}


def _document(item: ApiKey) -> dict[str, Any]:
    document: dict[str, Any] = plain(item)
    document["scopes"] = sorted(document["scopes"])
    return document
