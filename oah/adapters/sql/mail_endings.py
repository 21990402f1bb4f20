"""Changes of a message for an agent, inside transactions that have locked its session (and that of its sender).

Each is one update with one event. What ends takes the message out of the count of unsettled ones; what ends badly is a
dead letter at once, and is told to the session that sent it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import insert, select, update

from oah.adapters.sql.aggregate import Transaction
from oah.adapters.sql.columns import now
from oah.adapters.sql.governance_tables import webhook_deliveries, webhooks
from oah.adapters.sql.letters import put
from oah.adapters.sql.mail_tables import agent_messages, messages
from oah.adapters.sql.rows import parsed
from oah.adapters.sql.tables import sessions
from oah.adapters.sql.wakes import new_id
from oah.core.lifecycle import MESSAGE
from oah.core.model.event import EventType
from oah.core.model.ids import RunId, SessionId
from oah.core.model.message import MessageState
from oah.ports.dead_letters import LetterKind

REASONS = {
    "expired": "nobody took it in time",
    "session_closed": "the session of the agent is closed",
    "session_unrecoverable": "the agent is gone, and nothing can go on with its conversation",
    "attempts_spent": "it was given to the agent too often without an end of its turn",
    "agent_takes_no_messages": "the program of this session would take a message for a command",
    "withdrawn": "it was deleted from the mailbox",
    "run_not_started": "the run that it became was never started",
}
Told = dict[SessionId, int]
"""The last event number of each session that has something new."""


def told(numbers: Told, session_id: SessionId, number: int) -> None:
    """Note it."""
    numbers[session_id] = max(number, numbers.get(session_id, 0))


def change(transaction: Transaction, row: Any, state: MessageState, *, told_of: Told, **facts: Any) -> None:
    """To another state, where the table allows it. ``facts``: columns, and what the event says."""
    MESSAGE.require(MessageState(row.state), state)
    values: dict[str, Any] = {"state": state.value}
    if state is MessageState.DELIVERED:
        values["delivered_at"] = now()
    columns = {name: facts[name] for name in ("outcome", "run_id", "attempt", "reason") if name in facts}
    if state.settled:
        values |= {"ended_at": now()}
        _count(transaction, row.session_id, -1)
        transaction.connection.execute(update(messages).where(messages.c.id == row.message_id).values(settled_at=now()))
    transaction.connection.execute(
        update(agent_messages).where(agent_messages.c.message_id == row.message_id).values(**values, **columns)
    )
    kind = EventType.MESSAGE_RETURNED if state is MessageState.QUEUED else EventType(f"message.{state.value}")
    tell(transaction, row, kind, told_of=told_of, **facts)


def tell(transaction: Transaction, row: Any, kind: EventType, *, told_of: Told, **facts: Any) -> int:
    """An event of the message, and its callback."""
    data = {"message_id": row.message_id, "seq": row.seq, "mode": row.mode}
    data |= {name: value for name, value in facts.items() if value is not None and name not in ("run_id", "attempt")}
    run_id, attempt = facts.get("run_id", row.run_id), facts.get("attempt", row.attempt)
    run = None if run_id is None else RunId(run_id)
    number = transaction.append_event(row.session_id, kind, run_id=run, attempt=attempt or 0, data=data)
    told(told_of, row.session_id, number)
    if row.callback is not None and kind is not EventType.MESSAGE_QUEUED:
        _call_back(transaction, row, number, kind, run)
    return number


def _call_back(transaction: Transaction, row: Any, number: int, kind: EventType, run_id: RunId | None) -> None:
    """Through the webhook that the sender named: its address was judged, and it signs."""
    there = select(webhooks.c.id).where(
        webhooks.c.id == row.callback, webhooks.c.workspace_id == row.workspace_id, webhooks.c.active
    )
    if transaction.connection.execute(there).first() is None:
        return
    transaction.insert_or_ignore(
        webhook_deliveries,
        id=new_id("whd"),
        webhook_id=row.callback,
        workspace_id=row.workspace_id,
        session_id=row.session_id,
        number=number,
        type=kind.value,
        run_id=run_id,
        next_at=now(),
        created_at=now(),
    )


def fail(transaction: Transaction, row: Any, code: str, *, told_of: Told) -> None:
    """Expired or dead: a dead letter, whole, and the sender is told in its own session."""
    reason = REASONS.get(code, code)
    state = MessageState.EXPIRED if code == "expired" else MessageState.DEAD
    change(transaction, row, state, told_of=told_of, reason=code, attempts=row.attempts)
    content = transaction.connection.execute(
        select(messages.c.payload, messages.c.headers, messages.c.priority).where(messages.c.id == row.message_id)
    ).first()
    sender = parsed(row.sender) or {}
    letter: dict[str, Any] = {
        "id": f"dl_{row.delivery_id}",
        "workspace_id": row.workspace_id,
        "kind": LetterKind.MESSAGE.value,
        "subject": row.message_id,
        "session_id": row.session_id,
        "code": code,
        "reason": reason,
        "payload": {
            "message_id": row.message_id,
            "session_id": row.session_id,
            "seq": row.seq,
            "mode": row.mode,
            "sender": sender,
            "outcome": row.outcome,
            "redelivered": bool(row.redelivered),
            "priority": 0 if content is None else content.priority,
            "headers": "" if content is None else bytes(content.headers).decode("utf-8", "replace"),
        },
        "payload_bytes": None if content is None else bytes(content.payload),
        "attempts": row.attempts,
        "note": None,
    }
    put(transaction, letter, first_at=row.created_at)
    data = {"dead_letter_id": letter["id"], "kind": "message", "code": code, "attempts": row.attempts}
    number = transaction.append_event(row.session_id, EventType.DEAD_LETTER_ADDED, data=data)
    told(told_of, row.session_id, number)
    origin = sender.get("session_id")
    if origin is not None and origin in transaction.sessions:
        data = {"message_id": row.message_id, "to": row.session_id, "code": code, "reason": reason}
        number = transaction.append_event(
            SessionId(origin), EventType.MESSAGE_FAILED, run_id=sender.get("run_id"), data=data
        )
        told(told_of, SessionId(origin), number)


def again(transaction: Transaction, row: Any, *, told_of: Told, by: str) -> None:
    """Redriven: the same message under a new delivery identity, its attempts anew and without the old time to live."""
    MESSAGE.require(MessageState(row.state), MessageState.QUEUED)
    values = {
        "state": MessageState.QUEUED.value,
        "delivery_id": new_id("dlv"),
        "attempts": 0,
        "redelivered": row.redelivered or row.attempts > 0,
        "outcome": None,
        "run_id": None,
        "attempt": 0,
        "reason": None,
        "ended_at": None,
        "expires_at": None,
    }
    connection = transaction.connection
    connection.execute(update(agent_messages).where(agent_messages.c.message_id == row.message_id).values(**values))
    connection.execute(update(messages).where(messages.c.id == row.message_id).values(settled_at=None, expires_at=None))
    _count(transaction, row.session_id, 1)
    tell(transaction, row, EventType.MESSAGE_QUEUED, told_of=told_of, redriven_by=by, run_id=None, attempt=0)


def add(transaction: Transaction, values: dict[str, Any]) -> None:
    """A new row; it counts as unsettled."""
    transaction.connection.execute(insert(agent_messages).values(**values, created_at=now()))
    _count(transaction, values["session_id"], 1)


def _count(transaction: Transaction, session_id: str, by: int) -> None:
    transaction.connection.execute(
        update(sessions).where(sessions.c.id == session_id).values(unsettled=sessions.c.unsettled + by)
    )
