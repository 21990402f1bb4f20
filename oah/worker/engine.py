"""An engine: one thread that carries duties (claimer, settler), each when it has something to do.

On PostgreSQL each duty has an engine of its own; on SQLite, which has one writer, both share one: settle first, so that
slots are free again for the claim behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from oah.runtime.component import ThreadComponent


class Duty(Protocol):
    """Work without a thread of its own."""

    def pending(self) -> float | None:
        """Seconds until ``step`` has something to do (0: now); None: not before somebody wakes the engine."""

    def step(self) -> None:
        """One batch."""


class Engine(ThreadComponent):
    """Steps its duties in order, again and again; sleeps while none is pending."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._duties: Sequence[Duty] = ()
        self._bell = threading.Event()
        self.turns = 0
        """Grows with every look at the duties, and whenever one of them that takes long says that it goes on."""
        self.stepping = False
        """Whether a duty is being carried out now."""

    def carry(self, *duties: Duty) -> None:
        """Give it its duties, before ``start``."""
        self._duties = duties

    def wake(self) -> None:
        """Something may be pending now."""
        self._bell.set()

    def goes_on(self) -> None:
        """A duty that waits for something within a step, as long as it takes, still lives."""
        self.turns += 1

    def interrupt(self) -> None:
        """Let ``stop`` end the wait."""
        self._bell.set()

    def run(self) -> None:
        """Until ``stop``."""
        self.serving()
        while not self.stopping.is_set():
            self._bell.clear()
            self.turns += 1
            waits = [self._carry(duty) for duty in self._duties]
            soonest = min((wait for wait in waits if wait is not None), default=None)
            if soonest is None or soonest > 0:
                self._bell.wait(soonest)

    def _carry(self, duty: Duty) -> float | None:
        wait = duty.pending()
        if wait is None or wait > 0:
            return wait
        self.stepping = True
        try:
            duty.step()
        finally:
            self.stepping = False
            self.turns += 1
        return duty.pending()
