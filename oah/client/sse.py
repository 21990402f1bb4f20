"""Following an event stream: parse, reconnect, go on after the last number."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from oah.client.transport import Transport, pause
from oah.errors import Unavailable

READ_TIMEOUT = 45.0
"""Three keep-alives of the server (15 s each) without a byte: the connection is dead."""

RECONNECTS = 20
"""Fruitless connections in a row before the stream gives up: about a minute and a half."""

RUN_ENDS = frozenset({"run.completed", "run.failed", "run.cancelled", "run.timed_out"})
RESET = "reset"


@dataclass(frozen=True, slots=True)
class Event:
    """One event; ``number`` is the session's sequence. Type ``reset``: events up to ``number`` are gone."""

    number: int
    type: str
    data: Mapping[str, Any] = field(default_factory=dict)
    session_id: str | None = None
    run_id: str | None = None
    attempt: int = 0
    at: str | None = None


def follow(
    api: Transport, path: str, *, after: int | None, deadline: float | None, ends: frozenset[str] = frozenset()
) -> Iterator[Event]:
    """Events from ``after`` on. Reconnects until the server closes after an event of ``ends``, or has nothing more.

    ``deadline`` by time.monotonic(). Raises TimeoutError, Unavailable after many fruitless connections, NotFound.
    """
    frames = reconnecting(api, path, after=None if after is None else str(after), deadline=deadline, ends=ends)
    return (_event(frame) for frame in frames)


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stream. ``id``: where to go on after it."""

    name: str
    id: str
    data: str


def reconnecting(
    api: Transport,
    path: str,
    *,
    after: str | None,
    deadline: float | None,
    ends: frozenset[str],
    params: Mapping[str, Any] | None = None,
) -> Iterator[Frame]:
    """Frames after the position ``after``. As ``follow``."""
    last, name = after, ""
    fruitless = 0
    while True:
        asked = 0.0
        try:
            for frame in _read(api, path, last, deadline, params or {}):
                fruitless = 0
                last, name = frame.id or last, frame.name
                yield frame
            if name in ends:
                return
        except _NothingMore:
            return
        except Unavailable as failure:
            asked = failure.retry_after.total_seconds()
            if fruitless >= RECONNECTS:
                raise
        _expire(deadline)
        fruitless += 1
        if fruitless > 1:
            time.sleep(_bounded(max(pause(fruitless), asked), deadline))
        _expire(deadline)


class _NothingMore(Exception):
    """204: everything was sent in an earlier connection."""


def _bounded(seconds: float, deadline: float | None) -> float:
    return seconds if deadline is None else max(0.0, min(seconds, deadline - time.monotonic()))


def _expire(deadline: float | None) -> None:
    if deadline is not None and time.monotonic() >= deadline:
        raise TimeoutError("time is up; what was watched goes on")


def _read(
    api: Transport, path: str, last: str | None, deadline: float | None, asked: Mapping[str, Any]
) -> Iterator[Frame]:
    """The frames of one connection."""
    timeout, params = READ_TIMEOUT, dict(asked)
    if deadline is not None:  # a comment a second, so that the deadline is met on an idle stream
        timeout, params["keep_alive"] = min(READ_TIMEOUT, max(0.05, deadline - time.monotonic())), 1
    with api.lines(path, params=params, last_event_id=last, read_timeout=timeout) as lines:
        if lines is None:
            raise _NothingMore
        yield from _parse(lines, deadline)


def _parse(lines: Iterator[str], deadline: float | None) -> Iterator[Frame]:
    name, position, data = "message", "", list[str]()
    for line in lines:
        _expire(deadline)
        field_name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield Frame(name, position, "\n".join(data))
            name, position, data = "message", "", []
        elif field_name == "event":
            name = value
        elif field_name == "id":
            position = value
        elif field_name == "data":
            data.append(value)


def _event(frame: Frame) -> Event:
    document = json.loads(frame.data)
    return Event(
        number=document.get("number", int(frame.id) if frame.id.isdigit() else 0),
        type=document.get("type", frame.name),
        data=document.get("data") or {},
        session_id=document.get("session_id"),
        run_id=document.get("run_id"),
        attempt=document.get("attempt") or 0,
        at=document.get("at"),
    )
