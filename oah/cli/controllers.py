"""``oah controller``: who leads, what it decided, and the process itself."""

from __future__ import annotations

import click

from oah.cli.connection import Connection, pass_connection
from oah.cli.endpoint import document
from oah.cli.output import field, json_option, listing, showing
from oah.cli.processes import controller_run

_COLUMNS = (
    ("AT", field("at")),
    ("KIND", field("kind")),
    ("SUBJECT", field("subject")),
    ("OUTCOME", field("outcome")),
    ("REASON", field("reason")),
    ("RUN", field("run_id")),
)


@click.group()
def controller() -> None:
    """The controller: who leads, what it decided, and the process itself."""


controller.add_command(controller_run)


@controller.command()
@json_option
@pass_connection
def show(connection: Connection, /, *, as_json: bool) -> None:
    """Who leads, and the epoch that both stores believe in."""
    showing(connection.client.controller(), as_json=as_json)


@controller.command()
@click.option("--at", metavar="HOST:PORT", help="The controller's own endpoint; as in its settings when left out.")
@json_option
@pass_connection
def decisions(connection: Connection, /, *, at: str | None, as_json: bool) -> None:
    """What a controller has decided lately and why, newest first; only one that leads decides."""
    section = connection.settings.controller
    host = "127.0.0.1" if section.host in ("0.0.0.0", "::") else section.host
    page = document(
        f"http://{at or f'{host}:{section.port}'}/decisions",
        timeout=10,
        hint="an API with embedded workers has no such endpoint; else --at HOST:PORT of the oah-controller that leads",
    )
    listing(page["items"], _COLUMNS, as_json=as_json)
