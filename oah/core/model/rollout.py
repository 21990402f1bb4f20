"""A rolling restart: every worker of a pool is drained and started again, one batch after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from oah.core.model.drain import Drain
from oah.core.model.ids import WorkerId


class RolloutState(StrEnum):
    """``running`` → one of the others, which are final."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    """A worker did not end, or its successor was not healthy in time. Those not restarted yet were left alone."""
    ABORTED = "aborted"
    """An operator wanted no more of it."""

    @property
    def open(self) -> bool:
        """Whether it goes on."""
        return self is RolloutState.RUNNING


class Stage(StrEnum):
    """Where one worker stands: ``pending`` → ``draining`` → ``starting`` → ``settling`` → ``done``."""

    PENDING = "pending"
    DRAINING = "draining"
    """It finishes its runs, and ends."""
    STARTING = "starting"
    """It is gone; a healthy successor is waited for."""
    SETTLING = "settling"
    """Its successor serves; it must go on to for a while."""
    DONE = "done"
    SKIPPED = "skipped"
    """There was nothing to restart; ``reason`` says why."""
    FAILED = "failed"
    RELEASED = "released"
    """The rollout ended while it drained: the drain was taken back."""

    @property
    def under_way(self) -> bool:
        """It takes a place in the batch."""
        return self in (Stage.DRAINING, Stage.STARTING, Stage.SETTLING)


@dataclass(frozen=True, slots=True)
class Member:
    """One worker, as it was when the rollout began. Its successor is the one of the same name on the same host."""

    worker_id: WorkerId
    name: str
    host: str
    version: str
    profiles: tuple[str, ...]
    cordoned: bool = False
    """It was cordoned, and not by an operator for its name: it is again should the rollout be taken back."""
    stage: Stage = Stage.PENDING
    since: datetime | None = None
    """When it came to this stage."""
    told_at: datetime | None = None
    """When it was last told to drain; before, when it was first seen to be drained by somebody else."""
    gone_at: datetime | None = None
    """When it was first seen to be gone: its successor's time begins."""
    successor: WorkerId | None = None
    successor_version: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRules:
    """What was asked for. ``version``: successors must be of this one; None: of any."""

    batch: int = 1
    drain: Drain = field(default_factory=Drain)
    settle: timedelta = timedelta(seconds=5)
    """How long a successor must serve before it counts as healthy."""
    health: timedelta = timedelta(seconds=120)
    """How long a successor has to come up."""
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Rollout:
    """A row of ``rollouts``. ``revision``: for compare-and-set."""

    id: str
    pool: str
    rules: RolloutRules
    members: tuple[Member, ...]
    created_by: str
    created_at: datetime
    updated_at: datetime
    state: RolloutState = RolloutState.RUNNING
    reason: str | None = None
    """Why somebody wanted it."""
    error: str | None = None
    """Why it failed, or was aborted."""
    ended_at: datetime | None = None
    revision: int = 0

    def count(self, stages: Sequence[Stage]) -> int:
        """How many of its workers stand there."""
        return sum(1 for member in self.members if member.stage in stages)
