"""A failed attempt that is followed by another: its end and the run's place in the queue are one transaction.

The fence is the settle's: run, attempt and token must match while the run is active. Beyond that a retry is refused
where somebody wants the run to end (unless a limit of one attempt asked for it) or where it would begin at or after
the run's deadline, by the database's clock: then the outcome is the run's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, select, update

from oah.adapters.sql.aggregate import Transaction
from oah.adapters.sql.columns import MICROSECOND, age_us, from_us, now
from oah.adapters.sql.rows import session_of
from oah.adapters.sql.statements import SettleRow
from oah.adapters.sql.tables import LIMITS_OF_ONE_ATTEMPT, run_attempts, runs, session_owners, sessions
from oah.core.model.event import EventType
from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.run import OrderMode, ReadyClass, StartReason
from oah.core.model.session import HoldReason
from oah.ports.rows import DeferredRun, RetryPlan


@dataclass(frozen=True, slots=True)
class Retried:
    """What was written: the number of the last event, and what the broker has to hear of a run that is deferred."""

    number: int
    due: DeferredRun | None


def retry(transaction: Transaction, row: SettleRow, plan: RetryPlan) -> Retried | None:
    """Queue the run again instead of ending it; None: refused, nothing was changed."""
    run = _fenced(transaction, row)
    if run is None or not _wanted(run, plan):
        return None
    session_id = SessionId(row.session_id)
    look = transaction.look(session_id)
    due_us = look.now_us + plan.delay // MICROSECOND
    strict = run.order_mode == OrderMode.STRICT
    _queue(transaction, row, plan, due_us, deferred=not strict)
    _end_attempt(transaction, row)
    transaction.count_queued(session_id, WorkspaceId(run.workspace_id), 1)
    if strict:
        transaction.hot.hold(session_id, {**look.holds, HoldReason.BACKOFF.value: due_us})
    number = _tell(transaction, row, plan, run)
    return Retried(number, None if strict else deferred_run(transaction, row.session_id, row.run_id))


def deferred_run(transaction: Transaction, session_id: str, run_id: str) -> DeferredRun | None:
    """What the broker is told of a run that is not due yet; None: it is not deferred."""
    columns = (runs.c.workspace_id, runs.c["class"].label("run_class"), age_us(runs.c.due_at).label("age"))
    statement = select(*columns).where(runs.c.id == run_id, runs.c.status == "queued", runs.c.deferred)
    row = transaction.connection.execute(statement).first()
    if row is None:
        return None
    return DeferredRun(
        hear_session=SessionId(session_id),
        run_id=RunId(run_id),
        lane=session_of(transaction.sessions[session_id]).lane,
        workspace_id=WorkspaceId(row.workspace_id),
        ready_class=ReadyClass(row.run_class),
        due_in=timedelta(microseconds=max(0, -(row.age or 0))),
    )


def _fenced(transaction: Transaction, row: SettleRow) -> Any:
    columns: Sequence[Any] = (
        runs.c.workspace_id,
        runs.c.position,
        runs.c.order_mode,
        runs.c.failed_attempts,
        runs.c.stop_reason,
        runs.c.cancel_requested_at,
        age_us(runs.c.deadline_at).label("deadline_age"),
    )
    fence = (
        runs.c.id == row.run_id,
        runs.c.session_id == row.session_id,
        runs.c.attempt == row.attempt,
        runs.c.claim_token == row.token,
        runs.c.status.in_(("running", "waiting_tool")),
    )
    return transaction.connection.execute(select(*columns).where(*fence)).first()


def _wanted(run: Any, plan: RetryPlan) -> bool:
    if run.cancel_requested_at is not None and run.stop_reason not in LIMITS_OF_ONE_ATTEMPT:
        return False
    if run.failed_attempts >= plan.max_retries:
        return False
    return run.deadline_age is None or -run.deadline_age > plan.delay // MICROSECOND


def _queue(transaction: Transaction, row: SettleRow, plan: RetryPlan, due_us: int, *, deferred: bool) -> None:
    cleared = (
        *("worker_id", "claim_token", "started_at", "ended_at", "start_by"),
        *("cancel_requested_at", "cancel_requested_by", "stop_reason"),
    )
    change: dict[str, Any] = {
        **dict.fromkeys(cleared),
        "status": "queued",
        "deferred": deferred,
        "due_at": from_us(due_us),
        "queued_reason": StartReason.RETRIED,
        "queued_at": now(),
        "failed_attempts": runs.c.failed_attempts + 1,
        "max_retries": plan.max_retries,
        "exit_code": row.exit_code,
        "error_code": row.error_code,
        "error_message": row.error_message,
    }
    if deferred:
        change["dispatched_epoch"] = ""  # the relay says it, should the settler not come to it
    transaction.connection.execute(update(runs).where(runs.c.id == row.run_id).values(**change))


def _end_attempt(transaction: Transaction, row: SettleRow) -> None:
    connection = transaction.connection
    attempt = (run_attempts.c.run_id == row.run_id, run_attempts.c.attempt == row.attempt)
    ended: dict[str, Any] = {
        "ended_at": now(),
        "outcome": row.status,
        "agent": row.agent,
        "recording_blob": row.recording_blob,
    }
    said = {"agent_reason": row.agent_reason, "home": row.home_mode}
    ended.update({name: value for name, value in said.items() if value is not None})
    connection.execute(update(run_attempts).where(*attempt).values(**ended))
    kept = {"session_ref": row.session_ref, "home": None if row.home is None else json.loads(row.home)}
    changed = {name: value for name, value in kept.items() if value is not None}
    if changed:
        connection.execute(update(sessions).where(sessions.c.id == row.session_id).values(**changed))
    owner = (session_owners.c.session_id == row.session_id, session_owners.c.claim_token == row.token)
    if row.keep_owner:
        connection.execute(update(session_owners).where(*owner).values(parked=True))
    else:
        connection.execute(delete(session_owners).where(*owner))


def _tell(transaction: Transaction, row: SettleRow, plan: RetryPlan, run: Any) -> int:
    session_id, run_id = SessionId(row.session_id), RunId(row.run_id)
    facts = {
        **json.loads(row.data),
        "failed_attempts": run.failed_attempts + 1,
        "max_retries": plan.max_retries,
        "delay_seconds": plan.delay.total_seconds(),
        "order": run.order_mode,
    }
    transaction.append_event(session_id, EventType.RUN_RETRYING, run_id=run_id, attempt=row.attempt, data=facts)
    queued = {"position": run.position, "retried": True}
    return transaction.append_event(session_id, EventType.RUN_QUEUED, run_id=run_id, attempt=row.attempt, data=queued)
