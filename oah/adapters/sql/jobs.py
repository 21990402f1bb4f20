"""Rows of maintenance jobs: taken by compare-and-set, written by who holds them, in the transaction of their work."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, case, func, insert, or_, select, update

from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.audits import entry, record
from oah.adapters.sql.columns import MICROSECOND, age_us, later, now
from oah.adapters.sql.governance_tables import job_items
from oah.adapters.sql.governance_tables import jobs as table
from oah.adapters.sql.pages import paged
from oah.adapters.sql.text import cleaned_or_none, dumped, require_sound
from oah.core.model.ids import WorkspaceId
from oah.errors import LeaseError, NotFound
from oah.ports.jobs import Job, JobFence, JobFigures, JobItem, JobState
from oah.ports.store import Page

OPEN = (JobState.QUEUED.value, JobState.RUNNING.value)
ERROR_CHARACTERS = 2_000
LATENESS = timedelta(seconds=3)
"""Of a commit, at most: an end is counted after it."""


def advance(
    connection: Connection,
    fence: JobFence,
    *,
    done: int = 0,
    failed: int = 0,
    total: int = 0,
    cursor: str | None = None,
    items: Iterable[JobItem] = (),
) -> None:
    """Write how far a job came, in the transaction of the chunk that was done. Counts are added.

    Raises LeaseError (``job_lost``) when somebody else holds the job: the chunk must be rolled back. Take it first and
    the row stays locked, so that nobody can take the job over while the chunk is written.
    """
    changed: dict[str, Any] = {
        "done": table.c.done + done,
        "failed": table.c.failed + failed,
        "total": table.c.total + total,
        "seen_at": now(),
    }
    if cursor is not None:
        changed["cursor"] = cursor
    held = connection.execute(
        update(table)
        .where(table.c.id == fence.job_id, table.c.holder == fence.holder, table.c.state == JobState.RUNNING.value)
        .values(**changed)
    )
    if not held.rowcount:
        raise LeaseError(f"job {fence.job_id} is another's", code="job_lost")
    rows = [
        {"job_id": fence.job_id, "number": item.number, "subject": item.subject, "outcome": item.outcome}
        | {"detail": cleaned_or_none(item.detail)}
        for item in items
    ]
    if rows:
        connection.execute(insert(job_items), rows)


class Jobs(Aggregate):
    """The aggregate of maintenance jobs."""

    def create_job(
        self,
        job_id: str,
        kind: str,
        *,
        workspace_id: WorkspaceId | None,
        arguments: Mapping[str, Any],
        total: int,
        by: str,
    ) -> Job:
        """A queued one. Raises InvalidRequest for arguments that cannot be stored."""
        require_sound(by=by)
        row = {"id": job_id, "kind": kind, "workspace_id": workspace_id, "total": total, "created_by": by}
        with self._database.write() as connection:
            kept = json.loads(dumped("arguments", arguments))
            connection.execute(insert(table).values(**row, arguments=kept, created_at=now()))
            return _job(connection, job_id, None)

    def job(self, job_id: str, workspace_id: WorkspaceId | None) -> Job:
        """Raises NotFound, also for another workspace's job."""
        with self._database.read() as connection:
            return _job(connection, job_id, workspace_id)

    def jobs(
        self,
        workspace_id: WorkspaceId | None,
        *,
        state: JobState | None = None,
        kind: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Job]:
        """Newest first."""
        statement = select(table)
        for column, value in ((table.c.workspace_id, workspace_id), (table.c.state, state), (table.c.kind, kind)):
            if value is not None:
                statement = statement.where(column == value)
        with self._database.read() as connection:
            return paged(
                connection, statement, table, _made, lambda job: (job.created_at, job.id), cursor=cursor, limit=limit
            )

    def job_items(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[JobItem]:
        """In their order."""
        statement = (
            select(job_items.c.number, job_items.c.subject, job_items.c.outcome, job_items.c.detail)
            .where(job_items.c.job_id == job_id, job_items.c.number > after)
            .order_by(job_items.c.number)
            .limit(limit)
        )
        with self._database.read() as connection:
            return [JobItem(*row) for row in connection.execute(statement)]

    def claim_job(self, job_id: str, holder: str, *, stale_for: timedelta) -> Job | None:
        """By compare-and-set: only a job that is open, and that nobody holds or whose holder is silent."""
        stale = age_us(table.c.seen_at) > stale_for // MICROSECOND
        anew = or_(table.c.state == JobState.QUEUED.value, table.c.holder.is_not(None))
        statement = (
            update(table)
            .where(table.c.id == job_id, table.c.state.in_(OPEN))
            .where(or_(table.c.holder.is_(None), table.c.seen_at.is_(None), stale))
            .values(
                state=JobState.RUNNING.value,
                holder=holder,
                seen_at=now(),
                started_at=func.coalesce(table.c.started_at, now()),
                attempt=table.c.attempt + case((anew, 1), else_=0),
            )
        )
        with self._database.write() as connection:
            if not connection.execute(statement).rowcount:
                return None
            return _job(connection, job_id, None)

    def touch_job(self, fence: JobFence) -> bool:
        """Seen now; False: another's, or over."""
        with self._database.write() as connection:
            return bool(connection.execute(_held(fence).values(seen_at=now())).rowcount)

    def release_job(self, fence: JobFence) -> None:
        """Nobody holds it. ``seen_at`` stays: the leader offers it again after a while only."""
        with self._database.write() as connection:
            connection.execute(_held(fence).values(holder=None, seen_at=now()))

    def finish_job(
        self, fence: JobFence, state: JobState, *, result: Mapping[str, Any] | None = None, error: str | None = None
    ) -> bool:
        """False where the fence refused."""
        text = cleaned_or_none(error)
        values = {"state": state.value, "result": result, "error": text and text[:ERROR_CHARACTERS]}
        with self._database.write() as connection:
            return bool(
                connection.execute(_held(fence).values(**values, holder=None, seen_at=now(), ended_at=now())).rowcount
            )

    def cancel_job(self, job_id: str, workspace_id: WorkspaceId | None, *, by: str) -> Job:
        """Raises NotFound."""
        require_sound(by=by)
        with self._database.write() as connection:
            if (job := _job(connection, job_id, workspace_id)).state.over or job.cancel_requested_at:
                return job
            unheld = table.c.holder.is_(None)
            connection.execute(
                update(table)
                .where(table.c.id == job_id, table.c.state.in_(OPEN), unheld)
                .values(state=JobState.CANCELLED.value, cancel_requested_at=now(), ended_at=now())
            )
            connection.execute(
                update(table)
                .where(table.c.id == job_id, table.c.state.in_(OPEN), table.c.cancel_requested_at.is_(None))
                .values(cancel_requested_at=now())
            )
            ended = _job(connection, job_id, workspace_id)
            if ended.cancel_requested_at is not None:
                more = {"kind": ended.kind, "workspace_id": ended.workspace_id}
                record(connection, [entry(by, "job.cancelled", job_id, more)])
            return ended

    def job_figures(self, *, since: datetime | None) -> JobFigures:
        """Up to a little before now: what ended at a moment may be committed a little later."""
        still = select(table.c.state, func.count()).where(table.c.state.in_(OPEN)).group_by(table.c.state)
        ended: dict[tuple[str, JobState], int] = {}
        with self._database.read() as connection:
            until = connection.execute(select(later(-(LATENESS // MICROSECOND)))).scalar_one()
            found = {row[0]: int(row[1]) for row in connection.execute(still)}
            if since is not None:
                over = (
                    select(table.c.kind, table.c.state, func.count())
                    .where(table.c.ended_at > since, table.c.ended_at <= until)
                    .group_by(table.c.kind, table.c.state)
                )
                ended = {(kind, JobState(state)): int(count) for kind, state, count in connection.execute(over)}
        queued, running = (found.get(state, 0) for state in OPEN)
        return JobFigures(queued=queued, running=running, ended=ended, until=until)

    def waiting_jobs(self, *, stale_for: timedelta, limit: int) -> list[str]:
        """Open jobs that nobody has been seen to hold for so long, oldest first."""
        last = func.coalesce(table.c.seen_at, table.c.created_at)
        statement = (
            select(table.c.id)
            .where(table.c.state.in_(OPEN), age_us(last) > stale_for // MICROSECOND)
            .order_by(table.c.created_at)
            .limit(limit)
        )
        with self._database.read() as connection:
            return list(connection.execute(statement).scalars())


def _held(fence: JobFence) -> Any:
    return update(table).where(
        table.c.id == fence.job_id, table.c.holder == fence.holder, table.c.state == JobState.RUNNING.value
    )


def _job(connection: Connection, job_id: str, workspace_id: WorkspaceId | None) -> Job:
    row = connection.execute(select(table).where(table.c.id == job_id)).first()
    if row is None or (workspace_id is not None and row.workspace_id != workspace_id):
        raise NotFound(f"no job {job_id}")
    return _made(row)


def _made(row: Any) -> Job:
    values = dict(row._mapping)
    return Job(**{**values, "state": JobState(row.state), "arguments": row.arguments or {}})
