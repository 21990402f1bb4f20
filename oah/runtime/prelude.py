"""A prelude: what must be true before some components may start, tried with back-off until it is.

So a process whose database is away at its start says so, is alive and not ready, and goes on by itself once the
database is back, instead of crashing in a loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from oah.errors import OahError
from oah.ports.clock import Clock
from oah.runtime.component import Component, ThreadComponent
from oah.runtime.group import Group

log = logging.getLogger(__name__)

LONGEST_PAUSE = 2.0
"""Seconds between two attempts, at most: the shortest lease that is allowed holds recovery for longer when the database
comes back, and a worker that waits for it must be up by then."""


class Prelude(ThreadComponent):
    """``prepare`` is repeated while it raises a retryable error; then ``components()`` are started as a group."""

    def __init__(
        self,
        name: str,
        prepare: Callable[[], None],
        components: Callable[[], Sequence[Component]],
        *,
        clock: Clock,
    ) -> None:
        super().__init__(name)
        self._prepare = prepare
        self._components = components
        self._clock = clock
        self._group: Group | None = None
        self.prepared = False
        """Whether everything behind it was started."""

    def interrupt(self) -> None:
        """End the group's wait; without a grace hurry it."""
        group = self._group
        if group is None:
            return
        if self.grace > timedelta(0):
            group.request_stop()
        else:
            group.hurry()

    def run(self) -> None:
        """Prepare, start, serve, stop in reverse. Raises what a component raised."""
        self.serving()
        if not self._persist():
            return
        self._group = Group(self._components(), clock=self._clock)
        if self.stopping.is_set():
            return
        self._group.start()
        self.prepared = True
        self._group.wait()
        self.prepared = False
        self._group.stop(self.grace)
        self._group.raise_failure()

    def _persist(self) -> bool:
        pause = 0.2
        while not self.stopping.is_set():
            try:
                self._prepare()
            except OahError as error:
                if not error.retryable:
                    raise
                log.warning("not ready, again in %.1f s: %s", pause, error, extra={"hint": error.hint or ""})
                self.stopping.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                return True
        return False
