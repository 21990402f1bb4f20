"""Maintenance jobs: asked for, performed in chunks by who holds them, told to the queue again when it lost them.

Each kind of job has a work: a function that does one chunk, in one transaction with the progress that it made. A
process that dies in the middle leaves the last chunk's progress, and whoever takes the job over goes on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from oah.core.model.ids import WorkspaceId
from oah.errors import LeaseError, OahError, Unavailable
from oah.ports.clock import Clock, Ids
from oah.ports.jobs import Job, JobFence, JobQueue, JobState
from oah.ports.store import Store
from oah.ports.telemetry import Telemetry

log = logging.getLogger(__name__)

TASK = "job"
"""The name under which jobs are queued; their handler is ``RunJob``."""
SLICE = timedelta(seconds=5)
"""How long a job may go on before other tasks have their turn."""
AGAIN = timedelta(0)

Work = Callable[[Job, JobFence], bool]
"""Does one chunk of a job and writes its progress in the same transaction (``adapters/sql/jobs.py: advance``); True
when nothing is left. Takes seconds at most. Raises LeaseError ``job_lost`` when the fence refused."""

Works = Mapping[str, Work]
"""Kind of job → its work."""


def ask(
    store: Store,
    queue: JobQueue,
    ids: Ids,
    kind: str,
    *,
    workspace_id: WorkspaceId | None,
    arguments: Mapping[str, Any],
    by: str,
    total: int = 0,
) -> Job:
    """A new job, committed; that the queue hears of it is best effort. Raises InvalidRequest, Unavailable (SQL)."""
    job = store.create_job(ids.new("job"), kind, workspace_id=workspace_id, arguments=arguments, total=total, by=by)
    try:
        queue.enqueue(TASK, job.id)
    except Unavailable as error:
        log.warning("job %s is told to the queue later: %s", job.id, error)
    return job


@dataclass(frozen=True, slots=True)
class RunJob:
    """The handler of jobs. ``holder`` names this process; ``stale_for``: how long a silent holder is believed."""

    store: Store
    works: Works
    clock: Clock
    ids: Ids
    holder: str
    stale_for: timedelta
    going_on: Callable[[], bool] = field(default=lambda: True)

    def __call__(self, job_id: str) -> timedelta | None:
        """Chunks until the job is over, its slice is used up or the process stops. Raises Unavailable."""
        fence = JobFence(job_id, f"{self.holder}/{self.ids.nonce()[:8]}")
        job = self.store.claim_job(job_id, fence.holder, stale_for=self.stale_for)
        if job is None:
            return None
        work = self.works.get(job.kind)
        if work is None:
            self.store.finish_job(fence, JobState.FAILED, error=f"this release knows no job of kind {job.kind}")
            return None
        try:
            return self._perform(job, fence, work)
        except OahError as error:
            self._ended_by(error, fence)
        except Exception as error:
            log.exception("job %s failed", job_id)
            self.store.finish_job(fence, JobState.FAILED, error=f"{type(error).__name__}: {error}")
        return None

    def _perform(self, job: Job, fence: JobFence, work: Work) -> timedelta | None:
        until = self.clock.monotonic() + SLICE.total_seconds()
        while job.holder == fence.holder:
            if job.cancel_requested_at is not None:
                self.store.finish_job(fence, JobState.CANCELLED)
                return None
            if work(job, fence):
                self.store.finish_job(fence, JobState.COMPLETED)
                return None
            job = self.store.job(job.id, None)
            if not self.going_on() or self.clock.monotonic() >= until:
                self.store.release_job(fence)
                return AGAIN
        return None

    def _ended_by(self, error: OahError, fence: JobFence) -> None:
        if isinstance(error, LeaseError) and error.code == "job_lost":
            log.warning("job %s was taken over", fence.job_id)
        elif error.retryable:
            self.store.release_job(fence)
            raise error
        else:
            log.error("job %s failed: %s", fence.job_id, error)
            self.store.finish_job(fence, JobState.FAILED, error=f"{error.code}: {error.message}")


@dataclass(slots=True)
class MeasureJobs:
    """Leader: how many jobs there are, and how those ended that ended while it leads."""

    store: Store
    telemetry: Telemetry
    _since: datetime | None = None

    def __call__(self) -> None:
        """One look. Raises Unavailable."""
        figures = self.store.job_figures(since=self._since)
        self._since = figures.until
        self.telemetry.gauge("oah_jobs_queued", figures.queued)
        self.telemetry.gauge("oah_jobs_running", figures.running)
        for (kind, state), count in figures.ended.items():
            self.telemetry.count("oah_jobs_total", count, kind=kind, outcome=str(state))

    def clear(self) -> None:
        """Another leads now."""
        self._since = None
        self.telemetry.forget("oah_jobs_queued")
        self.telemetry.forget("oah_jobs_running")


Lost = Callable[[], Sequence[str]]
"""Ids of open rows that nobody has been seen to work on for a while."""


@dataclass(frozen=True, slots=True)
class TellAgain:
    """Leader: let the queue hear again of rows that it may have lost. ``lost``: task → rows; repeating is harmless."""

    queue: JobQueue
    lost: Mapping[str, Lost]

    def __call__(self) -> int:
        """One look at each kind of row; how many were told. Raises Unavailable."""
        told = 0
        for task, rows in self.lost.items():
            for subject in rows():
                self.queue.enqueue(task, subject)
                told += 1
        return told
