"""Ended runs become eligible again, in the transaction of whoever has locked their sessions.

The statements are about sets, because an operator may ask for thousands.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, bindparam, case, func, insert, select, update

from oah.adapters.sql.aggregate import Transaction, picked
from oah.adapters.sql.audits import entry, record
from oah.adapters.sql.columns import now
from oah.adapters.sql.letters import mark_redriven
from oah.adapters.sql.rows import RUN_COLUMNS, run_of, session_of
from oah.adapters.sql.runs import end_backoff
from oah.adapters.sql.tables import run_events, run_steps, runs, sessions
from oah.core.model.event import EventType
from oah.core.model.ids import RunId, SessionId
from oah.core.model.run import ReadyClass, RecoveryState, Run, RunStatus
from oah.core.model.session import SessionState
from oah.errors import Conflict
from oah.ports.requeue import Requeued, RequeueOutcome
from oah.ports.store import Accepted


@dataclass(frozen=True, slots=True)
class Wish:
    """Who wants it, why, and in which job."""

    by: str
    reason: str | None = None
    job_id: str | None = None

    @property
    def data(self) -> dict[str, Any]:
        """For events, steps and the audit."""
        more = {"reason": self.reason, "job_id": self.job_id}
        return {"requeued_by": self.by, **{name: value for name, value in more.items() if value is not None}}


def states_of(transaction: Transaction) -> dict[SessionId, SessionState]:
    """Of the sessions that are locked."""
    return {session.id: session.state for session in map(session_of, transaction.sessions.values())}


def judged(run_id: RunId, run: Run | None, states: Mapping[SessionId, SessionState]) -> Requeued:
    """Whether a run may be put back. One whose session is not among those looked at came into the world after the
    look: it is not what was meant."""
    if run is None or run.session_id not in states:
        return Requeued(run_id, RequeueOutcome.NOT_FOUND)
    if not run.status.terminal:
        return Requeued(run_id, RequeueOutcome.INVALID_STATUS, run=run)
    if states[run.session_id] is not SessionState.OPEN:
        return Requeued(run_id, RequeueOutcome.SESSION_CLOSED, run=run)
    return Requeued(run_id, RequeueOutcome.REQUEUED, run=run)


def queue_again(transaction: Transaction, run: Run, *, by: str, reason: str | None = None) -> Accepted:
    """One, in a transaction that has read the run under its session's lock. Raises Conflict."""
    states = states_of(transaction)
    match judged(run.id, run, states).outcome:
        case RequeueOutcome.INVALID_STATUS:
            raise Conflict(f"run {run.id} is {run.status}, not ended", code="run_requeue_invalid_status")
        case RequeueOutcome.SESSION_CLOSED:
            raise Conflict(f"session {run.session_id} is {states[run.session_id]}", code="session_closed")
        case _:
            pass
    [accepted] = put_back(transaction, [run], Wish(by, reason))
    row = transaction.connection.execute(select(*picked(runs, RUN_COLUMNS)).where(runs.c.id == run.id)).one()
    return replace(accepted, run=run_of(row))


def put_back(transaction: Transaction, found: Sequence[Run], wish: Wish) -> list[Accepted]:
    """Ended runs of locked, open sessions, in the order in which they shall wait. Of each: a place at the end of its
    session's queue, counters anew, totals kept in ``recovery.total``, a step, an event, a row of the audit; and its
    dead letter, if it has one, is redriven. The runs that are returned are as good as read again."""
    if not found:
        return []
    connection = transaction.connection
    for session_id in {run.session_id for run in found}:
        if session_of(transaction.sessions[session_id]).holds:
            end_backoff(transaction, session_id)  # by hand means now
    letters = mark_redriven(transaction, [run.id for run in found], by=wish.by)
    numbers = _Numbers(connection, {run.session_id for run in found})
    events: list[dict[str, Any]] = []
    told: list[tuple[str, int]] = []
    rows: list[dict[str, Any]] = []
    facts: dict[RunId, dict[str, Any]] = {}
    last: dict[RunId, int] = {}
    for run in found:
        if (letter := letters.get(run.id)) is not None:
            data = {"dead_letter_id": letter, "kind": "run", "by": wish.by}
            events.append(_event(run, EventType.DEAD_LETTER_REDRIVEN, numbers.event(run.session_id), data))
            told.append((run.session_id, events[-1]["number"]))
        position = numbers.position(run.session_id)
        facts[run.id] = {**wish.data, "position": position, "previous_status": run.status.value}
        last[run.id] = numbers.event(run.session_id)
        events.append(_event(run, EventType.RUN_QUEUED, last[run.id], facts[run.id]))
        rows.append({"the_run": run.id, "new_position": position, "new_recovery": _recovery(run, wish.by)})
    connection.execute(_eligible_again(), rows)
    connection.execute(insert(run_events).values(at=now()), events)
    transaction.hot.tell_webhooks(told)
    numbers.write(connection)
    _count(transaction, found)
    _steps(connection, found, facts)
    _audit(connection, found, facts, letters, wish)
    lanes = {run.session_id: session_of(transaction.sessions[run.session_id]).lane for run in found}
    return [
        Accepted(
            replace(run, status=RunStatus.QUEUED, position=facts[run.id]["position"], ended_at=None, error=None),
            lanes[run.session_id],
            ReadyClass(run.run_class.value),
            None,
            last[run.id],
        )
        for run in found
    ]


