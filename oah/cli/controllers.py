"""``oah controller``: who leads, what it decided, and the process itself."""

from __future__ import annotations

from typing import Any

import click

from oah.cli.arguments import limit_option
from oah.cli.connection import Connection, pass_connection
from oah.cli.endpoint import document
from oah.cli.output import field, json_option, listing, showing
from oah.cli.processes import controller_run

_COLUMNS = (
    ("AT", field("at")),
    ("POOL", field("pool")),
    ("FROM", lambda item: (item.get("inputs") or {}).get("staying", item.get("current"))),
    ("TO", field("desired")),
    ("REASON", field("reason")),
    ("OUTCOME", field("outcome")),
    ("TARGET", field("target")),
    ("GOING", lambda item: ", ".join(item.get("going") or ()) or None),
    ("READY", lambda item: (item.get("inputs") or {}).get("ready")),
    ("RUNNING", lambda item: (item.get("inputs") or {}).get("running")),
    ("WHY", lambda item: (item.get("detail") or {}).get("error")),
)
_RECOVERED = (
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
@click.option("--pool", help="Only of this one.")
@click.option(
    "--at",
    metavar="HOST:PORT",
    help="Instead: what the controller whose endpoint this is has recovered, restored and repaired since it began.",
)
@limit_option
@json_option
@pass_connection
def decisions(connection: Connection, /, *, pool: str | None, at: str | None, limit: int, as_json: bool) -> None:
    """What was decided about the sizes of pools and why, newest first."""
    if at is not None:
        listing(_since_its_start(connection, at), _RECOVERED, as_json=as_json, limit=limit)
        return
    found = connection.client.scale_decisions(pool=pool, limit=limit + 1)
    listing(found, _COLUMNS, as_json=as_json, limit=limit)


def _since_its_start(connection: Connection, at: str) -> list[Any]:
    """``:PORT`` is of this machine, ``:`` the endpoint of the settings."""
    section = connection.settings.controller
    host, _, port = at.rpartition(":")
    if not host:
        host = "127.0.0.1" if section.host in ("0.0.0.0", "::") else section.host
    page = document(
        f"http://{host}:{port or section.port}/decisions",
        timeout=10,
        hint="an API with embedded workers has no such endpoint: name one of an oah-controller, HOST:PORT",
    )
    return list(page["items"])
