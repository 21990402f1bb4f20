"""What a limit ends that no worker watches: queued runs past their start time-out or deadline, steps past theirs.

All is judged by the database's clock, under the session's lock, in bounded batches found by partial indexes.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import select, text, update

from oah.adapters.sql.aggregate import Aggregate, Transaction, after
from oah.adapters.sql.columns import age_us, now
from oah.adapters.sql.rows import run_of
from oah.adapters.sql.runs import end_backoff_of, mark
from oah.adapters.sql.tables import run_steps, runs
from oah.core.model.event import EventType
from oah.core.model.ids import RunId, SessionId
from oah.core.model.run import Run, RunStatus, StopReason
from oah.core.model.timeout import TimeoutReason
from oah.ports.steps import Expired, Overdue, StepKind, StepOutcome

BY = "time-out"
"""Who asks for a stop that a limit asks for."""
_REASONS = {StepKind.MODEL.value: StopReason.MODEL_TIMEOUT, StepKind.WAIT.value: StopReason.WAIT_TIMEOUT}
_EXPIRED = """
SELECT id, session_id FROM (SELECT id, session_id FROM runs WHERE status = 'queued' AND start_by <= {now}
  ORDER BY start_by LIMIT :limit) AS a
UNION
SELECT id, session_id FROM (SELECT id, session_id FROM runs WHERE status = 'queued' AND deadline_at <= {now}
  ORDER BY deadline_at LIMIT :limit) AS b
"""
_OVERDUE = """
SELECT s.run_id, s.number, r.session_id FROM (SELECT run_id, number FROM run_steps
  WHERE ended_at IS NULL AND deadline_at <= {now} ORDER BY deadline_at LIMIT :limit) AS s JOIN runs r ON r.id = s.run_id
"""


class Limits(Aggregate):
    """The part of ports.steps.StepStore that a leader calls."""

    def expire_queued(self, *, limit: int) -> list[Expired]:
        """In the order in which their time passed. A run that has begun before may take its time to begin again."""
        rows = self._due(_EXPIRED, limit)
        if not rows:
            return []
        with self._transaction(SessionId(row.session_id) for row in rows) as transaction:
            found = [_expire(transaction, RunId(row.id)) for row in rows]
        return [each for each in found if each is not None]

    def stop_overdue(self, *, limit: int) -> list[Overdue]:
        """One stop per run; a step of an attempt that is over is only closed."""
        rows = self._due(_OVERDUE, limit)
        if not rows:
            return []
        with self._transaction(SessionId(row.session_id) for row in rows) as transaction:
            found = [_stop(transaction, RunId(row.run_id), row.number) for row in rows]
        return [each for each in found if each is not None]

    def _due(self, statement: str, limit: int) -> list[Any]:
        # A subquery is one value, which an index can be asked for; a volatile function would be compared row by row.
        clock = "(SELECT clock_timestamp())" if self._database.dialect == "postgresql" else "(SELECT now_us())"
        with self._database.read() as connection:
            self._database.by_index(connection)
            return list(connection.execute(text(statement.format(now=clock)), {"limit": limit}))


def _read(transaction: Transaction, run_id: RunId) -> Run | None:
    found = transaction.hot.read_runs([run_id]).get(run_id)
    return None if found is None else run_of(found)


def _age(value: Any) -> int | None:
    """Null where there is no such limit."""
    return None if value is None else int(value)


def _expire(transaction: Transaction, run_id: RunId) -> Expired | None:
    run = _read(transaction, run_id)
    if run is None or run.status is not RunStatus.QUEUED:
        return None
    ages = select(age_us(runs.c.start_by), age_us(runs.c.deadline_at)).where(runs.c.id == run_id)
    late, over = map(_age, transaction.connection.execute(ages).one())
    if over is not None and over >= 0:
        return _end(transaction, run, TimeoutReason.DEADLINE)
    if late is None or late < 0:
        return None
    if run.attempt == 0:
        return _end(transaction, run, TimeoutReason.START)
    transaction.connection.execute(update(runs).where(runs.c.id == run_id).values(start_by=None))
    return None


def _end(transaction: Transaction, run: Run, reason: TimeoutReason) -> Expired:
    error = reason.error
    unheld = end_backoff_of(transaction, run)
    transaction.connection.execute(
        update(runs)
        .where(runs.c.id == run.id)
        .values(
            status=RunStatus.TIMED_OUT,
            deferred=False,
            ended_at=now(),
            error_code=error.code,
            error_message=error.message,
            worker_id=None,
            claim_token=None,
        )
    )
    transaction.count_queued(run.session_id, run.workspace_id, -1)
    data = {"error": {"code": error.code, "message": error.message}}
    number = transaction.append_event(
        run.session_id, EventType.RUN_TIMED_OUT, run_id=run.id, attempt=run.attempt, data=data
    )
    transaction.close_if_empty(run.session_id)
    ended = _read(transaction, run.id)
    assert ended is not None  # just written
    look = after(transaction.look(run.session_id), applied=True, status=ended.status, number=number)
    return Expired(ended, reason, look, unheld=unheld)


def _stop(transaction: Transaction, run_id: RunId, number: int) -> Overdue | None:
    which = (run_steps.c.run_id == run_id, run_steps.c.number == number, run_steps.c.ended_at.is_(None))
    step = transaction.connection.execute(select(run_steps.c.kind, run_steps.c.attempt).where(*which)).first()
    run = _read(transaction, run_id)
    if step is None or run is None:
        return None
    ours = run.status.active and run.attempt == step.attempt
    outcome = StepOutcome.TIMED_OUT if ours else StepOutcome.ABANDONED
    transaction.connection.execute(update(run_steps).where(*which).values(ended_at=now(), outcome=outcome.value))
    if not ours or run.cancel_requested_at is not None:
        return None
    reason = _REASONS.get(step.kind, StopReason.STEP_TIMEOUT)
    mark(transaction, run_id, by=BY, reason=reason)
    return Overdue(run_id, run.session_id, number, reason, run.worker_id)
