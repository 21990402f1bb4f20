"""Requeue by hand: one run, some, or all that a job has listed.

A job first writes down what it is about to do, as its items, so that what fails again meanwhile is not taken twice;
then it does them in their order, as many at a time as one transaction should.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, and_, bindparam, func, insert, or_, select, update

from oah.adapters.sql.aggregate import Aggregate, Transaction
from oah.adapters.sql.governance_tables import job_items, jobs
from oah.adapters.sql.jobs import advance
from oah.adapters.sql.put_back import Wish, judged, put_back, queue_again, states_of
from oah.adapters.sql.rows import run_of
from oah.adapters.sql.runs import EXCERPTS
from oah.adapters.sql.tables import runs, sessions
from oah.adapters.sql.text import require_sound
from oah.core.model.ids import RunId, WorkspaceId
from oah.core.model.run import Run
from oah.core.model.session import SessionState
from oah.errors import NotFound
from oah.ports.jobs import JobFence
from oah.ports.requeue import RequeueCount, Requeued, RequeueFilter, RequeueOutcome
from oah.ports.store import Accepted

ENDED = ("completed", "failed", "cancelled", "timed_out")


class Requeues(Aggregate):
    """The aggregate of requeues."""

    def requeue(
        self, run_id: RunId, workspace_id: WorkspaceId | None, *, by: str, reason: str | None = None
    ) -> Accepted:
        """Raises NotFound, Conflict."""
        require_sound(by=by, reason=reason)
        with self._database.read() as connection:
            found = _found(connection, [run_id], workspace_id).get(run_id)
        if found is None:
            raise NotFound(f"no run {run_id}")
        with self._transaction([found.session_id]) as transaction:
            run = _found(transaction.connection, [run_id], workspace_id).get(run_id)
            if run is None:
                raise NotFound(f"no run {run_id}")
            return queue_again(transaction, run, by=by, reason=reason)

    def requeue_runs(
        self,
        run_ids: Sequence[RunId],
        workspace_id: WorkspaceId | None,
        *,
        by: str,
        reason: str | None = None,
        dry_run: bool = False,
    ) -> list[Requeued]:
        """In one transaction; what cannot be put back is its own answer."""
        require_sound(by=by, reason=reason)
        wanted = list(dict.fromkeys(run_ids))
        with self._database.read() as connection:
            found = _found(connection, wanted, workspace_id)
            if dry_run:
                theirs = select(sessions.c.id, sessions.c.state)
                rows = connection.execute(theirs.where(sessions.c.id.in_([run.session_id for run in found.values()])))
                states = {row.id: SessionState(row.state) for row in rows}
                return [judged(run_id, found.get(run_id), states) for run_id in wanted]
        with self._transaction(run.session_id for run in found.values()) as transaction:
            done = _requeue(transaction, wanted, workspace_id, Wish(by, reason))
        return [done[run_id] for run_id in wanted]

    def count_requeue(self, where: RequeueFilter, *, sample: int = 20) -> RequeueCount:
        """In the order in which they would be put back."""
        with self._database.read() as connection:
            total = connection.execute(_matching(select(func.count()), where)).scalar_one()
            first = _matching(select(*EXCERPTS), where).order_by(runs.c.session_id, runs.c.position).limit(sample)
            return RequeueCount(int(total), [run_of(row) for row in connection.execute(first)])

    def list_requeue(self, fence: JobFence, where: RequeueFilter, *, last: str, limit: int = 5_000) -> None:
        """By keyset over (session, position)."""
        with self._database.write() as connection:
            job = connection.execute(select(jobs).where(jobs.c.id == fence.job_id)).one()
            statement = _matching(select(runs.c.id, runs.c.session_id, runs.c.position), where).where(
                runs.c.ended_at <= job.created_at
            )
            if job.cursor:
                position, session_id = job.cursor.split(" ", 1)
                behind = and_(runs.c.session_id == session_id, runs.c.position > int(position))
                statement = statement.where(or_(runs.c.session_id > session_id, behind))
            rows = connection.execute(statement.order_by(runs.c.session_id, runs.c.position).limit(limit)).all()
            cursor = last if len(rows) < limit else f"{rows[-1].position} {rows[-1].session_id}"
            advance(connection, fence, cursor=cursor, total=len(rows))
            _write_items(connection, fence.job_id, job.total, [row.id for row in rows])

    def list_requeue_of(
        self, fence: JobFence, run_ids: Sequence[RunId], workspace_id: WorkspaceId | None, *, last: str
    ) -> None:
        """At once."""
        wanted = dict.fromkeys(run_ids)
        with self._database.write() as connection:
            statement = select(runs.c.id).where(runs.c.id.in_(list(wanted)))
            if workspace_id is not None:
                statement = statement.where(runs.c.workspace_id == workspace_id)
            known = connection.execute(statement.order_by(runs.c.session_id, runs.c.position)).scalars().all()
            unknown = wanted.keys() - set(known)
            advance(connection, fence, cursor=last, total=len(wanted))
            _write_items(connection, fence.job_id, 0, [*known, *sorted(unknown)])

    def requeue_items(
        self, fence: JobFence, workspace_id: WorkspaceId | None, *, by: str, reason: str | None, limit: int = 100
    ) -> list[Accepted] | None:
        """The items that wait, in their order."""
        waiting = (
            select(job_items.c.number, job_items.c.subject)
            .where(job_items.c.job_id == fence.job_id, job_items.c.number > _reached(fence))
            .order_by(job_items.c.number)
            .limit(limit)
        )
        with self._database.read() as connection:
            items = connection.execute(waiting).all()
            found = _found(connection, [row.subject for row in items], workspace_id)
        if not items:
            return None
        with self._transaction(run.session_id for run in found.values()) as transaction:
            subjects = [RunId(row.subject) for row in items]
            done = _requeue(transaction, subjects, workspace_id, Wish(by, reason, fence.job_id))
            answers = [done[run_id] for run_id in subjects]
            accepted = [each.accepted for each in answers if each.accepted is not None]
            transaction.connection.execute(
                update(job_items)
                .where(job_items.c.job_id == fence.job_id, job_items.c.number == bindparam("item"))
                .values(outcome=bindparam("became")),
                [{"item": row.number, "became": each.outcome.value} for row, each in zip(items, answers, strict=True)],
            )
            # Last: it refuses, and undoes all of it, when somebody else has taken the job over.
            advance(transaction.connection, fence, done=len(accepted), failed=len(items) - len(accepted))
        return accepted

    def job_outcomes(self, job_id: str) -> Mapping[str, int]:
        """By the items."""
        statement = select(job_items.c.outcome, func.count()).where(job_items.c.job_id == job_id)
        with self._database.read() as connection:
            return {row[0]: int(row[1]) for row in connection.execute(statement.group_by(job_items.c.outcome))}


def _reached(fence: JobFence) -> Any:
    """Items are done in their order, so the job's counts say how far it came."""
    return select(jobs.c.done + jobs.c.failed).where(jobs.c.id == fence.job_id).scalar_subquery()


