"""The ear: blocks on the worker's control list always, and on the wake lists of its lanes while slots are idle.

Tokens and ``look`` are hints; what they point at lies in SQL. Whatever is missed costs at most one time-out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta

from oah.errors import LeaseError, Unavailable
from oah.ports.broker import WakeKind
from oah.runtime.component import ThreadComponent
from oah.worker.claimer import Claimer
from oah.worker.context import WorkerContext

log = logging.getLogger(__name__)

LONGEST_WAIT = timedelta(seconds=5)
"""One blocking call; then a claim looks whether a token was lost (source: dispatch.md, Ownership)."""

LOOK_PAUSE = 1.0
"""Seconds between two looks into SQL that a nudge of our own may have caused."""

SHORTEST_WAIT = timedelta(milliseconds=50)


class Ear(ThreadComponent):
    """A thread with a blocking connection of its own."""

    def __init__(self, context: WorkerContext, claimer: Claimer, *, look: Callable[[], None]) -> None:
        super().__init__("ear")
        self._context = context
        self._claimer = claimer
        self._look = look
        self._nudged = threading.Event()
        self._looked_at = 0.0
        self.deaf = False
        """Whether it listens to control only, because no slot is idle, or not to lanes that too few are idle for."""

    def undeafen(self) -> None:
        """A slot is idle again: listen for work as well (once per wait)."""
        if self.deaf:
            self.nudge()

    def nudge(self) -> None:
        """What is to be listened to has changed: begin the wait anew (once per wait)."""
        if self._nudged.is_set():
            return
        self._nudged.set()
        try:
            self._context.broker.look([self._context.worker_id])
        except Unavailable:
            log.debug("ear not nudged")

    def interrupt(self) -> None:
        """Let ``stop`` end the wait."""
        self.deaf = True
        self._nudged.clear()
        self.undeafen()

    def run(self) -> None:
        """Until ``stop``; errors of the broker pause it, never end it. Another epoch is the claim's business."""
        self.serving()
        self._claimer.hint()
        while not self.stopping.is_set():
            try:
                self._listen()
            except (Unavailable, LeaseError) as error:
                log.debug("ear: %s", error)
                self.stopping.wait(0.5)
                self._claimer.hint()

    def _listen(self) -> None:
        # Deaf is set before it is read again, so that a slot that frees in between is not missed.
        self._nudged.clear()
        self.deaf = True
        lanes = self._claimer.lanes()
        self.deaf = len(lanes) < len(self._context.all_lanes)
        kind = self._context.broker.wait(self._context.worker_id, lanes, timeout=self._timeout())
        if kind is WakeKind.WORK and not self._claimer.takes:
            # It takes nothing since a moment ago: the token is somebody else's, who would not hear of the work before
            # the end of a wait.
            self._context.broker.wake(lanes)
        if self.stopping.is_set():
            return
        if kind is WakeKind.LOOK:
            self._looked()
        if kind is None and self._claimer.tick_stale:
            self._context.promote()
        self._claimer.hint()

    def _looked(self) -> None:
        """Our own nudges look like anybody's ``look``; under load they come with every batch, so they are bounded."""
        now = self._context.clock.monotonic()
        if self._nudged.is_set() and now - self._looked_at < LOOK_PAUSE:
            return
        self._looked_at = now
        self._look()

    def _timeout(self) -> timedelta:
        due = self._claimer.next_due
        # A token that went to a connection nobody reads costs one wait, which shall not be longer than a period.
        longest = min(LONGEST_WAIT, self._context.rules.period)
        if self._claimer.tick_stale:
            longest = min(longest, timedelta(seconds=2))
        return max(min(longest, due), SHORTEST_WAIT) if due is not None else longest
