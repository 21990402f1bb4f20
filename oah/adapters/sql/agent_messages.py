"""Messages for the agents of sessions, inside the transactions of others.

Who sends to a session's mailbox calls ``queue_for_agent`` in the transaction that stores the message. The lock order is
the store's: session rows in id order, then mailbox rows in id order. Whatever wakes the agent is written here too, so
that no message is there without the run that is to deliver it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert

from oah.adapters.sql.aggregate import Transaction
from oah.adapters.sql.columns import MICROSECOND, later, now
from oah.adapters.sql.mail_tables import agent_messages
from oah.core.model.ids import SessionId
from oah.core.model.mailbox import Mailbox
from oah.ports.mailboxes import ForAgent, NewMessage
from oah.ports.store import Accepted


@dataclass(frozen=True, slots=True)
class QueuedForAgent:
    """``event_number``: of ``message.queued`` in the session. ``wake``: a run that was made to deliver it; the broker
    is to hear of it after the commit (the relay repeats it)."""

    event_number: int
    wake: Accepted | None = None


def queue_for_agent(
    transaction: Transaction, mailbox: Mailbox, message: NewMessage, for_agent: ForAgent | None, *, seq: int | None
) -> QueuedForAgent:
    """A message for the agent of the mailbox's session, which is locked. ``seq``: the number it has in the mailbox;
    None: it is delayed, and ``number_for_agent`` is called when it is due.

    Raises Conflict ``session_closed``, LimitReached ``mailbox_full`` (``mailbox.max_messages`` unsettled ones),
    InvalidRequest, each before anything was written.
    """
    assert mailbox.session_id is not None  # a session's mailbox
    sender = for_agent.sender if for_agent is not None else None
    values: dict[str, Any] = {
        "message_id": message.id,
        "workspace_id": message.workspace_id,
        "session_id": mailbox.session_id,
        "seq": seq,
        "mode": "wait" if for_agent is None else for_agent.mode.value,
        "delivery_id": f"dlv_{message.id}",
        "sender": {} if sender is None else {"by": sender.by, "session_id": sender.session_id, "run_id": sender.run_id},
        "callback": None if for_agent is None else for_agent.callback,
        "expires_at": None if message.ttl is None else later(message.ttl // MICROSECOND),
    }
    transaction.connection.execute(insert(agent_messages).values(**values, created_at=now()))
    return QueuedForAgent(0)


def number_for_agent(transaction: Transaction, session_id: SessionId, message_id: str, *, seq: int) -> QueuedForAgent:
    """A delayed message is due and has its number; the session is locked."""
    transaction.connection.execute(
        agent_messages.update().where(agent_messages.c.message_id == message_id).values(seq=seq)
    )
    return QueuedForAgent(0)


def withdraw_for_agent(transaction: Transaction, session_id: SessionId, message_id: str, *, reason: str) -> bool:
    """A message is deleted from the mailbox (by hand): nobody gets it any more. The session is locked. False: it was
    settled before, or is being delivered now."""
    return False
