"""``oah workspace``: boundaries of keys, quotas and fairness."""

from __future__ import annotations

from typing import Any

import click

from oah.cli.arguments import given
from oah.cli.connection import Connection, pass_connection
from oah.cli.output import age, emit_json, field, json_option, listing

_COLUMNS = (
    ("WORKSPACE", field("id")),
    ("NAME", field("name")),
    ("WEIGHT", field("weight")),
    ("MAX ACTIVE", field("max_active_runs")),
    ("MAX QUEUED", field("max_queued_runs")),
    ("AGE", lambda item: age(item.get("created_at"))),
)


@click.group()
def workspace() -> None:
    """Boundaries of keys, quotas and fairness."""


@workspace.command("list")
@json_option
@pass_connection
def list_(connection: Connection, /, *, as_json: bool) -> None:
    """Workspaces that the key may see."""
    listing(connection.client.workspaces(), _COLUMNS, as_json=as_json)


@workspace.command()
@click.argument("name")
@click.option("--weight", type=click.IntRange(1), help="Share under load; 1 when left out.")
@click.option("--max-active-runs", type=click.IntRange(1), help="Runs at once.")
@click.option("--max-queued-runs", type=click.IntRange(1), help="Runs that may wait.")
@json_option
@pass_connection
def create(connection: Connection, /, name: str, *, as_json: bool, **options: Any) -> None:
    """Make a workspace and print its id."""
    made = connection.client.create_workspace(name, **given(**options))
    if as_json:
        emit_json(made)
    else:
        click.echo(made["id"])
