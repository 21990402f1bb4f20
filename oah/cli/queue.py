"""``oah queue``: what waits, why, and putting the broker right where SQL says otherwise."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from oah.cli.audit import Fault, audit
from oah.cli.connection import Connection, pass_connection
from oah.cli.direct import direct_broker, direct_option, direct_store
from oah.cli.failures import Exit
from oah.cli.output import emit_json, facts, field, json_option, plain, showing, table
from oah.errors import NotFound

if TYPE_CHECKING:
    from oah.settings import Settings

REPAIRED = (Fault.NO_PLACE, Fault.READY_WHILE_HELD)
"""What a repeatable `ensure` or `hold` puts right at once. The other faults are the leader's, which judges owners."""

_QUEUE_COLUMNS = (
    ("RUN", field("id")),
    ("STATUS", field("status")),
    ("CLASS", field("class")),
    ("POSITION", field("position")),
    ("INPUT", field("input")),
)


@click.group()
def queue() -> None:
    """What waits, and why."""


@queue.command()
@json_option
@pass_connection
def stats(connection: Connection, /, *, as_json: bool) -> None:
    """The health snapshot: ready and locked sessions, ages, slots."""
    showing(connection.client.queue(), as_json=as_json)


@queue.command()
@click.argument("session_id", metavar="SESSION")
@direct_option
@json_option
@pass_connection
def inspect(connection: Connection, /, session_id: str, *, direct: bool, as_json: bool) -> None:
    """A session, its runs in order and why they wait; with --direct also its owner in SQL and its place in Redis."""
    if direct:
        document = _inspect_directly(connection.settings, session_id)
    else:
        client = connection.client
        document = {"session": client.session(session_id), "queue": client.session_queue(session_id)}
    if as_json:
        emit_json(document)
        return
    facts({name: value for name, value in document.items() if name != "queue"})
    click.echo()
    table(document["queue"], _QUEUE_COLUMNS)


def _inspect_directly(settings: Settings, session_id: str) -> dict[str, Any]:
    from oah.core.model.ids import SessionId

    name = SessionId(session_id)
    with direct_store(settings) as store, direct_broker(settings) as broker:
        session = store.session(name, None)
        epoch = store.current_epoch()
        owners = store.owners_of([name])
        lease = None if epoch is None else broker.leases(epoch, [name])[0]
        runs = store.queue_of(name, limit=1_000)
    return {
        "session": plain(session),
        "owner": plain(owners[0]) if owners else None,
        "broker": plain(lease),
        "queue": [{**plain(run), "class": str(run.run_class)} for run in runs],
    }


@queue.command()
@click.option("--dry-run", is_flag=True, help="Only say what is wrong; exit 1 when something is.")
@direct_option
@json_option
@pass_connection
@click.pass_context
def repair(ctx: click.Context, connection: Connection, /, *, dry_run: bool, direct: bool, as_json: bool) -> None:
    """Compare SQL with Redis and give sessions that were forgotten their place again (needs --direct).

    The leader does the same all the time; this is for days without one. Exit 1 when faults are left.
    """
    if not direct:
        raise click.UsageError("repair works on the stores themselves: add --direct")
    settings = connection.settings
    with direct_store(settings) as store, direct_broker(settings) as broker:
        found = audit(store, broker, lease=settings.lease, pause=time.sleep)
        if found.epoch is None:
            raise NotFound("SQL has no epoch yet: no leader has ever run", hint="start oah-controller")
        repaired: list[str] = []
        if not dry_run:
            from oah.services.place import Places

            repaired = sorted({name for fault in REPAIRED for name in found.faults.get(fault, ())})
            Places(store, broker).put(found.epoch, store.queued_sessions_of([*map(_session, repaired)], found.epoch))
    left = sum(len(names) for fault, names in found.faults.items() if dry_run or fault not in REPAIRED)
    if as_json:
        emit_json(
            {
                "queued_sessions": found.queued,
                "owners": found.owners,
                "faults": {str(fault): list(names) for fault, names in found.faults.items()},
                "repaired": repaired,
                "left": left,
            }
        )
    else:
        for finding in found.findings():
            click.echo(finding.message)
        click.echo(f"repaired {len(repaired)}, left {left}")
    ctx.exit(Exit.FAILED if left else Exit.DONE)


def _session(name: str) -> Any:
    from oah.core.model.ids import SessionId

    return SessionId(name)
