"""Messages for the agents of sessions, inside the transactions of others.

Who sends to a session's mailbox calls ``queue_for_agent`` in the transaction that stores the message. The lock order is
the store's: session rows in id order, then mailbox rows in id order. Whatever wakes the agent is written here too, so
that no message is there without the run that is to deliver it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import and_, select, update

from oah.adapters.sql.aggregate import Transaction
from oah.adapters.sql.columns import MICROSECOND, later
from oah.adapters.sql.mail_endings import Told, add, again, change, fail, tell
from oah.adapters.sql.mail_tables import agent_messages, messages
from oah.adapters.sql.rows import parsed
from oah.adapters.sql.statements import CommandRow
from oah.adapters.sql.tables import LOST, run_attempts, sessions, worker_commands
from oah.adapters.sql.wakes import IN_HAND, make_run, new_id, session_now, waiting, wake_if_due
from oah.core.model.delivery import Outcome
from oah.core.model.event import EventType
from oah.core.model.ids import SessionId, WorkerId
from oah.core.model.mailbox import Mailbox
from oah.core.model.message import MessageMode, MessageState, Sender
from oah.core.model.run import RunClass, RunKind
from oah.core.model.session import Session, SessionState
from oah.core.policy.wake import SESSION_CLOSED, Lost, Rules
from oah.errors import Conflict, InvalidRequest, LimitReached
from oah.ports.commands import CommandKind, Delivery
from oah.ports.mailboxes import ForAgent, NewMessage
from oah.ports.store import Accepted

PAUSE = Rules().pause
"""Between two wakes, where nobody is there who knows the deployment's rule: for what was delayed, redriven, or missed
by the turn that it was for."""
UNSETTLED = (MessageState.QUEUED.value, MessageState.DELIVERED.value)


@dataclass(frozen=True, slots=True)
class QueuedForAgent:
    """``event_number``: of the last event in the session. ``wake``: a run that was made for it; the broker is to hear
    of it after the commit (the relay repeats it). ``look``: the worker that is to say it into its live turn."""

    event_number: int
    wake: Accepted | None = None
    look: WorkerId | None = None


def queue_for_agent(
    transaction: Transaction, mailbox: Mailbox, message: NewMessage, for_agent: ForAgent | None, *, seq: int | None
) -> QueuedForAgent:
    """A message for the agent of the mailbox's session, which is locked. ``seq``: the number it has in the mailbox;
    None: it is delayed, and ``number_for_agent`` is called when it is due.

    Raises Conflict ``session_closed``, LimitReached ``mailbox_full`` (``mailbox.max_messages`` unsettled ones),
    InvalidRequest, each before anything was written.
    """
    assert mailbox.session_id is not None  # a session's mailbox
    asked = for_agent or ForAgent(mode=MessageMode.WAIT, sender=Sender(by=message.sender or ""))
    session = session_now(transaction, mailbox.session_id)
    _check(session, mailbox, message, asked)
    sender = {"by": asked.sender.by, "session_id": asked.sender.session_id, "run_id": asked.sender.run_id}
    values: dict[str, Any] = {
        "message_id": message.id,
        "workspace_id": message.workspace_id,
        "session_id": session.id,
        "seq": seq,
        "mode": asked.mode.value,
        "delivery_id": new_id("dlv"),
        "sender": sender,
        "callback": asked.callback,
        "expires_at": None if message.ttl is None else later(message.ttl // MICROSECOND),
    }
    add(transaction, values)
    row, told_of = _row(transaction, message.id), Told()
    facts = {"sender": sender, "priority": message.priority.word, "size": len(message.payload)}
    tell(transaction, row, EventType.MESSAGE_QUEUED, told_of=told_of, delayed=True if seq is None else None, **facts)
    if seq is None:
        return QueuedForAgent(told_of[session.id])
    return _begin(transaction, session, row, message.payload.decode(), told_of, pause=message.wake_pause)


def _check(session: Session, mailbox: Mailbox, message: NewMessage, asked: ForAgent) -> None:
    if session.state is not SessionState.OPEN:
        raise Conflict(f"session {session.id} is {session.state}", code=SESSION_CLOSED)
    if mailbox.max_messages and session.unsettled >= mailbox.max_messages:
        raise LimitReached(
            f"session {session.id} has {session.unsettled} messages that are not settled",
            code="mailbox_full",
            hint="wait until its agent has taken some",
        )
    try:
        text = message.payload.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("a message for an agent is text in UTF-8", code="not_text") from None
    if "\0" in text:
        raise InvalidRequest("a message for an agent has no NUL", code="not_text")
    if asked.mode is MessageMode.RUN and not text.strip():
        raise InvalidRequest("a message that becomes a run has a text")


def number_for_agent(
    transaction: Transaction, session_id: SessionId, message_id: str, *, seq: int, pause: timedelta = PAUSE
) -> QueuedForAgent:
    """A delayed message is due and has its number; the session is locked."""
    transaction.connection.execute(
        update(agent_messages).where(agent_messages.c.message_id == message_id).values(seq=seq)
    )
    row, session = _row(transaction, message_id), session_now(transaction, session_id)
    if row is None or row.state != MessageState.QUEUED.value:
        return QueuedForAgent(0)
    payload = transaction.connection.execute(select(messages.c.payload).where(messages.c.id == message_id)).scalar_one()
    return _begin(transaction, session, row, bytes(payload).decode(), Told(), pause=pause)


def _begin(
    transaction: Transaction, session: Session, row: Any, text: str, told_of: Told, *, pause: timedelta
) -> QueuedForAgent:
    """What follows at once: a run of its own, a text for the live turn, a wake, or nothing yet."""
    if row.mode == MessageMode.RUN.value:
        if session.state is not SessionState.OPEN:  # it was closed while the message was delayed
            return QueuedForAgent(_closed(transaction, row, told_of))
        run = make_run(transaction, session, RunKind.PROMPT, text, metadata={"message_id": row.message_id})
        _set(transaction, row.message_id, run_id=run.run.id)
        return QueuedForAgent(run.event_number, run)
    look = steer(transaction, session, row, text) if row.mode == MessageMode.STEER.value else None
    accepted = None
    if look is None:
        accepted = tend(
            transaction, session, told_of, pause=pause, by_run=bool((parsed(row.sender) or {}).get("run_id"))
        )
    number = max(told_of.get(session.id, 0), 0 if accepted is None else accepted.event_number)
    return QueuedForAgent(number, accepted, look)


def _closed(transaction: Transaction, row: Any, told_of: Told) -> int:
    fail(transaction, row, SESSION_CLOSED, told_of=told_of)
    return told_of[SessionId(row.session_id)]


def steer(transaction: Transaction, session: Session, row: Any, text: str) -> WorkerId | None:
    """Ask the worker of the live turn to say it; None: there is none that could."""
    active = transaction.hot.active_run(session.id)
    if active is None or active.stopping or active.waiting or active.worker_id is None:
        return None
    sender = parsed(row.sender) or {}
    data = json.dumps({"text": text, "message_id": row.message_id, "sender": sender}, ensure_ascii=False)
    command = CommandRow(
        active.worker_id, CommandKind.STEER, sender.get("by", ""), active.run_id, active.attempt, data, row.delivery_id
    )
    transaction.hot.put_command(command)
    _set(transaction, row.message_id, run_id=active.run_id, attempt=active.attempt)
    return WorkerId(active.worker_id)


def tend(
    transaction: Transaction,
    session: Session,
    told_of: Told,
    *,
    pause: timedelta,
    by_run: bool = False,
    repeated: bool = False,
) -> Accepted | None:
    """Make a wake for what waits, or end what can never be delivered. ``repeated``: see core.policy.wake.View."""
    run_class = RunClass.SUBAGENT if by_run else RunClass.INTERACTIVE
    decision, accepted = wake_if_due(transaction, session, pause=pause, run_class=run_class, repeated=repeated)
    if isinstance(decision, Lost):
        lose(transaction, session.id, decision.code, told_of=told_of)
    return accepted


def lose(transaction: Transaction, session_id: SessionId, code: str, *, told_of: Told, untold: bool = False) -> int:
    """What waits for the agent of a locked session is dead; how many. What another session has sent that is not locked
    is left to the sweep, which locks it and tells it. ``untold``: that, too, is dead now."""
    rows = transaction.connection.execute(
        select(agent_messages).where(*waiting(session_id)).order_by(agent_messages.c.seq)
    ).all()
    origins = {row.message_id: (parsed(row.sender) or {}).get("session_id") for row in rows}
    strange = {each for each in origins.values() if each is not None and each not in transaction.sessions}
    there = select(sessions.c.id).where(sessions.c.id.in_(strange))
    later_told = set(transaction.connection.execute(there).scalars()) if strange else set()
    mine = [row for row in rows if untold or origins[row.message_id] not in later_told]
    for row in mine:
        fail(transaction, row, code, told_of=told_of)
    return len(mine)


RUN_OVER = and_(agent_messages.c.run_id.is_not(None), ~IN_HAND)
"""Whoever had it in hands has it no more."""


def give_back(transaction: Transaction, session_id: SessionId, *, told_of: Told) -> int:
    """What attempts that are over had in their hands; how many were delivered and are queued again.

    What was said into a turn that ended is acknowledged by that end; one that was lost with its worker did not end. A
    turn of its own that did not end, or a text that nobody says any more, is given again.
    """
    c, returned = agent_messages.c, 0
    mine = (c.session_id == session_id, c.state.in_(UNSETTLED), RUN_OVER, c.mode != MessageMode.RUN.value)
    for row in transaction.connection.execute(select(agent_messages).where(*mine).order_by(c.seq)).all():
        steered, delivered = row.mode == MessageMode.STEER.value, row.state == MessageState.DELIVERED.value
        if steered and delivered and not _lost(transaction, row):
            change(transaction, row, MessageState.ACKED, told_of=told_of, by="turn")
            continue
        values: dict[str, Any] = {"run_id": None, "attempt": 0}
        if delivered:
            change(transaction, row, MessageState.QUEUED, told_of=told_of)
            values["redelivered"] = True
            returned += 1
        elif steered and _taken(transaction, row):
            values["redelivered"] = True  # a worker had it, and died before it said what came of it
        _set(transaction, row.message_id, **values)
    return returned


def _lost(transaction: Transaction, row: Any) -> bool:
    """Whether nobody can say how the attempt ended that had it."""
    c = run_attempts.c
    outcome = select(c.outcome).where(c.run_id == row.run_id, c.attempt == row.attempt)
    return transaction.connection.execute(outcome).scalar() == LOST


def _taken(transaction: Transaction, row: Any) -> bool:
    said = select(worker_commands.c.taken_at).where(worker_commands.c.request_id == row.delivery_id)
    return transaction.connection.execute(said).scalar() is not None


def steered(transaction: Transaction, session_id: SessionId, delivery_id: str, delivery: Delivery) -> Accepted | None:
    """What became of a text for the live turn. One that was not said waits for the next boundary; the wake for it, if
    there is to be one."""
    c = agent_messages.c
    row = transaction.connection.execute(
        select(agent_messages).where(
            c.session_id == session_id, c.delivery_id == delivery_id, c.state == MessageState.QUEUED.value
        )
    ).first()
    if row is None:
        return None
    told_of = Told()
    if delivery in (Delivery.DELIVERED, Delivery.UNVERIFIED):
        outcome = Outcome.CONFIRMED if delivery is Delivery.DELIVERED else Outcome.UNVERIFIED
        change(transaction, row, MessageState.DELIVERED, told_of=told_of, outcome=outcome.value)
        if row.run_id is None:  # given back meanwhile, and nobody has taken it again: the turn that had it is over
            change(transaction, _row(transaction, row.message_id), MessageState.ACKED, told_of=told_of, by="turn")
        return None
    _set(transaction, row.message_id, run_id=None, attempt=0, outcome=None)
    return tend(transaction, session_now(transaction, session_id), told_of, pause=PAUSE)


def withdraw_for_agent(transaction: Transaction, session_id: SessionId, message_id: str) -> bool:
    """A message is deleted from the mailbox by hand: nobody gets it any more. The session is locked. False: it was
    settled before, or is being delivered now."""
    row = transaction.connection.execute(
        select(agent_messages).where(
            agent_messages.c.message_id == message_id,
            agent_messages.c.session_id == session_id,
            agent_messages.c.state == MessageState.QUEUED.value,
            agent_messages.c.mode != MessageMode.RUN.value,
            ~IN_HAND,
        )
    ).first()
    if row is None:
        return False
    change(transaction, row, MessageState.DEAD, told_of=Told(), reason="withdrawn")
    return True


def redrive_for_agent(transaction: Transaction, message_id: str, *, by: str) -> Accepted | None:
    """The same message once more, by hand. Its session is locked. Raises Conflict."""
    row = _row(transaction, message_id)
    if row is None or row.session_id not in transaction.sessions:
        raise Conflict(f"message {message_id} is not there any more", code="not_redrivable")
    session = session_now(transaction, SessionId(row.session_id))
    if session.state is not SessionState.OPEN:
        raise Conflict(f"session {session.id} is {session.state}", code=SESSION_CLOSED)
    if not MessageState(row.state).settled or row.state == MessageState.ACKED.value:
        raise Conflict(f"message {message_id} is {row.state}", code="already_redriven")
    told_of = Told()
    again(transaction, row, told_of=told_of, by=by)
    payload = transaction.connection.execute(select(messages.c.payload).where(messages.c.id == message_id)).scalar_one()
    return _begin(
        transaction, session, _row(transaction, message_id), bytes(payload).decode(), told_of, pause=PAUSE
    ).wake


def _row(transaction: Transaction, message_id: str) -> Any:
    return transaction.connection.execute(
        select(agent_messages).where(agent_messages.c.message_id == message_id)
    ).first()


def _set(transaction: Transaction, message_id: str, **values: Any) -> None:
    transaction.connection.execute(
        update(agent_messages).where(agent_messages.c.message_id == message_id).values(**values)
    )
