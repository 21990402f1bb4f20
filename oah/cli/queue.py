"""``oah queue``: what waits, in figures."""

from __future__ import annotations

import click

from oah.cli.connection import Connection, pass_connection
from oah.cli.output import json_option, showing


@click.group()
def queue() -> None:
    """What waits, in figures."""


@queue.command()
@json_option
@pass_connection
def stats(connection: Connection, /, *, as_json: bool) -> None:
    """The health snapshot: ready and locked sessions, ages, slots."""
    showing(connection.client.queue(), as_json=as_json)
