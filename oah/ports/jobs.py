"""Maintenance jobs: long work that an operator asked for, and deliveries, outside every request.

The row in SQL is the truth: what is to be done, how far it came, who does it. The queue (rq, or none) only carries the
name of a task and the id of its row, may lose both, and is told again by the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from oah.core.model.ids import WorkspaceId
from oah.ports.rows import Page


class JobQueue(Protocol):
    """Where tasks wait for a process that performs them."""

    def enqueue(self, task: str, subject: str, *, delay: timedelta | None = None) -> None:
        """Let ``task`` be performed for the row ``subject``, once for however many calls while it waits.

        Raises Unavailable: the leader repeats it."""
        ...


class UntoldQueue:
    """Carries nothing: the leader finds the rows by itself, a few seconds later."""

    def enqueue(self, task: str, subject: str, *, delay: timedelta | None = None) -> None:
        """Nothing."""


Handler = Callable[[str], timedelta | None]
"""Performs a task for one row, which it reads and locks itself; safe to repeat. Returns when to be called again, None
when the row is done. An exception is retried after a while."""

Handlers = Mapping[str, Handler]


class JobState(StrEnum):
    """Where a job is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """Nothing more will happen."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A row of ``jobs``. ``cursor`` is the work's own: how far it came. ``attempt`` counts who began or took over."""

    id: str
    workspace_id: WorkspaceId | None
    kind: str
    state: JobState
    created_by: str
    created_at: datetime
    arguments: Mapping[str, Any] = field(default_factory=dict)
    total: int = 0
    done: int = 0
    failed: int = 0
    cursor: str | None = None
    result: Mapping[str, Any] | None = None
    error: str | None = None
    attempt: int = 0
    holder: str | None = None
    seen_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    cancel_requested_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobFence:
    """Who writes: every chunk of a job's work carries it into its transaction, and is undone where it is refused."""

    job_id: str
    holder: str


@dataclass(frozen=True, slots=True)
class JobItem:
    """What became of one subject of a job."""

    number: int
    subject: str
    outcome: str
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """Jobs that are open now, and how many ended in a stretch of time; ``until``: where the next one begins."""

    queued: int
    running: int
    ended: Mapping[tuple[str, JobState], int]
    """By kind and state."""
    until: datetime


class JobStore(Protocol):
    """Rows of ``jobs`` and ``job_items``."""

    def create_job(
        self,
        job_id: str,
        kind: str,
        *,
        workspace_id: WorkspaceId | None,
        arguments: Mapping[str, Any],
        total: int,
        by: str,
    ) -> Job: ...
    def job(self, job_id: str, workspace_id: WorkspaceId | None) -> Job:
        """Raises NotFound, also for another workspace's job."""
        ...

    def jobs(
        self,
        workspace_id: WorkspaceId | None,
        *,
        state: JobState | None = None,
        kind: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Job]: ...
    def job_items(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[JobItem]: ...
    def claim_job(self, job_id: str, holder: str, *, stale_for: timedelta) -> Job | None:
        """Take a job that nobody holds, or whose holder was not seen for so long; None: it is over or held."""
        ...

    def touch_job(self, fence: JobFence) -> bool:
        """Seen now; False: another's, or over."""
        ...

    def release_job(self, fence: JobFence) -> None:
        """Nobody holds it; who comes next goes on at its cursor."""
        ...

    def finish_job(
        self, fence: JobFence, state: JobState, *, result: Mapping[str, Any] | None = None, error: str | None = None
    ) -> bool: ...
    def cancel_job(self, job_id: str, workspace_id: WorkspaceId | None, *, by: str) -> Job:
        """A queued one ends now, a held one after its chunk. One that is over stays as it is."""
        ...

    def job_figures(self, *, since: datetime | None) -> JobFigures:
        """``since`` None: no ended ones, only where to begin."""
        ...

    def waiting_jobs(self, *, stale_for: timedelta, limit: int) -> Sequence[str]:
        """Open jobs that nobody has been seen to hold for so long, oldest first."""
        ...
