"""A small HTTP and WebSocket server as the private endpoint of a worker sees it: pages, and conversations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: decoded path, query and bearer token ('' for none)."""

    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    token: str = field(default="", repr=False)
    upgrades: bool = False
    """Whether it wants to go on as a WebSocket."""


@dataclass(frozen=True, slots=True)
class Page:
    """An answer that is no conversation."""

    status: int
    body: bytes
    content_type: str


class Hangup(Exception):
    """The other side has gone, or does not read any more."""


class Wire(Protocol):
    """A WebSocket that was accepted. One thread sends, one receives."""

    @property
    def asked(self) -> Asked: ...

    def send(self, message: bytes | str) -> None:
        """Blocks while the other side does not read. Raises Hangup."""

    def receive(self, timeout: timedelta) -> bytes | str | None:
        """None when nothing came in time. Raises Hangup."""

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye. Repeatable."""


class WireServer(Protocol):
    """Serves until it is shut."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""

    def serve(self) -> None:
        """In the calling thread; conversations have threads of their own."""

    def shut(self) -> None:
        """End it with all conversations. From any thread, repeatable, does not wait for those that hang."""


class OpenServer(Protocol):
    """Binds and makes a server. `page` answers every request first: None lets a WebSocket through to `talk`.

    Raises Unavailable `address_taken`.
    """

    def __call__(
        self, *, host: str, port: int, page: Callable[[Asked], Page | None], talk: Callable[[Wire], None]
    ) -> WireServer: ...
