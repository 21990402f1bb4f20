"""``oah mailbox``: make mailboxes, send to them, read them, and share their messages out among workers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from oah.cli.arguments import DURATION, PAIR, given, limit_option, workspace_option
from oah.cli.connection import Connection, pass_connection
from oah.cli.failures import Exit
from oah.cli.output import Document, age, cell, emit_json, field, json_option, listing, showing, write_bytes

PRIORITIES = ("normal", "urgent", "critical")
_COLUMNS = (
    ("MAILBOX", field("address")),
    ("PUBLIC", field("public")),
    ("MESSAGES", field("messages")),
    ("EXPIRES", field("expires_at")),
    ("DESCRIPTION", field("description")),
    ("AGE", lambda item: age(item.get("created_at"))),
)
_MESSAGES = (
    ("SEQ", field("seq")),
    ("PRIORITY", field("priority")),
    ("SIZE", field("size")),
    ("SENDER", field("sender")),
    ("KEY", field("key")),
    ("TAGS", field("tags")),
    ("EXPIRES", field("expires_at")),
    ("AGE", lambda item: age(item.get("sent_at"))),
)

group_option = click.option("--group", default="default", show_default=True, help="Whose share it is.")
output_option = click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the payload into this file."
)


@click.group()
def mailbox() -> None:
    """Inboxes that outlive who reads them: send now, read later."""


@mailbox.command()
@click.argument("address", required=False)
@click.option("--ttl", type=DURATION, help="How long it lives: 90m, 24h; a day when left out.")
@click.option("--description", help="What it is for.")
@workspace_option
@json_option
@pass_connection
def create(connection: Connection, /, address: str | None, *, as_json: bool, **options: Any) -> None:
    """Make a mailbox and print its address.

    With ADDRESS it is public: others know the name and find it in the list. Without, its address is secret: who knows
    it may read and write. One that is there already stays as it is.
    """
    made = connection.client.create_mailbox(address, **given(**options))
    if as_json:
        emit_json(made)
        return
    if not made["new"]:
        click.echo("it was there already, and stays as it is", err=True)
    click.echo(made["address"])


@mailbox.command("list")
@click.option("--private", is_flag=True, help="Those with secret addresses and those of sessions, too (operators).")
@workspace_option
@limit_option
@json_option
@pass_connection
def list_(connection: Connection, /, *, private: bool, workspace: str | None, limit: int, as_json: bool) -> None:
    """Public mailboxes, by address."""
    found = connection.client.mailboxes(private=private, limit=limit + 1, **given(workspace=workspace))
    listing(found, _COLUMNS, as_json=as_json, limit=limit)


@mailbox.command()
@click.argument("address")
@workspace_option
@json_option
@pass_connection
def show(connection: Connection, /, address: str, *, workspace: str | None, as_json: bool) -> None:
    """One mailbox."""
    showing(connection.client.mailbox(address, **given(workspace=workspace)), as_json=as_json)


@mailbox.command()
@click.argument("address")
@click.argument("text", metavar="[TEXT|-]", required=False)
@click.option("--file", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Send this file.")
@click.option("--priority", type=click.Choice(PRIORITIES), help="Higher ones are read first; normal when left out.")
@click.option("--ttl", type=DURATION, help="It expires if nobody had it for so long.")
@click.option("--delay", type=DURATION, help="Nobody sees it before.")
@click.option("--key", help="Only the newest message of a key stays.")
@click.option("--tag", "tags", multiple=True, help="For those who look for it; repeatable.")
@click.option("--header", "headers", type=PAIR, multiple=True, help="NAME=VALUE that goes along; repeatable.")
@click.option("--idempotency-key", help="Sent again under the same key it is the same message; made up when left out.")
@workspace_option
@json_option
@pass_connection
def send(
    connection: Connection,
    /,
    address: str,
    text: str | None,
    *,
    path: Path | None,
    headers: tuple[tuple[str, str], ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Send TEXT, a file, or with - standard input as it comes, byte by byte."""
    if (text is None) == (path is None):
        raise click.UsageError("give TEXT (or - for standard input), or --file")
    carried: dict[str, list[str]] = {}
    for name, value in headers:
        carried.setdefault(name, []).append(value)
    sent = connection.client.send_message(address, _payload(text, path), **given(headers=carried, **options))
    if as_json:
        emit_json(sent)
    elif sent["seq"] is None:
        click.echo(f"{sent['id']} delayed")
    else:
        click.echo(f"{sent['id']} {sent['seq']}{' sent before' if sent['duplicate'] else ''}")


