"""How long the runs that this worker has started lately had been waiting, by class, for the registry."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping
from datetime import timedelta

from oah.core.policy.quantiles import bucket
from oah.ports.clock import Clock

STEP = 10.0
"""Seconds of one piece of what is remembered."""
NOW = timedelta(minutes=1)
LATELY = timedelta(minutes=5)

Waits = Mapping[str, Mapping[int, int]]
"""Class → buckets of `core/policy/quantiles.py`."""


class RecentWaits:
    """Thread safe. What is older than five minutes is forgotten."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._pieces: deque[tuple[int, Counter[tuple[str, int]]]] = deque()

    def add(self, ready_class: str, seconds: float) -> None:
        """A run of this class was started after so many seconds."""
        step = self._step()
        with self._lock:
            if not self._pieces or self._pieces[-1][0] != step:
                self._pieces.append((step, Counter()))
                self._forget(step)
            self._pieces[-1][1][ready_class, bucket(seconds)] += 1

    def within(self, duration: timedelta) -> Waits:
        """Those of the last `duration`, a piece more or less."""
        oldest = self._step() - round(duration.total_seconds() / STEP)
        total: dict[str, Counter[int]] = {}
        with self._lock:
            for step, piece in self._pieces:
                if step > oldest:
                    for (ready_class, number), count in piece.items():
                        total.setdefault(ready_class, Counter())[number] += count
        return {ready_class: dict(counts) for ready_class, counts in total.items()}

    def _step(self) -> int:
        return int(self._clock.monotonic() / STEP)

    def _forget(self, step: int) -> None:
        while self._pieces[0][0] <= step - round(LATELY.total_seconds() / STEP):
            self._pieces.popleft()
