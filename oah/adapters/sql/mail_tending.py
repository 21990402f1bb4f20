"""What time and lost runs ask for of messages for agents: found by index, done session by session under its lock.

Nothing here rests on what was found: under the lock everything is looked at again, so two leaders at once do the same
as one. What a crash left behind between two transactions of somebody else is put right here: a delivery whose run is
over, a wake that failed, a wake that is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Select, and_, exists, func, or_, select, text, update

from oah.adapters.sql.agent_mail import C, senders_of
from oah.adapters.sql.agent_messages import RUN_OVER, give_back, tend
from oah.adapters.sql.aggregate import Aggregate, Transaction
from oah.adapters.sql.columns import MICROSECOND, age_us, later, now
from oah.adapters.sql.mail_endings import Told, change, fail, tell
from oah.adapters.sql.mail_tables import UNSETTLED as OPEN
from oah.adapters.sql.mail_tables import agent_messages
from oah.adapters.sql.tables import MAIL, runs, session_owners, sessions
from oah.adapters.sql.wakes import ACTIVE, FRESH, IN_HAND, LIVE, TALKED, session_now, wake_ended
from oah.core.model.event import EventType
from oah.core.model.ids import SessionId
from oah.core.model.message import MessageMode, MessageState, WakeMode
from oah.core.model.run import RunStatus
from oah.core.model.session import SessionState
from oah.core.policy.wake import Rules, stops
from oah.ports.messages import MailSwept, Overdue
from oah.ports.store import Accepted

WITH_MAIL = text(f"({MAIL})")
"""As the partial index has it, word for word: SQLite takes it for nothing else."""
QUEUED, DELIVERED = MessageState.QUEUED.value, MessageState.DELIVERED.value
UNSETTLED = C.state.in_([QUEUED, DELIVERED])
TOLD = "overdue"
"""In the reason of a queued message: its event was written."""
_BECAME = exists().where(runs.c.id == C.run_id, or_(runs.c.attempt > 0, runs.c.status.not_in(LIVE)))


@dataclass(slots=True)
class _Done:
    """What one pass has done."""

    told: Told = field(default_factory=dict)
    wakes: list[Accepted] = field(default_factory=list)
    stopped: list[SessionId] = field(default_factory=list)
    expired: int = 0
    dead: int = 0
    returned: int = 0
    acked: int = 0


class MailTending(Aggregate):
    """The part of ports.messages.MessageStore that is the leader's."""

    def sweep_messages(self, rules: Rules, *, limit: int = 500) -> MailSwept:
        """A transaction per session that something is to be done about."""
        with self._database.read() as connection:
            found = _to_do(connection, limit)
        done = _Done()
        for session_id in found:
            with self._database.read() as connection:
                senders = senders_of(connection, [session_id])
            with self._transaction({session_id, *senders}) as transaction:
                if session_id in transaction.sessions:
                    _tend(transaction, session_id, rules, done)
        return MailSwept(
            expired=done.expired,
            dead=done.dead,
            returned=done.returned,
            acked=done.acked,
            wakes=tuple(done.wakes),
            stopped=tuple(done.stopped),
            told=tuple(sorted(done.told.items())),
        )

    def overdue_messages(self, *, longer_than: timedelta, limit: int = 100) -> list[Overdue]:
        """Of open sessions without a hold and an active run whose agent may be started, or is there."""
        old = later(-(longer_than // MICROSECOND))
        statement = overdue(longer_than, stopped=False).limit(limit)
        with self._database.read() as connection:
            found = connection.execute(statement).all()
        for row in found:
            self._tell_overdue(SessionId(row.session_id), old)
        return [Overdue(SessionId(row.session_id), timedelta(microseconds=row.age), row.many) for row in found]

    def _tell_overdue(self, session_id: SessionId, old: Any) -> None:
        mine = (C.session_id == session_id, C.state == QUEUED, C.created_at < old, C.seq.is_not(None))
        untold = or_(C.reason.is_(None), C.reason != TOLD)
        with self._transaction([session_id]) as transaction:
            for row in transaction.connection.execute(select(agent_messages).where(*mine, untold)).all():
                tell(transaction, row, EventType.MESSAGE_OVERDUE, told_of={})
                transaction.connection.execute(
                    update(agent_messages).where(C.message_id == row.message_id).values(reason=TOLD)
                )


_EAGER = and_(sessions.c.wake == WakeMode.EAGER.value, sessions.c.wake_stopped.is_(None))


def overdue(longer_than: timedelta, *, stopped: bool) -> Select[Any]:
    """Sessions whose agent could be given what has been queued for so long: nothing holds them, nobody works in them.
    ``stopped``: also where too many wakes have failed."""
    old = later(-(longer_than // MICROSECOND))
    owned = exists().where(session_owners.c.session_id == sessions.c.id)
    active = exists().where(runs.c.session_id == sessions.c.id, runs.c.status.in_(ACTIVE))
    eager = sessions.c.wake == WakeMode.EAGER.value if stopped else _EAGER
    ready = (
        WITH_MAIL,
        sessions.c.state == SessionState.OPEN.value,
        sessions.c.held == 0,
        sessions.c.unsettled > 0,
        ~active,
        or_(owned, sessions.c.wake_run_id.is_not(None), eager),
    )
    late = (C.session_id == sessions.c.id, C.state == QUEUED, C.seq.is_not(None), FRESH, C.created_at < old)
    age = func.max(age_us(C.created_at)).label("age")
    return (
        select(sessions.c.id.label("session_id"), age, func.count().label("many"))
        .join(agent_messages, and_(*late))
        .where(*ready, C.mode != MessageMode.RUN.value)
        .group_by(sessions.c.id)
        .order_by(age.desc())
    )


def _to_do(connection: Connection, limit: int) -> list[SessionId]:
    """Sessions, by five probes of small indexes."""
    by_message = select(C.session_id).where(text(OPEN))
    waits = exists().where(
        C.session_id == sessions.c.id,
        C.state == QUEUED,
        C.seq.is_not(None),
        C.mode != MessageMode.RUN.value,
        ~IN_HAND,
    )
    owned = exists().where(session_owners.c.session_id == sessions.c.id)
    eligible = exists().where(
        runs.c.session_id == sessions.c.id, runs.c.status == RunStatus.QUEUED.value, ~runs.c.deferred
    )
    lost = and_(sessions.c.session_ref.is_(None), ~owned, TALKED)
    found: set[str] = set()
    for statement in (
        by_message.where(C.expires_at <= now(), ~IN_HAND, C.mode != MessageMode.RUN.value),
        by_message.where(RUN_OVER, C.mode != MessageMode.RUN.value),
        by_message.where(C.mode == MessageMode.RUN.value, C.run_id.is_not(None), _BECAME, _CHANGED),
        select(sessions.c.id).where(
            WITH_MAIL, sessions.c.unsettled > 0, sessions.c.state != SessionState.OPEN.value, waits
        ),
        select(sessions.c.id).where(WITH_MAIL, wake_ended()),
        by_message.where(C.state == QUEUED, _VOIDED, ~IN_HAND),
        select(sessions.c.id).where(
            WITH_MAIL,
            sessions.c.unsettled > 0,
            sessions.c.wake_run_id.is_(None),
            or_(and_(~eligible, or_(owned, _EAGER)), lost),
            waits,
        ),
    ):
        found |= set(connection.execute(statement.distinct().limit(limit)).scalars())
    return [SessionId(each) for each in sorted(found)[:limit]]


_VOIDED = exists().where(runs.c.id == C.sender["run_id"].as_string(), runs.c.voided)
"""The run that sent it was rolled back."""
_CHANGED = or_(
    and_(C.state == QUEUED, exists().where(runs.c.id == C.run_id, runs.c.attempt > 0)),
    ~exists().where(runs.c.id == C.run_id, runs.c.status.in_(LIVE)),
)
"""A run that a message became has begun since, or is over."""


def _tend(transaction: Transaction, session_id: SessionId, rules: Rules, done: _Done) -> None:
    connection = transaction.connection
    mine = select(agent_messages).where(C.session_id == session_id, UNSETTLED).order_by(C.seq)
    for row in connection.execute(mine.where(C.mode == MessageMode.RUN.value, C.run_id.is_not(None))).all():
        _follow(transaction, row, done)
    done.returned += give_back(transaction, session_id, told_of=done.told)
    late = mine.where(C.expires_at <= now(), C.state == QUEUED, C.mode != MessageMode.RUN.value, ~IN_HAND)
    for row in connection.execute(late).all():
        fail(transaction, row, "expired", told_of=done.told)
        done.expired += 1
    for row in connection.execute(mine.where(C.state == QUEUED, _VOIDED, ~IN_HAND)).all():
        change(transaction, row, MessageState.DEAD, told_of=done.told, reason="sender_rolled_back")
        done.dead += 1
    _end_wake(transaction, session_id, rules, done)
    session = session_now(transaction, session_id)
    before = session.unsettled
    accepted = tend(transaction, session, done.told, pause=rules.pause, repeated=True)
    done.dead += before - session_now(transaction, session_id).unsettled
    if accepted is not None:
        done.wakes.append(accepted)


def _follow(transaction: Transaction, row: Any, done: _Done) -> None:
    """A message that became a run is as that is."""
    run = transaction.connection.execute(select(runs.c.status, runs.c.attempt).where(runs.c.id == row.run_id)).first()
    over = run is None or run.status not in LIVE
    if run is not None and run.attempt > 0 and row.state == QUEUED:
        change(transaction, row, MessageState.DELIVERED, told_of=done.told, attempt=run.attempt, outcome="confirmed")
        row = _again(transaction, row)
    if not over:
        return
    if row.state == DELIVERED:
        status = None if run is None else run.status
        change(transaction, row, MessageState.ACKED, told_of=done.told, by="run", run_status=status)
        done.acked += 1
    else:
        fail(transaction, row, "run_not_started", told_of=done.told)
        done.dead += 1


def _end_wake(transaction: Transaction, session_id: SessionId, rules: Rules, done: _Done) -> None:
    """A wake that did not look for the last time: failed ones are counted, others were somebody's wish."""
    session = session_now(transaction, session_id)
    if session.wake_run_id is None:
        return
    run = transaction.connection.execute(
        select(runs.c.status, runs.c.error_code).where(runs.c.id == session.wake_run_id)
    ).first()
    if run is not None and run.status in LIVE:
        return
    failed = run is not None and run.status in (RunStatus.FAILED.value, RunStatus.TIMED_OUT.value)
    failures = session.wake_failures + failed
    values: dict[str, Any] = {"wake_run_id": None, "wake_failures": failures}
    if failed and session.wake_stopped is None and stops(failures, rules):
        assert run is not None  # it failed
        values["wake_stopped"] = f"{failures} wakes in a row failed, the last one with {run.error_code or run.status}"
        data = {"failures": failures, "code": run.error_code, "run_id": session.wake_run_id}
        number = transaction.append_event(session_id, EventType.WAKE_STOPPED, data=data)
        done.told[session_id] = max(number, done.told.get(session_id, 0))
        done.stopped.append(session_id)
    transaction.connection.execute(update(sessions).where(sessions.c.id == session_id).values(**values))


def _again(transaction: Transaction, row: Any) -> Any:
    return transaction.connection.execute(select(agent_messages).where(C.message_id == row.message_id)).one()


__all__: Sequence[str] = ("MailTending",)