def _payload(text: str | None, path: Path | None) -> bytes:
    if path is not None:
        return path.read_bytes()
    if text == "-":
        return sys.stdin.buffer.read()
    return (text or "").encode("utf-8", "surrogateescape")  # as the shell had it


@mailbox.command()
@click.argument("address")
@click.argument("seq", type=click.IntRange(1), required=False)
@click.option("--key", help="Of the list: only those of this key.")
@click.option("--tag", help="Of the list: only those with this tag.")
@output_option
@limit_option
@workspace_option
@json_option
@pass_connection
def read(
    connection: Connection,
    /,
    address: str,
    seq: int | None,
    *,
    key: str | None,
    tag: str | None,
    output: Path | None,
    limit: int,
    workspace: str | None,
    as_json: bool,
) -> None:
    """List the messages, in the order in which they are read; with SEQ print one message's payload, byte by byte.

    Nothing changes by it: messages stay until they expire, are acknowledged or deleted.
    """
    client = connection.client
    if seq is None:
        if output is not None:
            raise click.UsageError("--output needs a SEQ")
        found = client.messages(address, limit=limit + 1, **given(key=key, tag=tag, workspace=workspace))
        listing(found, _MESSAGES, as_json=as_json, limit=limit)
        return
    _give(client.message(address, seq, **given(workspace=workspace)), output, as_json=as_json)


@mailbox.command()
@click.argument("address")
@group_option
@click.option("--wait", type=DURATION, default=0.0, help="Wait so long for a message; do not when left out.")
@click.option("--ack", is_flag=True, help="Acknowledge it as soon as it is printed.")
@output_option
@workspace_option
@json_option
@pass_connection
@click.pass_context
def receive(
    ctx: click.Context,
    connection: Connection,
    /,
    address: str,
    *,
    group: str,
    wait: float,
    ack: bool,
    output: Path | None,
    workspace: str | None,
    as_json: bool,
) -> None:
    """Take the next message of a group and print its payload; its lease goes to standard error.

    Acknowledge it with `oah mailbox ack LEASE` (or --ack) before the lease ends, or another member gets it.
    Exit code 1 when there is none.
    """
    client, where = connection.client, given(workspace=workspace)
    found = client.receive_messages(address, group=group, wait=wait, **where)
    if not found:
        if as_json:
            emit_json({"items": []})
        click.echo("there is no message", err=True)
        ctx.exit(Exit.FAILED)
    [message] = found
    if not ack:
        click.echo(f"lease {message['lease_id']}", err=True)
    if as_json:
        emit_json({"items": [_readable(message)]})
    else:
        _give(message, output, as_json=False)
    if ack:
        client.ack_message(message["lease_id"])


@mailbox.command()
@click.argument("address")
@click.option("--priority", "priorities", type=click.Choice(PRIORITIES), multiple=True, help="Only these; repeatable.")
@click.option("--after", metavar="POSITION", help="Go on after the position of a message (see --json).")
@click.option("--timeout", type=DURATION, help="Stop after so long.")
@workspace_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line.")
@pass_connection
def watch(
    connection: Connection,
    /,
    address: str,
    *,
    priorities: Sequence[str],
    after: str | None,
    timeout: float | None,
    workspace: str | None,
    as_json: bool,
) -> None:
    """Print what is there, then each message as it comes, until the mailbox is gone. Every watcher gets all."""
    options = given(priorities=list(priorities) or None, after=after, timeout=timeout, workspace=workspace)
    client = connection.client
    client.mailbox(address, **given(workspace=workspace))  # what is wrong is said before the time is up
    try:
        for message in client.subscribe(address, **options):
            if as_json:
                emit_json(_readable(message), indent=None)
            else:
                click.echo(f"{message['seq']} {message['priority']}: {cell(_text(message['payload']))}")
    except TimeoutError:
        return
    click.echo("the mailbox is gone", err=True)


