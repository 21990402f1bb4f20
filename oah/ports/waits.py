"""What SQL knows about why runs wait, and about what has been waiting, silent or unheeded for too long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from oah.core.model.group import Pause
from oah.core.model.ids import RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.session import HoldReason
from oah.core.policy.waiting import Before, Cap


@dataclass(frozen=True, slots=True)
class WaitFacts:
    """Of one queued run: its session, what runs or waits before it, and caps and pauses that concern it."""

    lane: Lane
    deferred: bool
    due_at: datetime | None
    retried: bool
    failed_attempts: int
    recovery_attempts: int
    holds: Mapping[HoldReason, datetime | None]
    before: Before | None
    caps: tuple[Cap, ...] = ()
    """Of its workspace, its profile, all, as far as there are any."""
    pause: Pause | None = None
    """Of a group that it belongs to; the widest first."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """One thing that should have moved. ``age``: for how long it has not."""

    session_id: SessionId
    run_id: RunId | None
    worker_id: WorkerId | None
    age: timedelta


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What did not move; each list is bounded, the longest first."""

    silent: tuple[Stuck, ...] = ()
    """Owners that have marked nothing for more than a lease: recovery should have moved them."""
    unheeded: tuple[Stuck, ...] = ()
    """Active runs that somebody asked to stop, longer ago than the ladder takes."""
    unkillable: tuple[Stuck, ...] = ()
    """Sessions held because a process of theirs could not be killed."""
    waiting: tuple[Stuck, ...] = ()
    """Eligible runs that have waited longer than asked for; looked for among the 10,000 oldest queued ones."""
    undelivered: tuple[Stuck, ...] = ()
    """Sessions whose agent could be given a message that has been queued for longer than that, or could have been, had
    not too many wakes failed."""
    truncated: frozenset[str] = field(default_factory=frozenset)
    """Names of lists that would have been longer."""


class WaitStore(Protocol):
    """Reads only, each by an index."""

    def waits(self, runs: Sequence[RunId]) -> dict[RunId, WaitFacts]:
        """Of those of the runs that are queued; three statements, whatever their number; one more where caps stand."""
        ...

    def diagnosis(
        self,
        workspace_id: WorkspaceId | None,
        *,
        lease: timedelta,
        unheeded_for: timedelta,
        waiting_for: timedelta,
        limit: int,
    ) -> Diagnosis:
        """Of a workspace, or of all."""
        ...
