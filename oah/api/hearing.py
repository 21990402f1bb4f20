"""Lets the broker hear of committed runs, behind the answers: no caller waits for Redis.

Best effort by design. When the broker is away, slow or full, what waits here is dropped: the relay finds the same runs
in SQL. What was heard is marked in SQL in groups, once a second at most; a start that comes first marks it too.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta

from oah.core.model.ids import EpochId, RunId
from oah.errors import LeaseError, OahError, Unavailable
from oah.ports.broker import Broker
from oah.ports.clock import Clock
from oah.ports.store import Accepted, Store
from oah.runtime.component import ThreadComponent
from oah.services.submit import hear

log = logging.getLogger(__name__)

AT_ONCE = 500
MOST_WAITING = 20_000
FLUSH_AFTER = timedelta(seconds=1)
"""Half of the age at which the relay takes a run for unheard (dispatch.md, Submit)."""


class Hearing(ThreadComponent):
    """One thread between COMMIT and the broker."""

    def __init__(self, store: Store, broker: Broker, clock: Clock, epoch: Callable[[], EpochId | None]) -> None:
        super().__init__("api-hearing")
        self._store = store
        self._broker = broker
        self._clock = clock
        self._epoch = epoch
        self._believed: EpochId | None = None
        """Under which the broker took runs last: after a new epoch the process need not be told."""
        self._changed = threading.Condition()
        self._waiting: deque[Accepted] = deque()
        self._heard: list[RunId] = []
        self._heard_under: EpochId | None = None
        self._heard_since = 0.0
        self.dropped = 0
        """Runs left to the relay because the broker did not take them."""

    def put(self, accepted: Sequence[Accepted]) -> None:
        """Runs to hear of. Never blocks; what is too much is left to the relay."""
        with self._changed:
            self._waiting.extend(one for one in accepted if not one.replayed)
            while len(self._waiting) > MOST_WAITING:
                self._waiting.popleft()
                self.dropped += 1
            self._changed.notify()

    def interrupt(self) -> None:
        """Wake the thread: it flushes and ends."""
        with self._changed:
            self._changed.notify()

    def run(self) -> None:
        """Hear, collect, flush, until stopped; then once more."""
        self.serving()
        while not self.stopping.is_set():
            self._tell(self._take())
            if len(self._heard) >= AT_ONCE or self._due_in() <= 0:
                self._flush()
        self._tell(self._take())
        self._flush()

    def _take(self) -> list[Accepted]:
        with self._changed:
            if not self._waiting and not self.stopping.is_set():
                self._changed.wait(self._due_in() if self._heard else None)
            return [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]

    def _due_in(self) -> float:
        if not self._heard:
            return FLUSH_AFTER.total_seconds()
        return max(0.0, self._heard_since + FLUSH_AFTER.total_seconds() - self._clock.monotonic())

    def _tell(self, batch: list[Accepted]) -> None:
        if not batch:
            return
        try:
            under = hear(self._broker, self._store, self._believed or self._epoch(), batch)
        except (Unavailable, LeaseError) as error:
            self._give_up(len(batch), error)
            return
        if under is None:
            return
        self._believed = under
        if under != self._heard_under:
            self._flush()
        if not self._heard:
            self._heard_since = self._clock.monotonic()
        self._heard_under = under
        self._heard += [one.run.id for one in batch]

    def _give_up(self, count: int, error: OahError) -> None:
        with self._changed:
            self.dropped += count + len(self._waiting)
            self._waiting.clear()
        log.warning("the broker did not hear of %d runs, the relay will repeat them: %s", count, error.message)

    def _flush(self) -> None:
        heard, under = self._heard, self._heard_under
        self._heard = []
        if not heard or under is None:
            return
        try:
            self._store.heard(heard, under)
        except Unavailable:
            return  # unmarked runs are heard again by the relay: harmless
