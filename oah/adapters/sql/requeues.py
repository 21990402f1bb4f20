"""Ended runs become eligible again: the statements are about sets, because an operator may ask for thousands.

A job first writes down what it is about to do, as its items, so that what fails again meanwhile is not taken twice;
then it does them in their order, as many at a time as one transaction should.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Select, and_, bindparam, case, func, insert, or_, select, update

from oah.adapters.sql.aggregate import Aggregate, Transaction, picked
from oah.adapters.sql.audits import entry, record
from oah.adapters.sql.columns import now
from oah.adapters.sql.governance_tables import job_items, jobs
from oah.adapters.sql.jobs import advance
from oah.adapters.sql.letters import mark_redriven
from oah.adapters.sql.rows import RUN_COLUMNS, run_of, session_of
from oah.adapters.sql.runs import EXCERPTS, end_backoff
from oah.adapters.sql.tables import run_events, run_steps, runs, sessions
from oah.adapters.sql.text import require_sound
from oah.core.model.event import EventType
from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.run import ReadyClass, RecoveryState, Run, RunStatus
from oah.core.model.session import SessionState
from oah.errors import Conflict, NotFound
from oah.ports.jobs import JobFence
from oah.ports.requeue import RequeueCount, Requeued, RequeueFilter, RequeueOutcome
from oah.ports.store import Accepted

ENDED = ("completed", "failed", "cancelled", "timed_out")


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
        with self._transaction(run.session_id for run in found.values()) as transaction:
            done = _requeue(transaction, wanted, workspace_id, Wish(by, reason), dry_run=dry_run)
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
    transaction: Transaction,
    run_ids: Sequence[RunId],
    workspace_id: WorkspaceId | None,
    wish: Wish,
    *,
    dry_run: bool = False,
) -> dict[RunId, Requeued]:
    """Judge each under the lock, then put back all that may be, in their order inside each session."""
    found = _found(transaction.connection, run_ids, workspace_id)
    done = {run_id: _judged(transaction, run_id, found.get(run_id)) for run_id in run_ids}
    if dry_run:
        return done
    eligible = [found[run_id] for run_id, each in done.items() if each.outcome is RequeueOutcome.REQUEUED]
    eligible.sort(key=lambda run: (run.session_id, run.position))
    for accepted in put_back(transaction, eligible, wish):
        done[accepted.run.id] = Requeued(accepted.run.id, RequeueOutcome.REQUEUED, accepted)
    return done


def _judged(transaction: Transaction, run_id: RunId, run: Run | None) -> Requeued:
    # A run that is not in a session that was locked came into the world after the look: it is not what was meant.
    if run is None or run.session_id not in transaction.sessions:
        return Requeued(run_id, RequeueOutcome.NOT_FOUND)
    if not run.status.terminal:
        return Requeued(run_id, RequeueOutcome.INVALID_STATUS, run=run)
    if session_of(transaction.sessions[run.session_id]).state is not SessionState.OPEN:
        return Requeued(run_id, RequeueOutcome.SESSION_CLOSED, run=run)
    return Requeued(run_id, RequeueOutcome.REQUEUED, run=run)


def queue_again(transaction: Transaction, run: Run, *, by: str, reason: str | None = None) -> Accepted:
    """One, in a transaction that has read the run under its session's lock. Raises Conflict."""
    match _judged(transaction, run.id, run).outcome:
        case RequeueOutcome.INVALID_STATUS:
            raise Conflict(f"run {run.id} is {run.status}, not ended", code="run_requeue_invalid_status")
        case RequeueOutcome.SESSION_CLOSED:
            state = session_of(transaction.sessions[run.session_id]).state
            raise Conflict(f"session {run.session_id} is {state}", code="session_closed")
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
