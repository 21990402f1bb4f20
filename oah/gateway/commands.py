"""What a client says: one frozen value for each command of the protocol, and the faults that end a connection.

Subjects and sids are text decoded with ``surrogateescape``, so that bytes which are no UTF-8 come back as they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LENIENT = "surrogateescape"


@dataclass(frozen=True, slots=True)
class Connect:
    """``CONNECT {json}``; every key is optional."""

    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ping:
    """``PING``."""


@dataclass(frozen=True, slots=True)
class Pong:
    """``PONG``."""


@dataclass(frozen=True, slots=True)
class Publish:
    """``PUB`` and ``HPUB``. ``headers``: the block from ``NATS/1.0`` to its empty line, empty for PUB."""

    subject: str
    payload: bytes
    reply: str | None = None
    headers: bytes = b""


@dataclass(frozen=True, slots=True)
class Subscribe:
    """``SUB``."""

    subject: str
    sid: str
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """``UNSUB``. ``most``: only once so many messages have been delivered since the SUB."""

    sid: str
    most: int | None = None


Command = Connect | Ping | Pong | Publish | Subscribe | Unsubscribe


class Violation(Exception):
    """The client has broken the protocol: it is told the text, and let go."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


UNKNOWN = "Unknown Protocol Operation"
TOO_LONG = "maximum control line exceeded"
TOO_LARGE = "Maximum Payload Violation"
UNAUTHORIZED = "Authorization Violation"
REVOKED = "User Authentication Revoked"
