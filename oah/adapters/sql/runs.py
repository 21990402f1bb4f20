"""Runs as people and the API see them: read, listed, cancelled, requeued, annotated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, case, func, null, or_, select, update

from oah.adapters.sql.aggregate import Aggregate, Transaction, after, picked
from oah.adapters.sql.audits import entry, record
from oah.adapters.sql.columns import from_us, now
from oah.adapters.sql.pages import paged
from oah.adapters.sql.rows import ATTEMPT_COLUMNS, RUN_COLUMNS, STEP_COLUMNS, attempt_of, run_of, session_of, step_of
from oah.adapters.sql.tables import run_attempts, run_steps, runs, session_owners
from oah.adapters.sql.text import require_sound
from oah.core.model.event import EventType
from oah.core.model.ids import RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.run import (
    Attempt,
    OrderMode,
    Run,
    RunStatus,
    Step,
    StopReason,
)
from oah.core.model.session import HoldReason
from oah.errors import NotFound
from oah.ports.store import EXCERPT, Cancelled, CancelResult, Page, RunFilter

ACTIVE = ("running", "waiting_tool")


class Runs(Aggregate):
    """The aggregate of a run's row outside its execution."""

    def run(self, run_id: RunId, workspace_id: WorkspaceId | None) -> Run:
        """Raises NotFound, also for another workspace's run."""
        with self._database.read() as connection:
            return _run(connection, run_id, workspace_id)

    def runs(self, where: RunFilter) -> Page[Run]:
        """Newest first."""
        statement = _runs(EXCERPTS)
        for column, value in (
            (runs.c.workspace_id, where.workspace_id),
            (runs.c.session_id, where.session_id),
            (runs.c.parent_run_id, where.parent_run_id),
            (runs.c.error_code, where.error_code),
            (runs.c.recovery_state, where.recovery_state),
            (runs.c["class"], where.run_class),
        ):
            if value is not None:
                statement = statement.where(column == value)
        if where.status:
            statement = statement.where(runs.c.status.in_(where.status))
        if where.created_after is not None:
            statement = statement.where(runs.c.created_at > where.created_after)
        with self._database.read() as connection:
            return paged(
                connection,
                statement,
                runs,
                _with_heartbeat,
                lambda item: (item.created_at, item.id),
                cursor=where.cursor,
                limit=where.limit,
            )

    def queue_of(self, session_id: SessionId, *, limit: int) -> list[Run]:
        """The active run, then the queued ones in their order; deferred ones keep their place until they are due."""
        statement = (
            _runs(EXCERPTS)
            .where(runs.c.session_id == session_id, runs.c.status.in_([*ACTIVE, "queued"]))
            .order_by(case((runs.c.status == "queued", 1), else_=0), runs.c.deferred, runs.c.position)
            .limit(limit)
        )
        with self._database.read() as connection:
            return [_with_heartbeat(row) for row in connection.execute(statement)]

    def attempts(self, run_id: RunId) -> list[Attempt]:
        """In their order."""
        statement = (
            select(*picked(run_attempts, ATTEMPT_COLUMNS))
            .where(run_attempts.c.run_id == run_id)
            .order_by(run_attempts.c.attempt)
        )
        with self._database.read() as connection:
            return [attempt_of(row) for row in connection.execute(statement)]

    def steps(self, run_id: RunId) -> list[Step]:
        """In their order."""
        statement = (
            select(*picked(run_steps, STEP_COLUMNS)).where(run_steps.c.run_id == run_id).order_by(run_steps.c.number)
        )
        with self._database.read() as connection:
            return [step_of(row) for row in connection.execute(statement)]

    def cancel(
        self,
        run_id: RunId,
        workspace_id: WorkspaceId | None,
        *,
        by: str,
        reason: StopReason = StopReason.CANCEL,
    ) -> Cancelled:
        """Remove a queued run at once; mark an active one, its owner ends it. The first mark stays."""
        require_sound(by=by)
        with self._locked_run(run_id, workspace_id) as (transaction, run):
            lane = session_of(transaction.sessions[run.session_id]).lane
            if run.status.terminal:
                return Cancelled(run, CancelResult.TOO_LATE)
            if run.status.active:
                mark(transaction, run_id, by=by, reason=reason)
                marked = _run(transaction.connection, run_id, workspace_id)
                return Cancelled(marked, CancelResult.SIGNALLED, owner=run.worker_id, lane=lane)
            unheld = end_backoff_of(transaction, run)
            number = remove(transaction, run, by=by, reason=reason)
            gone = _run(transaction.connection, run_id, workspace_id)
            look = after(transaction.look(run.session_id), applied=True, status=gone.status, number=number)
            owner = transaction.connection.execute(
                select(session_owners.c.worker_id).where(session_owners.c.session_id == run.session_id)
            ).scalar()
            return Cancelled(gone, CancelResult.REMOVED, owner and WorkerId(owner), lane, look, unheld=unheld)

    def annotate_run(self, run_id: RunId, workspace_id: WorkspaceId | None, note: str, *, by: str = "system") -> Run:
        """Write an operator's note."""
        require_sound(note=note, by=by)
        with self._locked_run(run_id, workspace_id) as (transaction, run):
            more = {"note": note, "workspace_id": run.workspace_id}
            record(transaction.connection, [entry(by, "run.noted", run_id, more)])
            transaction.connection.execute(update(runs).where(runs.c.id == run_id).values(note=note))
            return _run(transaction.connection, run_id, workspace_id)

    @contextmanager
    def _locked_run(self, run_id: RunId, workspace_id: WorkspaceId | None) -> Iterator[tuple[Transaction, Run]]:
        """The run with its session locked, read after the lock."""
        with self._database.read() as connection:
            session_id = _run(connection, run_id, workspace_id).session_id
        with self._transaction([session_id]) as transaction:
            yield transaction, _run(transaction.connection, run_id, workspace_id)


