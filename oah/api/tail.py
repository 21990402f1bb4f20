"""One reader of new events for all streams of the process.

It reads SQL when the broker hints at a watched session, and for all watched sessions every second: hints make it quick,
the second makes it certain. A stream that nobody feeds costs one probe of an index a second, and no thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import islice

from oah.core.model.event import Event
from oah.core.model.ids import SessionId
from oah.errors import LeaseError, Unavailable
from oah.ports.broker import Broker
from oah.ports.clock import Clock
from oah.ports.store import Store
from oah.runtime.component import ThreadComponent

EVERY = timedelta(seconds=1)
NOBODY = SessionId("-")
AT_ONCE = 1_000
SESSIONS_AT_ONCE = 2_000
"""Two parameters each: well below what either database takes in a statement."""

Deliver = Callable[[Sequence[Event]], None]


class Tailer(ThreadComponent):
    """Delivers the events of watched sessions in order, from the tailer's thread."""

    def __init__(self, store: Store, broker: Broker, clock: Clock, deliver: Deliver) -> None:
        super().__init__("api-tailer")
        self._store = store
        self._broker = broker
        self._clock = clock
        self._deliver = deliver
        self._lock = threading.Lock()
        self._cursors: dict[SessionId, int] = {}
        self._readers: Counter[SessionId] = Counter()

    def tail(self, session_id: SessionId, position: int) -> int:
        """Deliver this session's events; the number after which they will come (`position` for a new one). Each call
        needs a `leave` of its own."""
        with self._lock:
            self._readers[session_id] += 1
            return self._cursors.setdefault(session_id, position)

    def leave(self, session_id: SessionId) -> None:
        """One reader less; without any the session is not read any more."""
        with self._lock:
            self._readers[session_id] -= 1
            if self._readers[session_id] <= 0:
                self._readers.pop(session_id)
                self._cursors.pop(session_id, None)

    def interrupt(self) -> None:
        """A hint of our own ends the wait for hints."""
        with suppress(Unavailable, LeaseError):
            self._broker.publish([(NOBODY, 0)])

    def run(self) -> None:
        """Until stopped. The absence of either store is waited out; streams then know less, never wrong things."""
        self.serving()
        last = self._clock.monotonic()
        while not self.stopping.is_set():
            hints = self._hints()
            now = self._clock.monotonic()
            everything = now - last >= EVERY.total_seconds()
            if everything:
                last = now
            self._read(None if everything else dict(hints))

    def _hints(self) -> list[tuple[SessionId, int]]:
        try:
            return self._broker.hints(timeout=EVERY)
        except (Unavailable, LeaseError):
            self.stopping.wait(EVERY.total_seconds())
            return []

    def _read(self, hinted: dict[SessionId, int] | None) -> None:
        wanted = self._wanted(hinted)
        while wanted and not self.stopping.is_set():
            part = dict(islice(wanted.items(), SESSIONS_AT_ONCE))
            for session_id in part:
                del wanted[session_id]
            try:
                wanted |= self._read_part(part)
            except Unavailable:
                return

    def _read_part(self, cursors: dict[SessionId, int]) -> dict[SessionId, int]:
        """One statement; the cursors of sessions that may have more, having got all of their share."""
        events = self._store.events_since(cursors, limit=AT_ONCE)
        if not events:
            return {}
        self._advance(events)
        self._deliver(events)
        share = max(1, AT_ONCE // len(cursors))
        got = Counter(event.session_id for event in events)
        full = [session_id for session_id, count in got.items() if count >= share or len(events) >= AT_ONCE]
        with self._lock:
            return {session_id: self._cursors[session_id] for session_id in full if session_id in self._cursors}

    def _wanted(self, hinted: dict[SessionId, int] | None) -> dict[SessionId, int]:
        with self._lock:
            if hinted is None:
                return dict(self._cursors)
            return {
                session_id: self._cursors[session_id]
                for session_id, number in hinted.items()
                if self._cursors.get(session_id, number) < number
            }

    def _advance(self, events: Sequence[Event]) -> None:
        with self._lock:
            for event in events:
                cursor = self._cursors.get(event.session_id)
                if cursor is not None and event.number > cursor:
                    self._cursors[event.session_id] = event.number
