"""Whether a worker is alive: its claim loop moves. What it depends on may be away for as long as it likes, that is no
reason to end it: every call has a time-out, and a loop that waits for a store moves.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from oah.ports.clock import Clock
from oah.worker.engine import Engine


@dataclass(slots=True)
class _Seen:
    turns: int
    since: float


class Alive:
    """Asked by probes, from any thread: what has not moved between two questions for ``limit`` is stuck."""

    def __init__(self, clock: Clock, engines: Sequence[Engine], *, limit: timedelta) -> None:
        self._clock = clock
        self._engines = engines
        self._limit = limit.total_seconds()
        self._lock = threading.Lock()
        self._seen: dict[str, _Seen] = {}

    def stuck(self) -> list[str]:
        """Why this process is better started again; empty while everything moves, or is not to (before its start, after
        its stop)."""
        found = [self._still(engine) for engine in self._engines if engine.turns and not engine.stopping.is_set()]
        return [reason for reason in found if reason is not None]

    def _still(self, engine: Engine) -> str | None:
        """The engine that claims hears something every few seconds. Another may sleep until there is work."""
        now, turns = self._clock.monotonic(), engine.turns
        sleeps = engine is not self._engines[-1] and not engine.stepping
        with self._lock:
            seen = self._seen.get(engine.name)
            if seen is None or seen.turns != turns or sleeps:
                self._seen[engine.name] = _Seen(turns, now)
                return None
            still = now - seen.since
        if still < self._limit:
            return None
        return f"the {engine.name} loop has not moved for {still:.0f} s"
