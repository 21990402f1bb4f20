"""An operator's drain: nothing new, what runs finishes, and at the deadline becomes what was said.

The worker serves on meanwhile, so that a drain can be taken back until the worker is empty. Then it ends, and whoever
supervises it starts the next one; unless it was told to stay, or lives inside a process that has more to do.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

from oah.core.model.drain import AtDeadline, Drain
from oah.worker.attempt import end_soon
from oah.worker.context import WorkerContext
from oah.worker.work import Assignment

log = logging.getLogger(__name__)


class Draining:
    """One pass is a call, from one thread; ``begin`` and ``end`` may come from another."""

    def __init__(
        self,
        context: WorkerContext,
        *,
        working: Callable[[], Sequence[Assignment]],
        empty: Callable[[], bool],
        stop_claims: Callable[[], None],
        end_parked: Callable[[], None],
        end_waiting: Callable[[AtDeadline | None], None],
    ) -> None:
        self._context = context
        self._working = working
        self._empty = empty
        self._stop_claims = stop_claims
        self._end_parked = end_parked
        self._end_waiting = end_waiting
        self._lock = threading.Lock()
        self._order: Drain | None = None
        self._begun = 0.0
        self._told = False
        """Whether the end of it was told already."""
        self._late = False
        """Whether it was told that its deadline has passed, and that runs go on."""

    @property
    def on(self) -> bool:
        """Whether there is one."""
        return self._order is not None

    @property
    def said(self) -> AtDeadline | None:
        """What somebody wants to become of runs that are not waited for. None: they are released, and those that wait
        for a person are the recovery policy's."""
        order, own = self._order, self._context.rules.drain_then
        said = None if order is None else order.then
        if said is None and own is AtDeadline.FAIL:
            return own
        return None if said is AtDeadline.WAIT else said

    def _waits(self, order: Drain) -> bool:
        return (self._context.rules.drain_then if order.then is None else order.then) is AtDeadline.WAIT

    def begin(self, order: Drain) -> None:
        """A later order takes the place of an earlier one; its deadline counts from now."""
        with self._lock:
            self._order, self._begun = order, self._context.clock.monotonic()
            self._told = self._late = False

    def end(self) -> None:
        """It is taken back."""
        with self._lock:
            self._order = None

    @property
    def over(self) -> bool:
        """Whether its deadline has passed."""
        with self._lock:
            return self._order is not None and self._is_over(self._order)

    def _is_over(self, order: Drain) -> bool:
        return not self._waits(order) and self._is_late(order)

    def _is_late(self, order: Drain) -> bool:
        deadline = self._context.rules.drain_grace if order.deadline is None else order.deadline
        return self._context.clock.monotonic() - self._begun >= deadline.total_seconds()

    def __call__(self) -> None:
        """One pass."""
        order = self._order
        if order is None:
            return
        self._end_parked()  # also when it is over, and the worker stays: what was away may have come back
        with self._lock:  # ending agents takes a while, in which it may have been taken back
            if self._order is order and not self._told:
                self._go_on(order)

    def _go_on(self, order: Drain) -> None:
        """With the lock held: what cannot be taken back is done before, or after and not at all."""
        if self._empty():
            self._told = True
            log.info("drained")
            if not order.stay:
                self._context.on_drain()
        elif self._is_over(order):
            self._stop_claims()
            give_back(self._working(), self.said)
            self._end_waiting(self.said)
        elif self._is_late(order) and not self._late:
            self._late = True
            log.warning("the deadline of the drain has passed, runs go on: %d", len(self._working()))


def give_back(working: Sequence[Assignment], said: AtDeadline | None) -> None:
    """End the agents of what still runs, each once; what becomes of the run is its slot's to say."""
    for assignment in working:
        if assignment.give_back:
            continue
        assignment.drained = said
        assignment.give_back = True
        end_soon(assignment.agent)


FOR_EVER = timedelta(days=3650)
"""The grace of a process whose runs may take as long as they need."""


def grace_of(then: AtDeadline, grace: timedelta) -> timedelta:
    """How long a stop by signal lets runs go on: the second signal ends any."""
    return FOR_EVER if then is AtDeadline.WAIT else grace
