"""Waking workers and telling tailers. Tokens and hints are hints: losing one costs time, never a run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta

from redis import exceptions as foreign

from oah.adapters.redis import failures, keys
from oah.adapters.redis.hints import HintChannel
from oah.adapters.redis.link import Call, Link
from oah.core.model.ids import MailboxId, SessionId, WorkerId
from oah.core.model.lane import Lane
from oah.ports.broker import WakeKind


class RedisSignals:
    """The ``Signals`` part of the broker."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._events = HintChannel(link, keys.EVENTS)
        self._mail = HintChannel(link, keys.MAIL)

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
        self._events.publish(hints)

    def hints(self, *, timeout: timedelta) -> list[tuple[SessionId, int]]:
        """Block for hints of other processes, then take what else has come. Raises Unavailable."""
        return [(SessionId(name), number) for name, number in self._events.hints(timeout=timeout)]

    def publish_mail(self, hints: Sequence[tuple[MailboxId, int]]) -> None:
        """Best effort: readers ask SQL every two seconds anyway."""
        self._mail.publish(hints)

    def mail_hints(self, *, timeout: timedelta) -> list[tuple[MailboxId, int]]:
        """Block for hints of other processes, then take what else has come. Raises Unavailable."""
        return [(MailboxId(name), number) for name, number in self._mail.hints(timeout=timeout)]

    def close(self) -> None:
        """End the subscriptions."""
        self._events.close()
        self._mail.close()

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
