"""Mailboxes and messages as JSON, as frames of a stream, and as plain bytes with headers.

A payload is bytes. In JSON it is ``payload`` where it is UTF-8, else ``payload_base64``: exactly one of the two.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

from starlette.responses import Response

from oah.api.render import Document, json_bytes, moment, seconds
from oah.core.model.ids import MailboxId
from oah.core.model.mailbox import Mailbox
from oah.core.model.message import Message, Priority
from oah.ports.mailboxes import Leased, Sent, Watermarks
from oah.ports.traces import MessageTrace
from oah.services.trace import hops

BYTES = "application/octet-stream"
MOST_DIGITS = 18


def mailbox_document(mailbox: Mailbox) -> Document:
    """A mailbox. ``messages`` is the last count."""
    return {
        "id": mailbox.id,
        "address": mailbox.address,
        "workspace_id": mailbox.workspace_id,
        "session_id": mailbox.session_id,
        "public": mailbox.public,
        "description": mailbox.description,
        "ttl_seconds": seconds(mailbox.ttl),
        "created_at": moment(mailbox.created_at),
        "expires_at": moment(mailbox.expires_at),
        "max_messages": mailbox.max_messages,
        "messages": mailbox.messages,
        "last_seq": mailbox.last_seq,
    }


def sent_document(address: str, sent: Sent) -> Document:
    """What became of a send."""
    return {
        "id": sent.message_id,
        "address": address,
        "seq": sent.seq,
        "duplicate": sent.duplicate,
        "session_id": sent.session_id,
    }


def about_message(message: Message) -> Document:
    """A message without its payload."""
    return {
        "id": message.id,
        "seq": message.seq,
        "priority": message.priority.word,
        "sent_at": moment(message.sent_at),
        "expires_at": moment(message.expires_at),
        "size": message.size,
        "sender": message.sender,
        "key": message.key,
        "tags": list(message.tags),
        "headers": header_values(message.headers),
    }


def message_document(message: Message) -> Document:
    """A message, whole."""
    return {**about_message(message), **_payload(message.payload)}


def leased_document(leased: Leased) -> Document:
    """A message in a member's hands."""
    return {"lease_id": leased.lease_id, "attempt": leased.attempt, **message_document(leased.message)}


def _payload(payload: bytes) -> Document:
    try:
        return {"payload": payload.decode("utf-8")}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode("ascii")}


def header_values(lines: bytes) -> dict[str, list[str]]:
    """Header lines by name, each with all its values."""
    found: dict[str, list[str]] = {}
    for line in lines.decode("utf-8", "replace").split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name, []).append(value.strip())
    return found


def payload_answer(message: Message, leased: Leased | None = None) -> Response:
    """The payload as it was sent; what is known about it stands in headers."""
    about: Mapping[str, str | None] = {
        "oah-message-id": message.id,
        "oah-seq": str(message.seq),
        "oah-priority": message.priority.word,
        "oah-sent-at": moment(message.sent_at),
        "oah-expires-at": moment(message.expires_at),
        "oah-lease-id": None if leased is None else leased.lease_id,
        "oah-attempt": None if leased is None else str(leased.attempt),
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
    }
    headers = {name: value for name, value in about.items() if value is not None}
    return Response(message.payload, 200, headers, BYTES)


def trace_document(trace: MessageTrace) -> Document:
    """Where a message has been."""
    agent = trace.for_agent
    return {
        "id": trace.id,
        "mailbox": None if trace.mailbox is None else trace.mailbox.address,
        "session_id": None if agent is None else agent.session_id,
        "state": None if agent is None else agent.state,
        "message": None if trace.message is None else about_message(trace.message),
        "hops": [{"at": moment(hop.at), "hop": hop.hop, "data": dict(hop.data)} for hop in hops(trace)],
        "groups": [
            {"group": one.group, "state": one.state, "attempts": one.attempts, "until": moment(one.until)}
            for one in trace.groups
        ],
    }


def position(mailbox_id: MailboxId, had: Watermarks) -> str:
    """Where a reader stands, as the ``id`` of a stream: the mailbox's life, then the number had of each priority."""
    return ".".join([mailbox_id, *(str(had.had.get(priority, 0)) for priority in Priority)])


def position_of(text: str | None, mailbox_id: MailboxId) -> Watermarks | None:
    """The watermarks of a position; none had where it speaks of an earlier mailbox of that address. None: it is no
    position."""
    if text is None or not text.strip():
        return Watermarks()
    parts = text.strip().split(".")
    numbers = parts[1:]
    if len(numbers) != len(Priority) or not all(one.isascii() and one.isdigit() for one in numbers):
        return None
    if any(len(one) > MOST_DIGITS for one in numbers):
        return None
    if parts[0] != mailbox_id:
        return Watermarks()
    return Watermarks({priority: int(one) for priority, one in zip(Priority, numbers, strict=True)})


def message_frame(mailbox_id: MailboxId, message: Message, had: Watermarks) -> bytes:
    """A message as an event of a stream."""
    return frame("message", message_document(message), id_=position(mailbox_id, had))


def frame(name: str, document: Document, *, id_: str | None = None) -> bytes:
    """An event of a stream. Without an id the reader's position stays."""
    where = b"" if id_ is None else b"id: %s\n" % id_.encode()
    return b"event: %s\n%sdata: %s\n\n" % (name.encode(), where, json_bytes(document))
