"""Answers to requests, as both generations of the protocol's clients read them. Pure.

The older one takes the mere presence of ``error`` for a failure and has ``msg_id`` as text; the newer one asks whether
``error`` is empty and has it as a number. ``error`` therefore is left out of a good answer to the older, and empty in
one to the newer; an answer to CREATE, which both send to the same subject, has the names of both.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oah.core.model.mailbox import Mailbox
from oah.core.model.message import Message
from oah.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    LimitReached,
    NotFound,
    OahError,
    PayloadTooLarge,
    RequestError,
)
from oah.gateway.subjects import Era, Refused
from oah.ports.mailboxes import Sent

Answer = Mapping[str, Any]
OVERHEAD = 1_024
"""Bytes of an answer that are no items."""

_CODES: Mapping[type[OahError], int] = {
    InvalidRequest: 400,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    PayloadTooLarge: 413,
    LimitReached: 429,
}


def encoded(answer: Answer) -> bytes:
    """As it goes over the wire."""
    return json.dumps(answer, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def done(era: Era, **fields: Any) -> Answer:
    """A good answer."""
    return {"error": "", **fields} if era is Era.PULL else fields


def failed(error: OahError) -> Answer:
    """A refusal, or that it could not be done now. What is ours to know stays with us."""
    if not isinstance(error, RequestError):
        return {"error": "the service is not available, try again", "code": 503}
    code = 410 if error.code == "mailbox_expired" else next((c for k, c in _CODES.items() if isinstance(error, k)), 400)
    return {"error": error.message, "code": code}


def refused(wrong: Refused) -> Answer:
    """A subject that cannot be used."""
    return {"error": wrong.text, "code": wrong.code}


def number(era: Era, seq: int | None) -> str | int:
    """``msg_id``; of a delayed message, which has none yet, -1."""
    found = -1 if seq is None else seq
    return str(found) if era is Era.MAIL else found


def created(mailbox: Mailbox, *, new: bool) -> Answer:
    """For both generations at once."""
    return {"mail_id": mailbox.address, "mail_address": mailbox.address, "is_new": new}


def sent(era: Era, found: Sent) -> Answer:
    """The receipt of a message."""
    fields: dict[str, Any] = {"msg_id": number(era, found.seq)}
    if found.duplicate:
        fields["duplicate"] = True
    return done(era, **fields)


def metadata(message: Message) -> Answer:
    """An item of LIST."""
    return {
        "msg_id": number(Era.MAIL, message.seq),
        "priority": message.priority.word,
        "ts": int(message.sent_at.timestamp()),
    }


def whole(message: Message, *, attempt: int | None = None) -> Answer:
    """An item of FETCH and QUERY: its payload in base64, which is what the clients decode and what keeps bytes."""
    fields: dict[str, Any] = {
        "msg_id": message.seq,
        "payload": base64.b64encode(message.payload).decode(),
        "priority": message.priority.word,
        "header": list(message.headers) or None,
        "create_time": int(message.sent_at.timestamp()),
    }
    if attempt is not None:
        fields["attempt"] = attempt
    return fields


def fitting(items: Iterable[Answer], room: int, *, least: int = 0) -> tuple[Sequence[Answer], bool]:
    """As many as fit into so many bytes, and the first ``least`` however large; whether that was all."""
    found: list[Answer] = []
    for item in items:
        room -= len(encoded(item)) + 1
        if room < 0 and len(found) >= least:
            return found, False
        found.append(item)
    return found, True