class _Numbers:
    """The next places and event numbers of locked sessions."""

    def __init__(self, connection: Connection, ids: Iterable[SessionId]) -> None:
        statement = select(sessions.c.id, sessions.c.next_position, sessions.c.event_seq).where(
            sessions.c.id.in_(list(ids))
        )
        self._next = {row.id: [row.next_position, row.event_seq] for row in connection.execute(statement)}
        self._added: Counter[SessionId] = Counter()

    def position(self, session_id: SessionId) -> int:
        """A place; one more run is queued."""
        self._added[session_id] += 1
        taken: int = self._next[session_id][0]
        self._next[session_id][0] += 1
        return taken

    def event(self, session_id: SessionId) -> int:
        """The number of an event."""
        self._next[session_id][1] += 1
        return int(self._next[session_id][1])

    def write(self, connection: Connection) -> None:
        """What was taken."""
        connection.execute(
            update(sessions)
            .where(sessions.c.id == bindparam("the_session"))
            .values(
                next_position=bindparam("next"),
                event_seq=bindparam("last"),
                queued_count=sessions.c.queued_count + bindparam("added"),
            ),
            [
                {"the_session": session_id, "next": position, "last": number, "added": self._added[session_id]}
                for session_id, (position, number) in sorted(self._next.items())
            ],
        )


def _event(run: Run, kind: EventType, number: int, data: Mapping[str, Any]) -> dict[str, Any]:
    values = {"session_id": run.session_id, "number": number, "run_id": run.id, "attempt": run.attempt}
    return {**values, "type": kind.value, "data": dict(data)}


def _count(transaction: Transaction, found: Sequence[Run]) -> None:
    for workspace_id, added in sorted(Counter(run.workspace_id for run in found).items()):
        transaction.count_in_workspace(workspace_id, added)


def _steps(connection: Connection, found: Sequence[Run], facts: Mapping[RunId, Mapping[str, Any]]) -> None:
    """A step each, under the number after its last."""
    last = select(run_steps.c.run_id, func.max(run_steps.c.number)).where(
        run_steps.c.run_id.in_([run.id for run in found])
    )
    numbers: defaultdict[str, int] = defaultdict(int)
    numbers.update({row[0]: row[1] for row in connection.execute(last.group_by(run_steps.c.run_id))})
    rows = [
        {"run_id": run.id, "number": numbers[run.id] + 1, "attempt": run.attempt, "kind": "system"}
        | {"name": "run.requeued", "data": dict(facts[run.id])}
        for run in found
    ]
    connection.execute(insert(run_steps).values(at=now()), rows)


def _audit(
    connection: Connection,
    found: Sequence[Run],
    facts: Mapping[RunId, Mapping[str, Any]],
    letters: Mapping[RunId, str],
    wish: Wish,
) -> None:
    def row(action: str, subject: str, run: Run, more: Mapping[str, Any]) -> dict[str, Any]:
        return entry(wish.by, action, subject, {"workspace_id": run.workspace_id, **more})

    rows = [row("run.requeued", run.id, run, {"session_id": run.session_id, **facts[run.id]}) for run in found]
    rows += [
        row("dead_letter.redriven", letters[run.id], run, {"run_id": run.id}) for run in found if run.id in letters
    ]
    record(connection, rows)


def _recovery(run: Run, by: str) -> dict[str, Any]:
    recovery = dict(run.recovery or {})
    total = recovery.get("total") or {}
    recovery.update(
        state=RecoveryState.REQUEUED.value,
        strategy="manual",
        attempts=0,
        reason="manual_requeue",
        manual_requeue_count=recovery.get("manual_requeue_count", 0) + 1,
        last_manual_requeue_by=by,
        total={
            "recovery_attempts": total.get("recovery_attempts", 0) + run.recovery_attempts,
            "failed_attempts": total.get("failed_attempts", 0) + run.failed_attempts,
        },
    )
    return recovery


def _eligible_again() -> Any:
    """The update of many runs, each with its place and its record. A deadline that has passed, and a wait that was
    limited, would end the run again at once: who puts it back wants it to run."""
    cleared: dict[str, Any] = dict.fromkeys(
        (
            "due_at", "start_by", "started_at", "ended_at", "cancel_requested_at", "cancel_requested_by", "error_code",
            "error_message", "result", "result_blob", "exit_code", "worker_id", "claim_token", "stop_reason",
        )
    )  # fmt: skip
    return (
        update(runs)
        .where(runs.c.id == bindparam("the_run"))
        .values(
            **cleared,
            status=RunStatus.QUEUED.value,
            deferred=False,
            voided=False,
            position=bindparam("new_position"),
            queued_reason="requeued",
            queued_at=now(),
            dispatched_epoch="",
            recovery_attempts=0,
            failed_attempts=0,
            deadline_at=case((runs.c.deadline_at <= now(), None), else_=runs.c.deadline_at),
            recovery=bindparam("new_recovery"),
            recovery_state=RecoveryState.REQUEUED.value,
        )
    )
