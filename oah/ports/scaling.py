"""What a controller scales, and where its decisions are kept.

A target's own specification is the size, never what a registry counts. A target is asked to grow by number and to
shrink by name: the victims are empty by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol


class Outcome(StrEnum):
    """What came of a decision at its target."""

    STEADY = "steady"
    """Nothing was to be done."""
    SCALED = "scaled"
    DRAINING = "draining"
    """Those that will go are cordoned and finish their work; the size changes when they are empty."""
    HELD = "held"
    """Wanted, and not done: `detail` says why."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TargetState:
    """`size`: units that the target's specification asks for. `members`: names of workers that it has → what the
    target calls them (pod, process). `settled`: nothing is being started or ended by it now."""

    size: int
    members: Mapping[str, str] = field(default_factory=dict)
    settled: bool = True
    detail: Mapping[str, Any] = field(default_factory=dict)


class ScaleTarget(Protocol):
    """Raises Unavailable (it does not answer, or refuses for now), Broken (it cannot be scaled as configured)."""

    @property
    def name(self) -> str:
        """``none``, ``processes``, ``kubernetes``."""
        ...

    def read(self) -> TargetState: ...
    def choose(self, state: TargetState, idle: Sequence[str], count: int) -> Sequence[str]:
        """Which members would go if it shrank by `count`, when it may prefer `idle` in this order (a StatefulSet always
        takes its highest ordinals)."""
        ...

    def resize(self, state: TargetState, size: int, *, victims: Sequence[str] = ()) -> None:
        """Write the size, against the state that was read (a conflict is Unavailable: read again). `victims`: workers
        that are empty and shall be those that go."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ScaleDecision:
    """A row of ``scale_decisions``."""

    id: str
    at: datetime
    pool: str
    target: str
    holder: str
    current: int
    desired: int
    reason: str
    outcome: Outcome
    inputs: Mapping[str, Any] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)


class ScalingStore(Protocol):
    """Decisions, newest first; bounded by retention."""
