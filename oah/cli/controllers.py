"""``oah controller``: who leads, what it decided, and the process itself."""

from __future__ import annotations

import click

from oah.cli.connection import Connection, pass_connection
from oah.cli.output import json_option, showing
from oah.cli.processes import controller_run


@click.group()
def controller() -> None:
    """The controller: who leads, and the process itself."""


controller.add_command(controller_run)


@controller.command()
@json_option
@pass_connection
def show(connection: Connection, /, *, as_json: bool) -> None:
    """Who leads, and the state of recovery."""
    showing(connection.client.controller(), as_json=as_json)
