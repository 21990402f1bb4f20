"""``oah audit``: who did what, when and why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from oah.cli.arguments import DURATION, given, limit_option, workspace_option
from oah.cli.connection import Connection, pass_connection
from oah.cli.output import field, json_option, listing

_COLUMNS = (
    ("AT", field("at")),
    ("WHO", field("actor")),
    ("DID", field("action")),
    ("WHAT", field("subject")),
    ("WHY", lambda item: (item.get("data") or {}).get("reason")),
)


@click.group()
def audit() -> None:
    """Who did what, when and why."""


@audit.command("list")
@click.option("--actor", help="Only what this one did, such as key:key_01….")
@click.option("--action", help='One action, or a kind of them: "run.".')
@click.option("--subject", help="Only what was done to this run, key, worker, letter, job.")
@click.option("--since", type=DURATION, help="Only the last 2h, 30m, …")
@workspace_option
@limit_option
@json_option
@pass_connection
def list_(connection: Connection, /, *, since: float | None, limit: int, as_json: bool, **options: Any) -> None:
    """Deeds, newest first."""
    moment = None if since is None else datetime.now(UTC) - timedelta(seconds=since)
    found = connection.client.audit(since=moment, limit=limit + 1, **given(**options))
    listing(found, _COLUMNS, as_json=as_json, limit=limit)
