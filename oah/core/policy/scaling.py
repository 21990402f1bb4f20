"""How many units of capacity a pool should have: one policy for slots of a worker process and for replicas of a fleet.

A unit is what the caller scales: a slot, or a replica with `slots_per_unit` of them. The answer is a function of what
is seen, of the size now and of the history that the answer before returned; nothing else is remembered.

The signal is queued plus running work, never the backlog alone: a backlog of nothing with everybody busy is no reason
to shrink. What is counted may be acted on when the registry is away, upwards; what is measured (waiting times against
busy slots) may not, and nothing that is seen then makes a pool smaller. A size that proved too small is not tried
again at the same load for `memory`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    memory: timedelta = timedelta(minutes=10)
    """How long after a size proved too small the pool keeps from shrinking below `busy_ratio`."""


@dataclass(frozen=True, slots=True)
class History:
    """What the last answer wants to be told again. Moments are those of the caller's own monotonic clock."""

    above: int = 0
    """Samples in a row that suggested more."""
    lately: tuple[int, ...] = ()
    """The suggestions of the last `down_window` samples that were sure: a shrink goes to the largest of them."""
    last_up: float | None = None
    last_change: float | None = None
    strained: float | None = None
    """When a size last proved too small: waiting times made the pool grow beyond what counting alone suggests, or it
    grew again soon after a shrink."""
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


MOST_MORE_BY_WAITING = 0.5
"""Waiting times add at most this part of the size at once: they follow a change late, so a large answer overshoots."""


def decide(signals: Signals, rules: Rules, *, current: int, history: History, now: float) -> Decision:
    """The size that is wanted. `current`: what the target is asked for already, units on their way in included and
    units on their way out (draining) not. `now`: seconds of the clock that `history` was written by."""
    history = _anchored(history, now)
    pressures = _pressures(signals, rules, current=current, history=history, now=now)
    suggested = _bounded(max(pressures.values(), default=0), rules)
    desired, reason, after = _damped(signals, rules, current, suggested, history, now)
    if desired > current and (suggested > _bounded(_counted(pressures), rules) or _regretted(history, rules, now)):
        after = replace(after, strained=now)
    return Decision(desired, suggested, reason, replace(after, started=True), pressures)


def _bounded(units: int, rules: Rules) -> int:
    return min(max(units, rules.minimum), rules.maximum)


def _counted(pressures: Mapping[str, int]) -> int:
    return max(units for name, units in pressures.items() if name not in ("ageing", "wait"))


def _regretted(history: History, rules: Rules, now: float) -> bool:
    """The change before this growth was a shrink, not long ago."""
    shrunk = history.last_change is not None and history.last_change != history.last_up
    return shrunk and not _over(history.last_change, rules.memory, now)


def _anchored(history: History, now: float) -> History:
    """A clock that went back (another process's) holds nothing for longer than one cooldown."""

    def at_most(moment: float | None) -> float | None:
        return None if moment is None else min(moment, now)

    return replace(
        history,
        last_up=at_most(history.last_up),
        last_change=at_most(history.last_change),
        strained=at_most(history.strained),
    )


def _pressures(signals: Signals, rules: Rules, *, current: int, history: History, now: float) -> dict[str, int]:
    """Each reason for a size by its name, in units."""
    demand = signals.ready + signals.running
    units = {
        "queue": math.ceil(signals.ready / rules.per_unit),
        "saturation": math.ceil(demand / rules.per_unit),
        "running": math.ceil(signals.running / rules.slots_per_unit),
        "alive": 1 if demand or signals.waiting or signals.subagent_ready else 0,
    }
    if signals.subagent_ready > 0:
        units["subagent"] = math.ceil((signals.running + rules.subagent_reserve) / rules.slots_per_unit)
    unserved = signals.ready - signals.starting * rules.slots_per_unit  # those on their way will take the rest
    if signals.sure and unserved > 0 and _busy_ratio(signals, rules) >= rules.busy_ratio:
        units |= _waiting_times(signals, rules, current)
    if not _over(history.strained, rules.memory, now) and rules.busy_ratio > 0:
        roomy = math.ceil(signals.running / (rules.slots_per_unit * rules.busy_ratio))
        units["memory"] = min(current, roomy)
    return units


def _waiting_times(signals: Signals, rules: Rules, current: int) -> dict[str, int]:
    """Only while somebody waits now: the percentile alone is of the last minutes and outlives its cause."""
    units = {}
    if signals.oldest_wait >= rules.oldest_wait:
        units["ageing"] = current + 1
    target = rules.target_wait
    if target and signals.wait_p95 is not None and signals.wait_p95 > target and signals.oldest_wait > target:
        more = math.ceil(current * min(signals.wait_p95 / target - 1, MOST_MORE_BY_WAITING))
        one_each = math.ceil((signals.ready + signals.running) / rules.slots_per_unit)  # slots beyond that serve nobody
        units["wait"] = current + max(1, min(more, one_each - current))
    return units


def _busy_ratio(signals: Signals, rules: Rules) -> float:
    """Of all capacity that is there or on its way; 0 without any (counting alone says how much to begin with)."""
    capacity = signals.slots + signals.starting * rules.slots_per_unit
    return min(signals.running, signals.slots - signals.idle_slots) / capacity if capacity > 0 else 0.0


def _over(since: float | None, duration: timedelta, now: float) -> bool:
    return since is None or now - since >= duration.total_seconds()


def _damped(
    signals: Signals, rules: Rules, current: int, suggested: int, history: History, now: float
) -> tuple[int, Reason, History]:
    lately = (*history.lately, suggested)[-max(1, rules.down_window) :] if signals.sure else ()
    seen = replace(history, above=history.above + 1 if suggested > current else 0, lately=lately)
    grown = replace(seen, above=0, last_up=now, last_change=now)
    if current < rules.minimum:
        return suggested, Reason.BOUNDS, grown
    if suggested > current:
        hold = _holds_growth(rules, current, seen, now)
        return (current, hold, seen) if hold else (suggested, _growth(history), grown)
    if suggested == current:
        return current, Reason.STEADY, seen
    if current > rules.maximum and signals.sure:
        return rules.maximum, Reason.BOUNDS, replace(seen, last_change=now)
    hold = _holds_shrink(signals, rules, current, seen, now)
    return (current, hold, seen) if hold else (max(lately), Reason.SCALE_DOWN, replace(seen, last_change=now))


def _growth(history: History) -> Reason:
    return Reason.SCALE_UP if history.started else Reason.STARTUP


def _holds_growth(rules: Rules, current: int, seen: History, now: float) -> Reason | None:
    if not seen.started:
        return None
    if seen.above < rules.up_window and current > 0:  # with nobody there to serve it, one sample is enough
        return Reason.WINDOW_HOLD
    return None if _over(seen.last_up, rules.up_cooldown, now) else Reason.COOLDOWN_HOLD


def _holds_shrink(signals: Signals, rules: Rules, current: int, seen: History, now: float) -> Reason | None:
    if not signals.sure:
        return Reason.BLIND_HOLD
    if len(seen.lately) < rules.down_window or max(seen.lately) >= current:
        return Reason.WINDOW_HOLD
    return None if _over(seen.last_change, rules.down_cooldown, now) else Reason.COOLDOWN_HOLD
