"""Requeue by hand: ended runs become eligible again, one, many by id, or all that a filter finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.run import RecoveryState, Run, RunStatus
from oah.ports.jobs import JobFence
from oah.ports.rows import Accepted


class RequeueOutcome(StrEnum):
    """What became of one run."""

    REQUEUED = "requeued"
    INVALID_STATUS = "invalid_status"
    NOT_FOUND = "not_found"
    SESSION_CLOSED = "session_closed"
    WAITING = "waiting"
    """Not yet its turn (items of a job)."""


@dataclass(frozen=True, slots=True)
class Requeued:
    """The answer for one run; ``accepted`` when it waits again, ``run`` as it was found otherwise."""

    run_id: RunId
    outcome: RequeueOutcome
    accepted: Accepted | None = None
    run: Run | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueFilter:
    """Which ended runs. ``workspace_id`` None: all. ``since`` and ``until`` are about when they ended."""

    workspace_id: WorkspaceId | None = None
    session_id: SessionId | None = None
    agent: str | None = None
    status: tuple[RunStatus, ...] = (RunStatus.FAILED, RunStatus.TIMED_OUT)
    error_code: str | None = None
    recovery_state: RecoveryState | None = None
    created_after: datetime | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class RequeueCount:
    """What a requeue would take: how many, and the first of them."""

    total: int
    sample: Sequence[Run]


class RequeueStore(Protocol):
    """Putting ended runs back. Each leaves a step, an event and a row of the audit."""

    def requeue(
        self, run_id: RunId, workspace_id: WorkspaceId | None, *, by: str, reason: str | None = None
    ) -> Accepted:
        """A terminal run becomes eligible now with a new position; counters restart. Conflict
        ``run_requeue_invalid_status`` or ``session_closed`` otherwise."""
        ...

    def requeue_runs(
        self,
        run_ids: Sequence[RunId],
        workspace_id: WorkspaceId | None,
        *,
        by: str,
        reason: str | None = None,
        dry_run: bool = False,
    ) -> list[Requeued]:
        """Many in one transaction, those of one session in their old order; answers in the order given."""
        ...

    def count_requeue(self, where: RequeueFilter, *, sample: int = 20) -> RequeueCount: ...
    def list_requeue(self, fence: JobFence, where: RequeueFilter, *, last: str, limit: int = 5_000) -> None:
        """Write the next page of what the filter finds into the job's items, sessions in id order and runs in the
        order of their places: runs that had ended when the job was asked for. The job's cursor goes on; it is ``last``
        when there is no more."""
        ...

    def list_requeue_of(
        self, fence: JobFence, run_ids: Sequence[RunId], workspace_id: WorkspaceId | None, *, last: str
    ) -> None:
        """The same for runs by id, all at once; unknown ones stand at the end."""
        ...

    def requeue_items(
        self, fence: JobFence, workspace_id: WorkspaceId | None, *, by: str, reason: str | None, limit: int = 100
    ) -> list[Accepted] | None:
        """Requeue the job's next items and write what became of each, in one transaction; None: there are no more.
        Raises LeaseError ``job_lost``."""
        ...

    def job_outcomes(self, job_id: str) -> Mapping[str, int]:
        """How many items of a job came to what."""
        ...
