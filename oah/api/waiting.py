"""Request threads that wait for one event of a session: they hear of it from the tailer, nobody polls for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from oah.core.model.event import Event
from oah.core.model.ids import SessionId


class Waiter:
    """One thread's wait."""

    def __init__(self, session_id: SessionId, wanted: Callable[[Event], bool]) -> None:
        self.session_id = session_id
        self.wanted = wanted
        self._come = threading.Event()

    def come(self) -> None:
        """It is there."""
        self._come.set()

    def wait(self, timeout: timedelta) -> bool:
        """Whether it came in time."""
        return self._come.wait(timeout.total_seconds())


class Waiters:
    """All of the process. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: set[Waiter] = set()

    @contextmanager
    def waiting(self, session_id: SessionId, wanted: Callable[[Event], bool]) -> Iterator[Waiter]:
        """A waiter that hears of events from now on."""
        waiter = Waiter(session_id, wanted)
        with self._lock:
            self._waiters.add(waiter)
        try:
            yield waiter
        finally:
            with self._lock:
                self._waiters.discard(waiter)

    def tell(self, events: Sequence[Event]) -> None:
        """From the tailer's thread."""
        with self._lock:
            waiters = list(self._waiters)
        for waiter in waiters:
            if any(event.session_id == waiter.session_id and waiter.wanted(event) for event in events):
                waiter.come()

    def release(self) -> None:
        """The process ends: nobody waits any longer."""
        with self._lock:
            for waiter in self._waiters:
                waiter.come()
