"""``oah session send``, ``messages``, ``wake``: words for an agent that may sleep."""

from __future__ import annotations

from typing import Any

import click

from oah.cli.arguments import DURATION, given, limit_option, read_text
from oah.cli.connection import Connection, pass_connection
from oah.cli.output import age, emit_json, field, json_option, listing

_COLUMNS = (
    ("MESSAGE", field("id")),
    ("SEQ", field("seq")),
    ("MODE", field("mode")),
    ("STATE", field("state")),
    ("OUTCOME", field("outcome")),
    ("TRIES", field("attempts")),
    ("FROM", lambda item: item["sender"]["session_id"] or item["sender"]["by"]),
    ("AGE", lambda item: age(item.get("created_at"))),
    ("REASON", field("reason")),
)


@click.command()
@click.argument("session_id", metavar="SESSION")
@click.argument("text", metavar="TEXT|-")
@click.option("--steer", "mode", flag_value="steer", help="Into the live turn, if there is one.")
@click.option("--run", "mode", flag_value="run", help="As a run of the session.")
@click.option("--priority", type=click.Choice(["normal", "urgent", "critical"]), help="Of the mailbox.")
@click.option("--ttl", type=DURATION, help="How long it may wait (1h30m).")
@click.option("--delay", type=DURATION, help="Not before.")
@click.option("--callback", help="A webhook that is told of each later change.")
@click.option("--idempotency-key", help="The same key within the window finds the first message.")
@json_option
@pass_connection
def send(
    connection: Connection, /, session_id: str, *, text: str, mode: str | None, as_json: bool, **options: Any
) -> None:
    """Give a session's agent a message: at its next boundary, unless asked otherwise."""
    sent = connection.client.send_to_session(session_id, read_text(text), **given(mode=mode, **options))
    if as_json:
        emit_json(sent)
        return
    outcome = f" {sent['outcome']}" if sent["outcome"] else ""
    click.echo(f"{sent['id']} {sent['state']}{outcome}")


@click.command()
@click.argument("session_id", metavar="SESSION")
@click.option("--state", type=click.Choice(["queued", "delivered", "acked", "expired", "dead"]), help="Only these.")
@limit_option
@json_option
@pass_connection
def messages(connection: Connection, /, session_id: str, *, limit: int, as_json: bool, **options: Any) -> None:
    """Messages for a session's agent, newest first."""
    found = connection.client.session_messages(session_id, limit=limit + 1, **given(**options))
    listing(found, _COLUMNS, as_json=as_json, limit=limit)


@click.command()
@click.argument("session_id", metavar="SESSION")
@json_option
@pass_connection
def wake(connection: Connection, /, session_id: str, *, as_json: bool) -> None:
    """Start the agent for the messages that wait, whatever failed before."""
    woken = connection.client.wake_session(session_id)
    if as_json:
        emit_json(woken)
    elif woken["run_id"]:
        click.echo(f"{woken['run_id']} {woken['waiting']} waiting")
    else:
        click.echo(f"{session_id} not woken: {woken['why_not']}")
