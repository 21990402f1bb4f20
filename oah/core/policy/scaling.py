"""How many units of capacity a pool should have: one policy for slots of a worker process and for replicas of a fleet.

A unit is what the caller scales: a slot, or a replica with `slots_per_unit` of them. The answer is a function of what
is seen, of the size now and of the history that the answer before returned; nothing else is remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum


class Reason(StrEnum):
    """Why the answer is what it is."""

    STARTUP = "startup"
    """The first answer goes straight to the suggestion (upwards only)."""
    STEADY = "steady"
    SCALE_UP = "scale_up"
    SCALE_DOWN = "scale_down"
    WINDOW_HOLD = "window_hold"
    """The suggestion has not stood long enough."""
    COOLDOWN_HOLD = "cooldown_hold"
    BLIND_HOLD = "blind_hold"
    """What is seen may be wrong (the registry or a store is away): never a reason to shrink."""
    BOUNDS = "bounds"
    """The size is outside of the minimum and maximum: mended at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """What is seen. Counts are of runs and slots, never of units. `running`: runs that hold a slot. `waiting`: parked
    runs of which an agent lives. `starting`: units asked for that do not report yet. `sure` False: the registry or a
    store did not answer, or answers less than a moment ago for no reason that is known."""

    ready: int = 0
    subagent_ready: int = 0
    running: int = 0
    waiting: int = 0
    slots: int = 0
    idle_slots: int = 0
    starting: int = 0
    oldest_wait: timedelta = timedelta(0)
    wait_p95: timedelta | None = None
    sure: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """`per_unit`: runs, queued and running, that a unit carries. `target_wait`: wanted p95 of waiting in the queue;
    None: not looked at. Windows are samples in a row, cooldowns durations since the last change."""

    minimum: int = 1
    maximum: int = 1
    per_unit: int = 1
    slots_per_unit: int = 1
    subagent_reserve: int = 1
    busy_ratio: float = 0.75
    oldest_wait: timedelta = timedelta(seconds=2)
    target_wait: timedelta | None = None
    up_window: int = 2
    down_window: int = 3
    up_cooldown: timedelta = timedelta(seconds=1)
    down_cooldown: timedelta = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class History:
    """What the last answer wants to be told again. Moments are those of the caller's own monotonic clock."""

    above: int = 0
    """Samples in a row that suggested more."""
    below: int = 0
    last_up: float | None = None
    last_change: float | None = None
    started: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """`desired`: units wanted now; equal to the current size means: write nothing. `suggested`: what the pressures
    alone would have. `pressures`: each by name, in units."""

    desired: int
    suggested: int
    reason: Reason
    history: History
    pressures: Mapping[str, int] = field(default_factory=dict)
