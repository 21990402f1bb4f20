"""Counting that costs what there is to count, asked for by many: anew each time while it is quick, else so seldom that
no more than a twentieth of the time goes into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from oah.ports.clock import Clock

T = TypeVar("T")

QUICK = 0.02
"""Seconds that are no matter."""
SHARE = 20


class Sparing(Generic[T]):
    """One thread at a time. What it answers is at most ``SHARE`` times as old as counting takes."""

    def __init__(self, clock: Clock, count: Callable[[], T]) -> None:
        self._clock = clock
        self._count = count
        self._kept: T | None = None
        self._until = 0.0

    def __call__(self) -> T:
        """Raises what counting raises."""
        begun = self._clock.monotonic()
        if self._kept is not None and begun < self._until:
            return self._kept
        found = self._count()
        took = self._clock.monotonic() - begun
        self._kept = found if took > QUICK else None
        self._until = begun + took * (1 + SHARE)
        return found
