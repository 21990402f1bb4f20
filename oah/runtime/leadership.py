"""Leadership: one process at a time does what only one may do.

The lease is kept elsewhere (in the broker, or as a Kubernetes Lease), so it can be lost without anybody telling: by a
flush, a failover, a stopped process. Therefore it is a convenience, never a protection: whatever a leader does is safe
when two do it (compare-and-set in SQL). Here it is held honestly: valid only until the moment before the last
successful call + lease, by CLOCK_BOOTTIME, and given up when a pass of the leader's work takes longer than the lease (a
hanging leader must not keep others out).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

from oah.errors import Unavailable
from oah.ports.clock import Clock
from oah.ports.election import Election
from oah.ports.telemetry import NullTelemetry, Telemetry
from oah.runtime.loop import Loop, Wait, wait_for_event

log = logging.getLogger(__name__)

CONTEND = timedelta(seconds=1)
"""How often a process without the lease asks for it: another takes over at most so long after the lease has ended."""


class Leadership(Loop):
    """The loop that competes for the lease. `on_gain` and `on_loss` are called in its thread and must be quick."""

    def __init__(
        self,
        keeper: Election,
        holder: str,
        *,
        clock: Clock,
        lease: timedelta = timedelta(seconds=15),
        renew: timedelta = timedelta(seconds=5),
        telemetry: Telemetry | None = None,
        on_gain: Callable[[], None] = lambda: None,
        on_loss: Callable[[], None] = lambda: None,
        wait: Wait = wait_for_event,
    ) -> None:
        super().__init__("leadership", self.campaign, interval=renew, clock=clock, telemetry=telemetry, wait=wait)
        self._keeper = keeper
        self._holder = holder
        self._boottime = clock.boottime
        self._lease = lease
        self._figures = telemetry or NullTelemetry()
        self._on_gain = on_gain
        self._on_loss = on_loss
        self._until = 0.0
        self._held = False
        self._in_doubt = False
        self._passes: dict[int, float] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def leads(self) -> bool:
        """Whether this process may act as the leader now."""
        return self._held and self._boottime() < self._until

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Around one pass of the leader's work, so that a pass that hangs is seen."""
        number = next(self._numbers)
        with self._lock:
            self._passes[number] = self._boottime()
        try:
            yield
        finally:
            with self._lock:
                del self._passes[number]

    def only(self, work: Callable[[], timedelta | None]) -> Callable[[], timedelta | None]:
        """`work` for a loop, done only while this process leads."""

        def pass_of_the_leader() -> timedelta | None:
            if not self.leads():
                return None
            with self.acting():
                return work()

        return pass_of_the_leader

    def campaign(self) -> timedelta | None:
        """One step: take or keep the lease, or give it up. Raises Unavailable."""
        if self._hanging():
            if self._held:
                log.error("a pass takes longer than the leader lease: giving it up")
                self._lose()
                self._in_doubt = True
                self._keeper.resign(self._holder)
                self._in_doubt = False
            return CONTEND
        before = self._boottime()
        try:
            has = self._keeper.lead(self._holder, lease=self._lease)
        except Unavailable:
            self._in_doubt = True  # it may have been written all the same
            if self._held and not self.leads():
                self._lose()
            raise
        self._in_doubt = False
        if not has:
            if self._held:
                self._lose()
        else:
            self._until = before + self._lease.total_seconds()
            if not self._held:
                self._gain()
        self._figures.gauge("oah_leader", 1 if self.leads() else 0)
        return None if self._held else CONTEND

    def run(self) -> None:
        """Compete until `stop`, then resign, so that another can take over at once."""
        try:
            super().run()
        finally:
            held = self._held
            if held:
                self._lose()
            if held or self._in_doubt:
                with contextlib.suppress(Unavailable):
                    self._keeper.resign(self._holder)

    def _hanging(self) -> bool:
        with self._lock:
            oldest = min(self._passes.values(), default=None)
        return oldest is not None and self._boottime() - oldest > self._lease.total_seconds()

    def _gain(self) -> None:
        self._held = True
        log.info("leader", extra={"holder": self._holder})
        self._on_gain()

    def _lose(self) -> None:
        self._held = False
        self._until = 0.0
        log.warning("no longer leader", extra={"holder": self._holder})
        self._figures.gauge("oah_leader", 0)
        self._on_loss()
