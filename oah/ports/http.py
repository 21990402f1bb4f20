"""Calls to HTTP servers outside, of whose addresses only some are allowed. How a call failed is an answer, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Protocol


class HttpFault(StrEnum):
    """Why there was no answer."""

    INVALID = "invalid"
    """The URL is none that is called."""
    REFUSED = "refused"
    """The address that the name leads to is not allowed."""
    NAME = "name"
    """The name leads nowhere."""
    CONNECT = "connect"
    """No connection, or no TLS that can be trusted."""
    TIMEOUT = "timeout"
    PROTOCOL = "protocol"
    """The connection broke, or what came was no HTTP."""


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One request. ``timeout`` bounds all of it, from the look-up of the name to the last byte that is read of the
    answer; ``excerpt`` is how many bytes of its body are."""

    url: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"
    timeout: timedelta = timedelta(seconds=10)
    excerpt: int = 2_048


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What a server answered, whatever its status; redirects are not followed. ``text``: the beginning of the body.
    ``retry_after``: what the server asked for, if it did in seconds."""

    status: int
    text: str
    duration: timedelta
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class HttpFailed:
    """There was no answer."""

    fault: HttpFault
    message: str
    duration: timedelta


class HttpSender(Protocol):
    """Safe to use from many threads. Never raises for what a server or the network does."""

    def send(self, call: HttpCall) -> HttpAnswer | HttpFailed: ...
    def send_all(self, calls: Sequence[HttpCall]) -> list[HttpAnswer | HttpFailed]:
        """All of them at once; their answers in order, when the last one is there."""
        ...
