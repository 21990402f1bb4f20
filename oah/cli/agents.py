"""``oah agent``: the programs that can be driven."""

from __future__ import annotations

import click

from oah.cli.connection import Connection, pass_connection
from oah.cli.output import field, json_option, listing


@click.group()
def agent() -> None:
    """The programs that can be driven."""


@agent.command("list")
@json_option
@pass_connection
def list_(connection: Connection, /, *, as_json: bool) -> None:
    """Agents known to the API, and how many workers serve each."""
    columns = (("AGENT", field("name")), ("WORKERS", field("workers")), ("DESCRIPTION", field("description")))
    listing(connection.client.agents(), columns, as_json=as_json)
