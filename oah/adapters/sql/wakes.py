"""Wakes inside the transactions of others: what a locked session's rows say, and the run that follows from it.

The wake is written by the transaction that queues the message, so neither is there without the other. A session's
``wake_run_id`` names the wake that will look once more; it is cleared in the transaction in which that look finds
nothing, so that a message which comes later makes another.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, exists, func, insert, or_, select, update

from oah.adapters.sql.aggregate import Transaction, picked
from oah.adapters.sql.columns import MICROSECOND, age_us, later, now
from oah.adapters.sql.mail_tables import agent_messages
from oah.adapters.sql.rows import RUN_COLUMNS, SESSION_COLUMNS, run_of, session_of
from oah.adapters.sql.tables import CLASS_RANKS, run_attempts, runs, session_owners, sessions
from oah.core.model.event import EventType
from oah.core.model.ids import RunId, SessionId
from oah.core.model.message import MessageMode, MessageState
from oah.core.model.run import ReadyClass, RunClass, RunKind, RunStatus
from oah.core.model.session import Session, SessionState
from oah.core.policy.wake import Decision, NotNow, View, Wake, WhyNot, decide
from oah.ports.store import Accepted

ACTIVE = (RunStatus.RUNNING.value, RunStatus.WAITING_TOOL.value)
LIVE = (RunStatus.QUEUED.value, *ACTIVE)

IN_HAND = exists().where(
    runs.c.id == agent_messages.c.run_id,
    runs.c.attempt == agent_messages.c.attempt,
    runs.c.status.in_(ACTIVE),
)
"""An attempt that goes on has taken the message, and says what becomes of it."""
FRESH = or_(agent_messages.c.expires_at.is_(None), agent_messages.c.expires_at > now())


def waiting(session_id: SessionId) -> tuple[ColumnElement[bool], ...]:
    """The messages of a session that somebody has to deliver."""
    c = agent_messages.c
    return (
        c.session_id == session_id,
        c.state == MessageState.QUEUED.value,
        c.seq.is_not(None),
        c.mode != MessageMode.RUN.value,
        FRESH,
        ~IN_HAND,
    )


def session_now(transaction: Transaction, session_id: SessionId) -> Session:
    """The locked session as this transaction has made it."""
    row = transaction.connection.execute(
        select(*picked(sessions, SESSION_COLUMNS)).where(sessions.c.id == session_id)
    ).one()
    return session_of(row)


def judged(transaction: Transaction, session: Session, *, repeated: bool = False) -> Decision:
    """What is to be done about the session's messages now. Of a wake that is under way nothing more need be known."""
    if session.state is SessionState.OPEN and session.wake_run_id is not None:
        live = select(runs.c.id).where(runs.c.id == session.wake_run_id, runs.c.status.in_(LIVE))
        if transaction.connection.execute(live).first() is not None:
            return NotNow(WhyNot.UNDER_WAY)
    return decide(replace(_view(transaction, session), repeated=repeated))


def _view(transaction: Transaction, session: Session) -> View:
    connection = transaction.connection
    mine = runs.c.session_id == session.id

    def there(*where: ColumnElement[bool]) -> bool:
        return connection.execute(select(runs.c.id).where(mine, *where).limit(1)).first() is not None

    owner = select(session_owners.c.session_id).where(session_owners.c.session_id == session.id)
    left = select(age_us(sessions.c.wake_after)).where(sessions.c.id == session.id)
    age = connection.execute(left).scalar_one_or_none()
    count = select(func.count()).select_from(agent_messages).where(*waiting(session.id))
    return View(
        waiting=connection.execute(count).scalar_one(),
        mode=session.wake,
        is_open=session.state is SessionState.OPEN,
        run_next=there(runs.c.status == RunStatus.QUEUED.value, ~runs.c.deferred),
        alive=connection.execute(owner).first() is not None,
        had_turns=had_turns(connection, session.id),
        resumable=session.session_ref is not None,
        stopped=session.wake_stopped,
        pause_left=timedelta(microseconds=max(-int(age or 0), 0)),
    )


