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

from oah.core.model.scaling import Going
from oah.ports.rollouts import Order
from oah.ports.rows import Page

NONE = "none"
"""The name of no target: what is decided is shown, and somebody else acts on the figures."""


class Outcome(StrEnum):
    """What came of a decision at its target."""

    BEGUN = "begun"
    """Written down, and being done. It stays so when its leader dies meanwhile: the next one goes on."""
    SCALED = "scaled"
    DRAINING = "draining"
    """Those that will go are cordoned and finish their work; the size changes when they are empty."""
    HELD = "held"
    """Wanted, and not done: `detail` says why."""
    OVERTAKEN = "overtaken"
    """Before it was done a later decision took its place."""
    FAILED = "failed"
    """The target refused, or did not answer: `detail` says what it said."""


@dataclass(frozen=True, slots=True)
class TargetState:
    """`size`: units that the target's specification asks for. `members`: names of workers that it has → what the
    target calls them (pod, process); those that are on their way out already are no members. `settled`: nothing is
    being started or ended by it now. `host`: all members are on this host; None: a name is enough to know a worker."""

    size: int
    members: Mapping[str, str] = field(default_factory=dict)
    settled: bool = True
    host: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


class ScaleTarget(Protocol):
    """Raises Unavailable (it does not answer, or refuses for now), Broken (it cannot be scaled as configured)."""

    @property
    def name(self) -> str:
        """``processes``, ``kubernetes``."""
        ...

    def read(self) -> TargetState: ...
    def choose(self, state: TargetState, idle: Sequence[str], count: int) -> Sequence[str]:
        """Which members would go if its size shrank by `count`, when it may prefer `idle` in this order (a StatefulSet
        always takes its highest ordinals). Units that it asks for and does not have count first."""
        ...

    def resize(self, state: TargetState, size: int, *, victims: Sequence[str] = ()) -> None:
        """Write the size, against the state that was read (a conflict is Unavailable: read again). `victims`: workers
        that are empty and shall be those that go."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDecision:
    """A row of ``scale_decisions``. `current`: the size that the target asked for; `desired`: the one it shall have
    when all that are `going` have gone. `version` changes with every write of the row."""

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
    going: Mapping[str, Going] = field(default_factory=dict)
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDecision:
    """A row to be written."""

    id: str
    pool: str
    target: str
    holder: str
    current: int
    desired: int
    reason: str
    outcome: Outcome
    inputs: Mapping[str, Any] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)
    going: Mapping[str, Going] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionFilter:
    """Which decisions."""

    pool: str | None = None
    cursor: str | None = None
    limit: int = 50


class ScalingStore(Protocol):
    """Decisions; bounded by retention, which leaves open ones (`BEGUN`, `DRAINING`) alone. A pool has one open at most:
    it says who is going, and whoever leads goes on with it."""

    def scale_decisions(self, where: DecisionFilter) -> Page[ScaleDecision]:
        """The newest first. Raises InvalidRequest for a cursor or limit that is none."""
        ...

    def open_decision(self, pool: str) -> ScaleDecision | None: ...
    def add_decision(
        self, decision: NewDecision, *, over: ScaleDecision | None = None, orders: Sequence[Order] = ()
    ) -> ScaleDecision:
        """Write it together with the commands to workers that follow; the open one that was read, `over`, is overtaken
        with it. Raises Conflict (``scaling_taken``) when another leader has written meanwhile: nothing is then."""
        ...

    def change_decision(
        self,
        decision: ScaleDecision,
        *,
        outcome: Outcome,
        detail: Mapping[str, Any],
        going: Mapping[str, Going],
        by: str,
        orders: Sequence[Order] = (),
    ) -> ScaleDecision:
        """The row as it was read, with these, together with the commands that `by` gives. Raises Conflict
        (``scaling_taken``) as above."""
        ...