@mailbox.command()
@click.argument("lease")
@json_option
@pass_connection
def ack(connection: Connection, /, lease: str, *, as_json: bool) -> None:
    """The message of LEASE is done with. Exit code 3 or 4 when the lease was over: another member may have it now."""
    _said(connection.client.ack_message(lease), f"{lease} acknowledged", as_json=as_json)


@mailbox.command()
@click.argument("lease")
@click.option("--delay", type=DURATION, help="Not before; at once when left out.")
@json_option
@pass_connection
def nack(connection: Connection, /, lease: str, *, delay: float | None, as_json: bool) -> None:
    """Give the message of LEASE back, for the next member of the group."""
    _said(connection.client.nack_message(lease, **given(delay=delay)), f"{lease} given back", as_json=as_json)


@mailbox.command()
@click.argument("address")
@click.argument("seq", type=click.IntRange(1), required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@workspace_option
@json_option
@pass_connection
@click.pass_context
def delete(
    ctx: click.Context,
    connection: Connection,
    /,
    address: str,
    seq: int | None,
    *,
    yes: bool,
    workspace: str | None,
    as_json: bool,
) -> None:
    """Delete the message SEQ; without SEQ the mailbox, after a question. Exit code 3 when there was none."""
    client, where = connection.client, given(workspace=workspace)
    if seq is not None:
        deleted = client.delete_message(address, seq, **where)
    else:
        if not yes:
            count = client.mailbox(address, **where)["messages"]
            click.confirm(f"delete {address} and its {count} message(s)?", abort=True, err=True)
        deleted = client.delete_mailbox(address, **where)
    subject = address if seq is None else f"{address} {seq}"
    _said({"deleted": deleted}, f"{subject} {'deleted' if deleted else 'was not there'}", as_json=as_json)
    if not deleted:
        ctx.exit(Exit.NOT_FOUND)


@mailbox.command()
@click.argument("address")
@click.option("--yes", is_flag=True, help="Do not ask.")
@workspace_option
@json_option
@pass_connection
def purge(connection: Connection, /, address: str, *, yes: bool, workspace: str | None, as_json: bool) -> None:
    """Delete all messages; the mailbox stays."""
    client, where = connection.client, given(workspace=workspace)
    if not yes:
        count = client.mailbox(address, **where)["messages"]
        click.confirm(f"delete {count} message(s) of {address}?", abort=True, err=True)
    deleted = client.purge_mailbox(address, **where)
    _said({"deleted": deleted}, f"{deleted} message(s) deleted", as_json=as_json)


def _said(document: Mapping[str, Any], words: str, *, as_json: bool) -> None:
    if as_json:
        emit_json(document)
    else:
        click.echo(words)


def _give(message: Document, output: Path | None, *, as_json: bool) -> None:
    """A payload, to where it was asked for."""
    if output is not None:
        output.write_bytes(message["payload"])
    if as_json:
        emit_json(_readable(message))
    elif output is None:
        write_bytes(message["payload"])


def _readable(message: Document) -> Document:
    """A message as JSON has it: text where the payload is text, else base64."""
    import base64

    payload: bytes = message["payload"]
    rest = {name: value for name, value in message.items() if name != "payload"}
    try:
        return {**rest, "payload": payload.decode("utf-8")}
    except UnicodeDecodeError:
        return {**rest, "payload_base64": base64.b64encode(payload).decode()}


def _text(payload: bytes) -> str:
    return payload.decode("utf-8", "replace")
