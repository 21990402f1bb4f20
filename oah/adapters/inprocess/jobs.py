"""Maintenance tasks inside one process: no queue but this memory, which may be lost, because the rows are the truth."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta

from oah.errors import OahError
from oah.ports.clock import Clock
from oah.ports.jobs import Handlers

log = logging.getLogger(__name__)

PAUSE_AFTER_ERROR = timedelta(seconds=5)
IDLE = timedelta(minutes=1)


class InlineJobQueue:
    """See ``ports/jobs.py``. ``perform`` is for one thread; ``on_work`` is called when it has something to do."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._due: dict[tuple[str, str], float] = {}
        self.on_work: Callable[[], None] = lambda: None

    def enqueue(self, task: str, subject: str, *, delay: timedelta | None = None) -> None:
        """Repeats are one; the earliest time counts."""
        due = self._clock.monotonic() + (delay or timedelta(0)).total_seconds()
        with self._lock:
            self._due[task, subject] = min(due, self._due.get((task, subject), due))
        self.on_work()

    def perform(self, handlers: Handlers, going_on: Callable[[], bool]) -> timedelta:
        """Perform what is due, earliest first, each once; how long until the next one."""
        for task, subject in self._take():
            if not going_on():
                break
            try:
                pause = handlers[task](subject)
            except OahError as error:
                log.warning("%s %s failed: %s", task, subject, error)
                pause = PAUSE_AFTER_ERROR
            except Exception:
                log.exception("%s %s failed", task, subject)
                pause = PAUSE_AFTER_ERROR
            if pause is not None:
                self.enqueue(task, subject, delay=pause)
        with self._lock:
            first = min(self._due.values(), default=None)
        return IDLE if first is None else timedelta(seconds=max(0.0, first - self._clock.monotonic()))

    def _take(self) -> list[tuple[str, str]]:
        now = self._clock.monotonic()
        with self._lock:
            due = sorted((moment, key) for key, moment in self._due.items() if moment <= now)
            for _, key in due:
                del self._due[key]
        return [key for _, key in due]
