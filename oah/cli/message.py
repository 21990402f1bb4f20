"""``oah message``: what became of a message, wherever it was sent."""

from __future__ import annotations

import click

from oah.cli.connection import Connection, pass_connection
from oah.cli.output import cell, emit_json, json_option


@click.group()
def message() -> None:
    """Messages, wherever they are."""


@message.command()
@click.argument("message_id", metavar="MESSAGE")
@json_option
@pass_connection
def trace(connection: Connection, /, message_id: str, *, as_json: bool) -> None:
    """Where a message has been: every hop with its time."""
    found = connection.client.trace_message(message_id)
    if as_json:
        emit_json(found)
        return
    width = max((len(hop["hop"]) for hop in found["hops"]), default=0)
    for hop in found["hops"]:
        facts = " ".join(f"{name}={cell(value)}" for name, value in hop["data"].items() if value is not None)
        click.echo(f"{hop['at']}  {hop['hop'].ljust(width)}  {facts}".rstrip())
