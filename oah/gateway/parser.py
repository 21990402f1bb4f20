"""An incremental parser: bytes in, commands out. It owns no socket and never waits.

`feed` takes what came, `take` gives the next whole command or None. Commands are taken one at a time, because what a
client has sent behind its CONNECT may only be judged when that has been. Memory is bounded by one control line, one
payload and what is fed at once: an announced length beyond the limit is refused before anything of it is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from oah.gateway.commands import (
    LENIENT,
    TOO_LARGE,
    TOO_LONG,
    UNAUTHORIZED,
    UNKNOWN,
    Command,
    Connect,
    Ping,
    Pong,
    Publish,
    Subscribe,
    Unsubscribe,
    Violation,
)

MAX_CONTROL = 4_096
"""Bytes of a control line: the default of NATS servers."""
MAX_HEADERS = 65_536
"""Bytes of a header block, beyond those of the payload: clients measure the payload alone."""
LONGEST_NUMBER = 9
"""Digits of a length or a count."""


@dataclass(frozen=True, slots=True)
class _Announced:
    """A publish whose payload is still to come."""

    subject: str
    reply: str | None
    headers: int
    total: int


class Parser:
    """One connection's. ``locked``: until the client is known, only CONNECT, PING and PONG are taken."""

    def __init__(self, *, max_payload: int, max_control: int = MAX_CONTROL) -> None:
        self.locked = False
        self._max_payload = max_payload
        self._max_control = max_control
        self._buffer = bytearray()
        self._searched = 0
        self._announced: _Announced | None = None

    @property
    def kept(self) -> int:
        """Bytes that wait to become commands."""
        return len(self._buffer)

    @property
    def within_payload(self) -> bool:
        """Whether the rest of a payload is awaited."""
        return self._announced is not None

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes, in pieces of any size."""
        self._buffer += data

    def take(self) -> Command | None:
        """The next command; None: it has not wholly come. Raises Violation, after which nothing more is to be asked."""
        if self._announced is None:
            line = self._line()
            if line is None:
                return None
            command = self._read(line)
            if command is not None:
                return command
        return self._payload()

    def _line(self) -> bytes | None:
        """Up to the next LF, without it and the CR before it."""
        end = self._buffer.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._buffer)
            if self._searched > self._max_control:
                raise Violation(TOO_LONG)
            return None
        if end > self._max_control:
            raise Violation(TOO_LONG)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line[:-1] if line.endswith(b"\r") else line

    def _read(self, line: bytes) -> Command | None:
        """The command of a line; None: its payload follows."""
        head = line.split(None, 1)
        if not head or line[:1].isspace():
            raise Violation(UNKNOWN)
        verb = bytes(head[0]).upper()
        if self.locked and verb not in (b"CONNECT", b"PING", b"PONG"):
            raise Violation(UNAUTHORIZED)
        if verb == b"CONNECT":
            return Connect(_options(head[1] if len(head) > 1 else b""))
        read = _READ.get(verb)
        if read is None:
            raise Violation(UNKNOWN)
        found = read([word.decode("utf-8", LENIENT) for word in line.split()[1:]])
        if not isinstance(found, _Announced):
            return found
        if found.headers > MAX_HEADERS or found.total - found.headers > self._max_payload:
            raise Violation(TOO_LARGE)
        self._announced = found
        return None

    def _payload(self) -> Command | None:
        announced = self._announced
        assert announced is not None
        total = announced.total
        if len(self._buffer) < total + 2:
            return None
        if self._buffer[total : total + 2] != b"\r\n":
            raise Violation(UNKNOWN)
        with memoryview(self._buffer) as view:
            headers, payload = bytes(view[: announced.headers]), bytes(view[announced.headers : total])
        del self._buffer[: total + 2]
        self._announced = None
        return Publish(announced.subject, payload, announced.reply, headers)


def _options(text: bytes) -> Mapping[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Violation(UNKNOWN)
    return found


def _number(word: str) -> int:
    if not (word.isascii() and word.isdigit()) or len(word) > LONGEST_NUMBER:
        raise Violation(UNKNOWN)
    return int(word)


def _pub(words: Sequence[str]) -> _Announced:
    match words:
        case [subject, size]:
            return _Announced(subject, None, 0, _number(size))
        case [subject, reply, size]:
            return _Announced(subject, reply, 0, _number(size))
        case _:
            raise Violation(UNKNOWN)


def _hpub(words: Sequence[str]) -> _Announced:
    match words:
        case [subject, headers, total]:
            found = _Announced(subject, None, _number(headers), _number(total))
        case [subject, reply, headers, total]:
            found = _Announced(subject, reply, _number(headers), _number(total))
        case _:
            raise Violation(UNKNOWN)
    if found.headers > found.total:
        raise Violation(UNKNOWN)
    return found


def _sub(words: Sequence[str]) -> Subscribe:
    match words:
        case [subject, sid]:
            return Subscribe(subject, sid)
        case [subject, queue, sid]:
            return Subscribe(subject, sid, queue)
        case _:
            raise Violation(UNKNOWN)


def _unsub(words: Sequence[str]) -> Unsubscribe:
    match words:
        case [sid]:
            return Unsubscribe(sid)
        case [sid, most]:
            return Unsubscribe(sid, _number(most))
        case _:
            raise Violation(UNKNOWN)


_READ: Mapping[bytes, Callable[[Sequence[str]], Command | _Announced]] = {
    b"PUB": _pub,
    b"HPUB": _hpub,
    b"SUB": _sub,
    b"UNSUB": _unsub,
    b"PING": lambda words: Ping(),
    b"PONG": lambda words: Pong(),
}
