"""What we say to a client, as bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from oah.gateway import headers
from oah.gateway.commands import LENIENT

OK = b"+OK\r\n"
PING = b"PING\r\n"
PONG = b"PONG\r\n"
NOBODY = headers.block(status="503")
"""The header block of an answer that says: nobody listens there."""


def info(fields: Mapping[str, Any]) -> bytes:
    """``INFO``."""
    return b"INFO " + json.dumps(fields, separators=(",", ":")).encode() + b"\r\n"


def error(text: str) -> bytes:
    """``-ERR``, always with its quotes: clients drop a connection over an answer that has none."""
    safe = text.replace("'", "").replace("\r", " ").replace("\n", " ")
    return f"-ERR '{safe}'\r\n".encode("utf-8", LENIENT)


def refused_subscription(subject: str, queue: str | None = None) -> bytes:
    """The one form of a refusal at which clients keep their connection."""
    group = f' using queue "{queue}"' if queue else ""
    return error(f'Permissions Violation for Subscription to "{subject}"{group}')


def refused_publish(subject: str) -> bytes:
    """Likewise."""
    return error(f'Permissions Violation for Publish to "{subject}"')


def message(subject: str, sid: str, payload: bytes, *, reply: str | None = None, block: bytes = b"") -> bytes:
    """``MSG``, or ``HMSG`` where there is a header block."""
    words = f"{subject} {sid} {reply} " if reply else f"{subject} {sid} "
    head = words.encode("utf-8", LENIENT)
    if not block:
        return b"MSG %b%d\r\n%b\r\n" % (head, len(payload), payload)
    return b"HMSG %b%d %d\r\n%b%b\r\n" % (head, len(block), len(block) + len(payload), block, payload)
