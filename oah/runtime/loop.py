"""A loop: calls one function every interval, or when it is woken.

A pass that a dependency's absence ends (an error that is `retryable`) is counted, and the next pass waits: from
`first`, doubling, up to `cap`, with jitter. Waking does not shorten that wait, so that a stream of wakes cannot hammer
a store that is down. Any other error is a bug and ends the loop, which ends its group.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from oah.errors import OahError
from oah.ports.clock import Clock
from oah.ports.telemetry import NullTelemetry, Telemetry
from oah.runtime.component import ThreadComponent

log = logging.getLogger(__name__)

Wait = Callable[[threading.Event, float], bool]
"""Waits for an event at most so many seconds; True when it is set."""


def wait_for_event(event: threading.Event, seconds: float) -> bool:
    """The real `Wait`."""
    return event.wait(seconds)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait after the n-th failure in a row."""

    first: timedelta = timedelta(milliseconds=100)
    cap: timedelta = timedelta(seconds=1)

    def after(self, *, failures: int, chance: float) -> timedelta:
        """`failures` ≥ 1; `chance` in [0, 1) takes up to half of the wait away."""
        doubled = self.first * (1 << min(failures - 1, 20))
        return min(doubled, self.cap) * (1 - chance / 2)


class Loop(ThreadComponent):
    """Calls `work` for ever. `work` may answer with the time until the next pass (zero: there is more to do).

    `floor`: least time between the ends of a pass and the begin of the next one, whatever `work` and wakers want.
    `on_failure(error, failures_in_a_row)` hears of passes that a dependency's absence ended.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], timedelta | None],
        *,
        interval: timedelta,
        clock: Clock,
        telemetry: Telemetry | None = None,
        chance: Callable[[], float] = lambda: 0.0,
        backoff: Backoff | None = None,
        floor: timedelta = timedelta(milliseconds=1),
        on_failure: Callable[[OahError, int], None] | None = None,
        wait: Wait = wait_for_event,
    ) -> None:
        super().__init__(name)
        self._work = work
        self._interval = interval
        self._clock = clock
        self._telemetry = telemetry or NullTelemetry()
        self._chance = chance
        self._backoff = backoff or Backoff()
        self._floor = floor
        self._on_failure = on_failure
        self._wait = wait
        self._bell = threading.Event()
        self._failures = 0

    @property
    def failures(self) -> int:
        """Failed passes in a row; 0 when the last one was good."""
        return self._failures

    def wake(self) -> None:
        """Make the next pass come now. From any thread; many wakes are one."""
        self._bell.set()

    def interrupt(self) -> None:
        """Let `stop` end the wait."""
        self._bell.set()

    def run(self) -> None:
        """Pass after pass until `stop`."""
        self.serving()
        while not self.stopping.is_set():
            self._bell.clear()
            pause = self._pass()
            if self._failures:
                self._wait(self.stopping, pause.total_seconds())
                continue
            if self._wait(self.stopping, min(pause, self._floor).total_seconds()):
                return
            if pause > self._floor:
                self._wait(self._bell, (pause - self._floor).total_seconds())

    def _pass(self) -> timedelta:
        begun = self._clock.monotonic()
        try:
            pause = self._work()
        except OahError as error:
            if not error.retryable:
                raise
            return self._failed(error)
        if self._failures:
            log.info("loop works again", extra={"loop": self.name, "failures": self._failures})
            self._failures = 0
        self._telemetry.count("oah_loop_passes_total", loop=self.name)
        self._telemetry.observe("oah_loop_pass_seconds", self._clock.monotonic() - begun, loop=self.name)
        return self._interval if pause is None else max(pause, timedelta(0))

    def _failed(self, error: OahError) -> timedelta:
        self._failures += 1
        self._telemetry.count("oah_loop_failures_total", loop=self.name)
        if self._failures == 1 or self._failures % 60 == 0:
            log.warning(
                "pass failed: %s", error, extra={"loop": self.name, "code": error.code, "failures": self._failures}
            )
        if self._on_failure is not None:
            self._on_failure(error, self._failures)
        return max(self._backoff.after(failures=self._failures, chance=self._chance()), self._floor)
