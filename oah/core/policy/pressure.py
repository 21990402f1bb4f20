"""Whether a machine is under pressure: then its worker opens no slots and claims nothing, before the machine suffers.

A pressure begins where a figure reaches its threshold, and ends when the figure has fallen clearly below it, but not
before it has lasted a while: a figure that trembles around the threshold changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum


class Resource(StrEnum):
    """What may be under pressure."""

    MEMORY = "memory"
    LOAD = "load"
    DISK = "disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a machine uses now; None: cannot be measured. ``memory`` and ``disk``: of what there is, 0 to 1. ``load``:
    processes that run or want to, per core."""

    memory: float | None = None
    load: float | None = None
    disk: float | None = None

    def of(self, resource: Resource) -> float | None:
        """One figure."""
        return {Resource.MEMORY: self.memory, Resource.LOAD: self.load, Resource.DISK: self.disk}[resource]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Thresholds in the units of `Usage`; 0: not looked at. ``hysteresis``: the part of its threshold that a figure has
    to fall below it. ``hold``: no pressure is shorter."""

    memory: float = 0.92
    load: float = 8.0
    disk: float = 0.95
    hysteresis: float = 0.05
    hold: timedelta = timedelta(seconds=10)

    def threshold(self, resource: Resource) -> float:
        """Of one figure."""
        return {Resource.MEMORY: self.memory, Resource.LOAD: self.load, Resource.DISK: self.disk}[resource]


@dataclass(frozen=True, slots=True)
class Pressure:
    """What is under pressure, each since a moment of the caller's monotonic clock. True when anything is."""

    since: Mapping[Resource, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.since)

    @property
    def names(self) -> tuple[str, ...]:
        """For people and the registry."""
        return tuple(str(resource) for resource in Resource if resource in self.since)


def judge(usage: Usage, rules: Rules, before: Pressure, *, now: float) -> Pressure:
    """The pressure now. A figure that cannot be measured (any more) is none."""
    since: dict[Resource, float] = {}
    for resource in Resource:
        begun = before.since.get(resource)
        if _pressed(usage.of(resource), rules.threshold(resource), rules, begun=begun, now=now):
            since[resource] = now if begun is None else begun
    return Pressure(since)


def _pressed(figure: float | None, threshold: float, rules: Rules, *, begun: float | None, now: float) -> bool:
    if figure is None or threshold <= 0:
        return False
    if begun is None:
        return figure >= threshold
    if now - begun < rules.hold.total_seconds():
        return True
    return figure >= threshold * (1 - rules.hysteresis)
