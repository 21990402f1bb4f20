"""The teller: says in Redis what nobody has to wait for.

Hints for event tailers and the heads of hint lists are collected here, so that claimer and settler do not spend a round
trip on them; what comes while one is under way goes with the next. Losing them costs a tailer's next look into SQL.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from oah.core.model.ids import SessionId
from oah.errors import LeaseError, Unavailable
from oah.runtime.component import ThreadComponent
from oah.worker.context import WorkerContext


class Teller(ThreadComponent):
    """Thread safe."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__("teller")
        self._context = context
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._heads: list[SessionId] = []
        self._hints: dict[SessionId, int] = {}

    def begun(self, hints: Iterable[tuple[SessionId, int]]) -> None:
        """A run of each session was started: one head of its hint list goes, and there is an event."""
        hints = list(hints)
        with self._lock:
            self._heads.extend(session_id for session_id, _ in hints)
        self.happened(hints)

    def happened(self, hints: Iterable[tuple[SessionId, int]]) -> None:
        """Events up to these numbers are committed."""
        with self._lock:
            for session_id, number in hints:
                self._hints[session_id] = max(number, self._hints.get(session_id, 0))
        self._bell.set()

    def interrupt(self) -> None:
        """Let ``stop`` end the wait."""
        self._bell.set()

    def run(self) -> None:
        """Until ``stop``, and once more."""
        self.serving()
        while not self.stopping.is_set():
            self._bell.wait()
            self._bell.clear()
            self._tell()
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            heads, self._heads = self._heads, []
            hints, self._hints = self._hints, {}
        broker = self._context.broker
        try:
            if hints:
                broker.publish(list(hints.items()))
            if heads:
                broker.popped(self._context.epochs.current(), heads)
        except (Unavailable, LeaseError):
            self._context.telemetry.count("oah_redis_errors_total", kind="other")