def mark(transaction: Transaction, run_id: RunId, *, by: str, reason: StopReason) -> None:
    """Ask the owner of an active run to end it. Who asked first stays; but a limit of one attempt, after which the run
    may be tried again, gives way to somebody who does not want it any more."""
    weaker = [] if reason.of_one_attempt else [each for each in StopReason if each.of_one_attempt]
    transaction.connection.execute(
        update(runs)
        .where(runs.c.id == run_id, or_(runs.c.cancel_requested_at.is_(None), runs.c.stop_reason.in_(weaker)))
        .values(cancel_requested_at=now(), cancel_requested_by=by, stop_reason=reason)
    )


def remove(transaction: Transaction, run: Run, *, by: str, reason: StopReason) -> int:
    """End a queued run of a locked session; the number of its last event."""
    transaction.connection.execute(
        update(runs)
        .where(runs.c.id == run.id)
        .values(
            status=RunStatus.CANCELLED,
            deferred=False,
            ended_at=now(),
            cancel_requested_at=now(),
            cancel_requested_by=by,
            stop_reason=reason,
            worker_id=None,
            claim_token=None,
        )
    )
    transaction.count_queued(run.session_id, run.workspace_id, -1)
    data = {"by": by, "reason": reason.value}
    number = transaction.append_event(
        run.session_id, EventType.RUN_CANCELLED, run_id=run.id, attempt=run.attempt, data=data
    )
    transaction.close_if_empty(run.session_id)
    return number


def end_backoff_of(transaction: Transaction, run: Run) -> bool:
    """A session held for the retry of this run is held for nothing once the run is gone. True: the hold ended."""
    holds = transaction.look(run.session_id).holds
    end = holds.get(HoldReason.BACKOFF.value)
    if end is None or run.order_mode is not OrderMode.STRICT or run.due_at != from_us(end):
        return False
    return end_backoff(transaction, run.session_id)


def end_backoff(transaction: Transaction, session_id: SessionId) -> bool:
    """Whatever the session waits for a retry of need wait no longer. True: it is held for nothing any more."""
    holds = transaction.look(session_id).holds
    left = {name: end for name, end in holds.items() if name != HoldReason.BACKOFF.value}
    if left != holds:
        transaction.hot.hold(session_id, left)
    return left != holds and not left


WHOLE = tuple(picked(runs, RUN_COLUMNS))
EXCERPTS = tuple(
    func.substr(column, 1, EXCERPT + 1) if column.name == "input" else null() if column.name == "result" else column
    for column in picked(runs, RUN_COLUMNS)
)


def _runs(columns: Sequence[ColumnElement[Any]] = WHOLE) -> Select[Any]:
    return select(*columns, session_owners.c.seen_at).select_from(
        runs.outerjoin(
            session_owners,
            (session_owners.c.session_id == runs.c.session_id)
            & (session_owners.c.claim_token == runs.c.claim_token)
            & runs.c.status.in_(ACTIVE),
        )
    )


def _with_heartbeat(row: Any) -> Run:
    return run_of(row[:-1], row[-1])


def _run(connection: Connection, run_id: RunId, workspace_id: WorkspaceId | None) -> Run:
    row = connection.execute(_runs().where(runs.c.id == run_id)).first()
    found = None if row is None else _with_heartbeat(row)
    if found is None or (workspace_id is not None and found.workspace_id != workspace_id):
        raise NotFound(f"no run {run_id}")
    return found