def _write_items(connection: Connection, job_id: str, before: int, subjects: Sequence[str]) -> None:
    rows = [
        {"job_id": job_id, "number": number, "subject": subject, "outcome": RequeueOutcome.WAITING.value}
        for number, subject in enumerate(subjects, start=before + 1)
    ]
    if rows:
        connection.execute(insert(job_items), rows)


def _matching(statement: Select[Any], where: RequeueFilter) -> Select[Any]:
    statement = statement.select_from(runs).where(
        runs.c.status.in_([status.value for status in where.status if status.terminal])
    )
    for column, value in (
        (runs.c.workspace_id, where.workspace_id),
        (runs.c.session_id, where.session_id),
        (runs.c.error_code, where.error_code),
        (runs.c.recovery_state, where.recovery_state),
    ):
        if value is not None:
            statement = statement.where(column == value)
    if where.created_after is not None:
        statement = statement.where(runs.c.created_at > where.created_after)
    if where.since is not None:
        statement = statement.where(runs.c.ended_at >= where.since)
    if where.until is not None:
        statement = statement.where(runs.c.ended_at <= where.until)
    if where.agent is not None:
        theirs = select(sessions.c.id).where(sessions.c.id == runs.c.session_id, sessions.c.agent == where.agent)
        statement = statement.where(theirs.exists())
    return statement


def _found(connection: Connection, run_ids: Sequence[str], workspace_id: WorkspaceId | None) -> dict[RunId, Run]:
    """Those of the workspace, as excerpts."""
    statement = select(*EXCERPTS).where(runs.c.id.in_(run_ids))
    if workspace_id is not None:
        statement = statement.where(runs.c.workspace_id == workspace_id)
    return {run.id: run for run in map(run_of, connection.execute(statement))} if run_ids else {}


def _requeue(
    transaction: Transaction, run_ids: Sequence[RunId], workspace_id: WorkspaceId | None, wish: Wish
) -> dict[RunId, Requeued]:
    """Judge each under the lock, then put back all that may be, in their order inside each session."""
    found = _found(transaction.connection, run_ids, workspace_id)
    states = states_of(transaction)
    done = {run_id: judged(run_id, found.get(run_id), states) for run_id in run_ids}
    eligible = [found[run_id] for run_id, each in done.items() if each.outcome is RequeueOutcome.REQUEUED]
    eligible.sort(key=lambda run: (run.session_id, run.position))
    for accepted in put_back(transaction, eligible, wish):
        done[accepted.run.id] = Requeued(accepted.run.id, RequeueOutcome.REQUEUED, accepted)
    return done
