"""Dead letters inside the transactions of others: written where something failed finally, ended where it goes on.

A letter is written by the transaction that decides the failure, and becomes ``redriven`` in the one that puts its
subject back: neither can be there without the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from oah.adapters.sql.aggregate import Transaction
from oah.adapters.sql.audits import entry, record
from oah.adapters.sql.columns import now
from oah.adapters.sql.governance_tables import DEAD, dead_letters
from oah.adapters.sql.rows import session_of
from oah.adapters.sql.tables import run_attempts
from oah.core.model.event import EventType
from oah.core.model.ids import RunId
from oah.core.model.run import Run
from oah.core.model.session import Session
from oah.ports.dead_letters import LetterKind, LetterState


def bury(transaction: Transaction, run: Run, *, code: str, reason: str, recovery: Mapping[str, Any]) -> None:
    """A quarantined run, whole, in the transaction that quarantines it. Its session is locked.

    ``attempts`` is the number of the run's attempts, which never restarts; ``first_at`` the end of the first of them:
    a run that is quarantined again has the history of the letters before.
    """
    session = session_of(transaction.sessions[run.session_id])
    row: dict[str, Any] = {
        "id": f"dl_{run.id}.{run.attempt}",
        "workspace_id": run.workspace_id,
        "kind": LetterKind.RUN.value,
        "subject": run.id,
        "session_id": run.session_id,
        "code": code,
        "reason": reason,
        "payload": run_payload(run, session, recovery),
        "attempts": run.attempt,
        "note": run.note,
    }
    first = (
        select(func.min(run_attempts.c.ended_at))
        .where(run_attempts.c.run_id == run.id, run_attempts.c.outcome != "released")
        .scalar_subquery()
    )
    put(transaction, row, first_at=func.coalesce(first, now()))
    data = {"dead_letter_id": row["id"], "kind": row["kind"], "code": code, "attempts": run.attempt}
    transaction.append_event(run.session_id, EventType.DEAD_LETTER_ADDED, run_id=run.id, attempt=run.attempt, data=data)


def put(transaction: Transaction, row: Mapping[str, Any], *, first_at: Any) -> bool:
    """Write a letter; of a subject that is dead already, what is new of it. Whether it is a new one."""
    dialect = transaction.connection.dialect.name
    statement = (postgresql.insert if dialect == "postgresql" else sqlite.insert)(dead_letters).values(
        **row, state=LetterState.DEAD.value, first_at=first_at, last_at=now()
    )
    again = {name: statement.excluded[name] for name in ("code", "reason", "payload", "payload_bytes", "last_at")}
    written = transaction.connection.execute(
        statement.on_conflict_do_update(
            index_elements=["kind", "subject"],
            index_where=text(DEAD),
            set_={**again, "attempts": dead_letters.c.attempts + statement.excluded.attempts},
        ).returning(dead_letters.c.id)
    ).scalar_one()
    new = bool(written == row["id"])
    transaction.letters[row["kind"], "added"] += new
    return new


def mark_redriven(transaction: Transaction, runs: Sequence[RunId], *, by: str) -> dict[RunId, str]:
    """The runs go on: their letters, of those that have one that is dead, have been redriven. Run → letter; the event
    and the row of the audit are the caller's."""
    letters = transaction.connection.execute(
        update(dead_letters)
        .where(
            dead_letters.c.kind == LetterKind.RUN.value,
            dead_letters.c.subject.in_(runs),
            dead_letters.c.state == text(f"'{LetterState.DEAD.value}'"),
        )
        .values(state=LetterState.REDRIVEN.value, redriven_at=now(), redriven_by=by)
        .returning(dead_letters.c.id, dead_letters.c.subject)
    )
    marked = {RunId(row.subject): str(row.id) for row in letters}
    transaction.letters[LetterKind.RUN.value, "redriven"] += len(marked)
    return marked


def write_down(transaction: Transaction, by: str, action: str, letter_id: str, **data: Any) -> None:
    """A row of the audit; what belongs to no workspace is about the deployment."""
    data["workspace_id"] = data.get("workspace_id") or None
    record(transaction.connection, [entry(by, action, letter_id, data)])


def run_payload(run: Run, session: Session, recovery: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that is needed to understand the run and to submit it anew."""
    return {
        "run_id": run.id,
        "parent_run_id": run.parent_run_id,
        "session": {
            "id": session.id,
            "agent": session.lane.profile,
            "pool": session.lane.pool,
            "lane": str(session.lane),
            "title": session.title,
            "labels": dict(session.labels),
            "cwd": session.cwd,
            "worktree": None if session.worktree is None else session.worktree.document(),
            "session_ref": session.session_ref,
            "metadata": dict(session.metadata),
        },
        "class": run.run_class.value,
        "input": run.input,
        "metadata": dict(run.metadata),
        "position": run.position,
        "order": run.order_mode.value,
        "priority": run.priority,
        "attempt": run.attempt,
        "recovery_attempts": run.recovery_attempts,
        "failed_attempts": run.failed_attempts,
        "limits": {
            "timeout_seconds": _seconds(run.timeout),
            "deadline": _moment(run.deadline_at),
            "start_by": _moment(run.start_by),
            "idle_timeout_seconds": _seconds(run.idle_timeout),
            "step_timeout_seconds": _seconds(run.step_timeout),
            "max_retries": run.max_retries,
            "retry": run.retry and dict(run.retry),
            "recovery_strategy": run.recovery_strategy,
            "recovery_max_attempts": run.recovery_max_attempts,
        },
        "recovery": dict(recovery),
        "worker_id": run.worker_id,
        "created_at": _moment(run.created_at),
        "started_at": _moment(run.started_at),
    }


def _seconds(value: Any) -> float | None:
    return None if value is None else float(value.total_seconds())


def _moment(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat()