TALKED = exists().where(
    runs.c.session_id == sessions.c.id,
    runs.c.status == RunStatus.COMPLETED.value,
    run_attempts.c.run_id == runs.c.id,
    run_attempts.c.attempt == runs.c.attempt,
    run_attempts.c.agent != "",
)
"""There was a conversation: a turn of an agent that ended."""


def had_turns(connection: Connection, session_id: SessionId) -> bool:
    """Whether there was a conversation that can be lost."""
    found = select(sessions.c.id).where(sessions.c.id == session_id, TALKED)
    return connection.execute(found).first() is not None


def wake_if_due(
    transaction: Transaction,
    session: Session,
    *,
    pause: timedelta,
    run_class: RunClass = RunClass.INTERACTIVE,
    repeated: bool = False,
) -> tuple[Decision, Accepted | None]:
    """Make the wake that the rules ask for, if they do."""
    decision = judged(transaction, session, repeated=repeated)
    if not isinstance(decision, Wake):
        return decision, None
    return decision, make_wake(transaction, session, after=decision.after, pause=pause, run_class=run_class)


def make_wake(
    transaction: Transaction,
    session: Session,
    *,
    after: timedelta,
    pause: timedelta,
    run_class: RunClass = RunClass.INTERACTIVE,
    by: str | None = None,
) -> Accepted:
    """A run without a text of its own, and the next pause. It is not tried again by the rules of runs: those of wakes
    say when there is another."""
    metadata = {} if by is None else {"by_hand": by}
    accepted = make_run(
        transaction, session, RunKind.WAKE, "", after=after, run_class=run_class, max_retries=0, metadata=metadata
    )
    values = {"wake_run_id": accepted.run.id, "wake_after": later((after + pause) // MICROSECOND)}
    transaction.connection.execute(update(sessions).where(sessions.c.id == session.id).values(**values))
    return accepted


def make_run(
    transaction: Transaction,
    session: Session,
    kind: RunKind,
    text: str,
    *,
    after: timedelta = timedelta(0),
    run_class: RunClass = RunClass.INTERACTIVE,
    max_retries: int | None = None,
    metadata: dict[str, Any] | None = None,
) -> Accepted:
    """A queued run of a locked session, with its event and its counts."""
    connection, deferred = transaction.connection, after > timedelta(0)
    run_id = new_id("run")
    values = {
        "id": run_id,
        "session_id": session.id,
        "workspace_id": session.workspace_id,
        "position": transaction.take_position(session.id),
        "class": run_class.value,
        "class_rank": CLASS_RANKS[run_class],
        "input": text,
        "metadata": metadata or {},
        "status": RunStatus.QUEUED.value,
        "deferred": deferred,
        "due_at": later(after // MICROSECOND) if deferred else None,
        "max_retries": max_retries,
        "kind": kind.value,
    }
    connection.execute(insert(runs).values(**values, created_at=now(), queued_at=now()))
    transaction.count_queued(session.id, session.workspace_id, 1)
    data = {"class": run_class.value, "kind": kind.value, "position": values["position"], **(metadata or {})}
    number = transaction.append_event(session.id, EventType.RUN_QUEUED, run_id=RunId(run_id), data=data)
    row = connection.execute(select(*picked(runs, RUN_COLUMNS)).where(runs.c.id == run_id)).one()
    return Accepted(
        run_of(row), session.lane, ReadyClass(run_class.value), after if deferred else None, number, replayed=False
    )


def new_id(kind: str) -> str:
    """An id of the store's own making."""
    return f"{kind}_{secrets.token_hex(13)}"


def wake_ended() -> ColumnElement[bool]:
    """Sessions whose wake ended without having looked for the last time."""
    return and_(
        sessions.c.wake_run_id.is_not(None),
        ~exists().where(runs.c.id == sessions.c.wake_run_id, runs.c.status.in_(LIVE)),
    )
