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
    last, kind = after, ""
    fruitless = 0
    while True:
        asked = 0.0
        try:
            for event in _read(api, path, last, deadline):
                fruitless = 0
                last, kind = event.number, event.type
                yield event
            if kind in ends:
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
        raise TimeoutError("time is up; the run goes on")


def _read(api: Transport, path: str, last: int | None, deadline: float | None) -> Iterator[Event]:
    """The events of one connection."""
    timeout, params = READ_TIMEOUT, dict[str, Any]()
    if deadline is not None:  # a comment a second, so that the deadline is met on an idle stream
        timeout, params = min(READ_TIMEOUT, max(0.05, deadline - time.monotonic())), {"keep_alive": 1}
    with api.lines(path, params=params, last_event_id=last, read_timeout=timeout) as lines:
        if lines is None:
            raise _NothingMore
        yield from _parse(lines, deadline)


def _parse(lines: Iterator[str], deadline: float | None) -> Iterator[Event]:
    name, number, data = "message", 0, list[str]()
    for line in lines:
        _expire(deadline)
        field_name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield _event(name, number, "\n".join(data))
            name, number, data = "message", 0, []
        elif field_name == "event":
            name = value
        elif field_name == "id":
            number = int(value) if value.isdigit() else 0
        elif field_name == "data":
            data.append(value)


def _event(name: str, number: int, text: str) -> Event:
    document = json.loads(text)
    return Event(
        number=document.get("number", number),
        type=document.get("type", name),
        data=document.get("data") or {},
        session_id=document.get("session_id"),
        run_id=document.get("run_id"),
        attempt=document.get("attempt") or 0,
        at=document.get("at"),
    )
