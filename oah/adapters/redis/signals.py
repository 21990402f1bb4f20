"""Waking workers and telling tailers. Tokens and hints are hints: losing one costs time, never a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from redis import exceptions as foreign

from oah.adapters.redis import failures, keys
from oah.adapters.redis.link import Call, Link
from oah.core.model.ids import SessionId, WorkerId
from oah.core.model.lane import Lane
from oah.errors import Unavailable
from oah.ports.broker import WakeKind


class RedisSignals:
    """The ``Signals`` part of the broker."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._subscriber: Any = None
        self._guard = threading.Lock()

    def wait(self, worker_id: WorkerId, lanes: Sequence[Lane], *, timeout: timedelta) -> WakeKind | None:
        """Block for a control entry or a wake token; None on time-out. Raises Unavailable."""
        control = keys.CONTROL.at(worker_id)
        names = [control, *(keys.WAKE.at(str(lane)) for lane in lanes)]
        deadline = time.monotonic() + timeout.total_seconds()
        while True:
            left = deadline - time.monotonic()
            block = min(max(left, 0.01), self._link.longest_block.total_seconds())  # 0 would mean for ever
            answer = self._link.exchange([["BLPOP", *names, f"{block:.3f}"]], blocking=True)[0]
            if isinstance(answer, foreign.ResponseError):
                return self._unreadable(names, answer)
            if answer is not None:
                return WakeKind.LOOK if answer[0] == control.encode() else WakeKind.WORK
            if left <= block:
                return None

    def look(self, workers: Iterable[WorkerId], *, quick: bool = False) -> None:
        """Push ``look`` on the control lists; one unread entry is enough."""
        items = [(worker,) for worker in workers]
        if items:
            self._link.run(None, [Call("look", groups={"worker": items})], quick=quick)

    def wake(self, lanes: Iterable[Lane]) -> None:
        """Push one wake token per lane, at most 64 in each list."""
        items = [(str(lane),) for lane in lanes]
        if items:
            self._link.run(None, [Call("wake", groups={"lane": items})])

    def publish(self, hints: Sequence[tuple[SessionId, int]]) -> None:
        """Best effort: tailers read SQL every second anyway."""
        if not hints:
            return
        text = "\n".join(f"{number} {session}" for session, number in hints)
        try:
            self._link.exchange([["PUBLISH", keys.EVENTS.at(), text.encode("utf-8", "surrogateescape")]], quick=True)
        except Unavailable:
            return  # counted by the link

    def hints(self, *, timeout: timedelta) -> list[tuple[SessionId, int]]:
        """Block for hints of other processes, then take what else has come. Raises Unavailable."""
        with self._guard:
            try:
                if self._subscriber is None:
                    self._subscriber = self._link.subscriber()
                    self._subscriber.subscribe(keys.EVENTS.at())
                return self._collect(timeout.total_seconds())
            except (foreign.RedisError, OSError) as error:
                self._unsubscribe()
                raise failures.translate(error, address=self._link.dial.address) from error

    def close(self) -> None:
        """End the subscription."""
        with self._guard:
            self._unsubscribe()

    def _collect(self, seconds: float) -> list[tuple[SessionId, int]]:
        latest: dict[SessionId, int] = {}
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 or not latest:
            message = self._subscriber.get_message(timeout=0 if latest else max(left, 0.0))
            if message is None:
                if latest or left <= 0:
                    break
                continue
            for session, number in self._parse(message["data"]):
                latest[session] = max(number, latest.get(session, 0))
        return list(latest.items())

    def _parse(self, data: bytes) -> list[tuple[SessionId, int]]:
        try:
            lines = [line.split(" ", 1) for line in data.decode().splitlines()]
            return [(SessionId(session), int(number)) for number, session in lines]
        except ValueError:
            self._link.set_aside(keys.EVENTS.at(), data)
            return []

    def _unreadable(self, names: Sequence[str], error: foreign.ResponseError) -> WakeKind | None:
        """Something that is no list lies under one of the keys: the scripts set it aside as they meet it."""
        if not failures.misfit(error):
            raise failures.translate(error, address=self._link.dial.address)
        worker = names[0].rsplit(":", 1)[1]
        lanes = [(name.split("wake:", 1)[1],) for name in names[1:]]
        self._link.run(None, [Call("look", groups={"worker": [(worker,)]})])
        if lanes:
            self._link.run(None, [Call("wake", groups={"lane": lanes})])
        return WakeKind.LOOK

    def _unsubscribe(self) -> None:
        if self._subscriber is not None:
            try:
                self._subscriber.close()
            except (foreign.RedisError, OSError):
                pass  # it is being thrown away
            self._subscriber = None
