"""How lanes share the idle slots of a worker when their agents weigh differently.

A claim names only lanes whose agents fit into what is idle, lanes of one weight at a time and each weight in its turn.
Light runs would take every slot that comes free from under a heavy one: when a heavy lane has waited for a while,
nothing lighter is claimed until there is room for one of it. A weight is never more than all slots of the worker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from oah.core.model.lane import Lane

PATIENCE = 5.0
"""Seconds that a lane with ready sessions may find too few idle slots before they are saved for it."""


@dataclass(frozen=True, slots=True)
class Share:
    """One claim: its lanes, and how many sessions of them fit. Without lanes it is for sessions that were parked here:
    their agents are there already."""

    lanes: tuple[Lane, ...]
    want: int


class Shares:
    """Thread safe."""

    def __init__(self, lanes: tuple[Lane, ...], weight: Callable[[str], int], *, slots: int) -> None:
        self._slots = slots
        self._weight = weight
        self._lanes = lanes
        weights = sorted({self.weight(lane.profile) for lane in lanes})
        self._groups = {each: tuple(lane for lane in lanes if self.weight(lane.profile) == each) for each in weights}
        self._lock = threading.Lock()
        self._left: list[int] = []
        self._turn = 0
        self._unmet: dict[int, float] = {}
        self._saved_for: int | None = None
        self.reach: Callable[[], int] = lambda: slots
        """How many slots could be idle at once: none are saved for what would not fit then either."""

    def weight(self, profile: str) -> int:
        """How many slots an agent of this profile takes here."""
        return min(max(self._weight(profile), 1), self._slots)

    @property
    def weights(self) -> dict[str, int]:
        """Of the profiles whose agents take more than one."""
        found = {lane.profile: self.weight(lane.profile) for lane in self._lanes}
        return {profile: weight for profile, weight in found.items() if weight > 1}

    @property
    def mixed(self) -> bool:
        """Whether lanes weigh differently."""
        return len(self._groups) > 1

    @property
    def heaviest(self) -> int:
        """The most that one agent takes."""
        return max(self._groups, default=1)

    @property
    def saved_for(self) -> tuple[Lane, ...]:
        """The lanes that slots are saved for."""
        with self._lock:
            return () if self._saved_for is None else self._groups[self._saved_for]

    @property
    def left(self) -> bool:
        """Whether lanes of another weight are still to be looked at, since the last ``begin``."""
        return bool(self._left)

    def fitting(self, idle: int) -> tuple[Lane, ...]:
        """The lanes of which a session could be started now."""
        with self._lock:
            if self._saved_for is None and self.heaviest <= idle:
                return self._lanes
            fit = {weight for weight in self._groups if self._may(weight, idle)}
        return tuple(lane for lane in self._lanes if self.weight(lane.profile) in fit)

    def begin(self) -> None:
        """There may be something in any lane."""
        with self._lock:
            weights = list(self._groups)
            self._turn += 1
            start = self._turn % len(weights) if weights else 0
            self._left = weights[start:] + weights[:start]

    def next(self, idle: int) -> Share:
        """What to claim, of the weights that are left."""
        with self._lock:
            if not self._left and not self.mixed:
                self._left = list(self._groups)
            while self._left:
                weight = self._left.pop(0)
                if self._may(weight, idle):
                    self._unmet.pop(weight, None)
                    if self._saved_for == weight:
                        self._saved_for = None
                    return Share(self._groups[weight], idle // weight)
        return Share((), idle)

    def seen(self, ready: Mapping[Lane, int], *, now: float) -> None:
        """So many sessions are ready; called every second or so where lanes weigh differently. ``now``: monotonic. A
        weight that has not had its turn since counts as unmet, also while it would fit: others may be faster."""
        with self._lock:
            for weight, lanes in self._groups.items():
                if any(ready.get(lane, 0) for lane in lanes):
                    self._unmet.setdefault(weight, now)
                else:
                    self._unmet.pop(weight, None)
            due = [weight for weight, since in self._unmet.items() if now - since >= PATIENCE]
            if self._saved_for not in self._unmet:
                self._saved_for = None
            if self._saved_for is None and due:
                self._saved_for = min(due, key=lambda weight: self._unmet[weight])

    def _may(self, weight: int, idle: int) -> bool:
        saved = self._saved_for
        return weight <= idle and (saved in (None, weight) or saved > self.reach())
