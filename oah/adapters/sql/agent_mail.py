"""Messages for agents as workers, people and the agents themselves see them: taken, delivered, acknowledged, listed.

``attempts`` is counted and the delivery identity given before anything is typed, one message at a time: whatever dies
then, at most that one is given again, and it says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, func, select, update

from oah.adapters.sql.agent_messages import UNSETTLED, give_back, lose
from oah.adapters.sql.aggregate import Aggregate, Transaction
from oah.adapters.sql.mail_endings import Told, change, fail
from oah.adapters.sql.mail_tables import agent_messages, messages
from oah.adapters.sql.pages import paged
from oah.adapters.sql.rows import moment, parsed, required
from oah.adapters.sql.tables import runs, sessions
from oah.adapters.sql.text import cleaned
from oah.adapters.sql.wakes import ACTIVE, had_turns, make_wake, new_id, session_now, waiting, wake_if_due
from oah.core.model.delivery import Outcome
from oah.core.model.event import EventType
from oah.core.model.ids import DeliveryId, MessageId, RunId, SessionId, WorkspaceId
from oah.core.model.message import (
    AgentMessage,
    Cursors,
    MessageMode,
    MessageState,
    Priority,
    Sender,
)
from oah.core.model.session import SessionState
from oah.core.policy.wake import SESSION_CLOSED, Lost, NotNow, WhyNot
from oah.errors import Conflict, NotFound
from oah.ports.messages import Injected, MessageFilter, Settled, Taken, Woken
from oah.ports.rows import Page, RunFence

C = agent_messages.c
REPLY = 2_000
"""Characters of an agent's answer that the event of its acknowledgement repeats."""
_NOTHING = timedelta(0)


class AgentMail(Aggregate):
    """See ports.messages.MessageStore."""

    def agent_message(self, message_id: MessageId, workspace_id: WorkspaceId | None) -> AgentMessage:
        """With its payload."""
        with self._database.read() as connection:
            row = connection.execute(select(agent_messages).where(C.message_id == message_id)).first()
            if row is None or (workspace_id is not None and row.workspace_id != workspace_id):
                raise NotFound(f"no message {message_id} for an agent")
            return made(row, _contents(connection, [message_id]).get(message_id))

    def agent_messages(self, where: MessageFilter) -> Page[AgentMessage]:
        """Newest first."""
        statement = select(agent_messages, C.message_id.label("id"))
        for column, value in (
            (C.workspace_id, where.workspace_id),
            (C.session_id, where.session_id),
            (C.state, where.state and where.state.value),
        ):
            if value is not None:
                statement = statement.where(column == value)
        named = statement.subquery("agent_messages_named")
        with self._database.read() as connection:
            return paged(
                connection,
                select(named),
                named,  # type: ignore[arg-type]
                made,
                lambda item: (item.created_at, item.message_id),
                cursor=where.cursor,
                limit=where.limit,
            )

    def cursors(self, session_id: SessionId) -> Cursors:
        """Three probes of the session's index."""
        with self._database.read() as connection:
            return _cursors(connection, session_id)

    # --- the attempt that holds the session ---

    def take_messages(self, fence: RunFence, *, limit: int, most_attempts: int) -> Taken:
        """Looked at first without a lock, for those whose senders are to be told that they are dead."""
        with self._database.read() as connection:
            seen = connection.execute(select(C.sender, C.attempts).where(*waiting(fence.session_id))).all()
        spent = {(parsed(row.sender) or {}).get("session_id") for row in seen if row.attempts >= most_attempts}
        with self._transaction({fence.session_id, *(SessionId(each) for each in spent if each)}) as transaction:
            kind = _kind(transaction, fence)
            if kind is None:
                return Taken()
            told_of = Told()
            taken: list[Any] = []
            give_back(transaction, fence.session_id, told_of=told_of)
            found = select(agent_messages).where(*waiting(fence.session_id)).order_by(C.seq)
            for row in transaction.connection.execute(found.limit(limit + 256)).all():
                if len(taken) >= limit:
                    break
                if row.attempts >= most_attempts:
                    fail(transaction, row, "attempts_spent", told_of=told_of)
                    continue
                taken.append(_take(transaction, row, fence))
            if not taken:
                _clear_wake(transaction, fence)
            contents = _contents(transaction.connection, [row.message_id for row in taken])
            return Taken(
                tuple(made(row, contents.get(row.message_id)) for row in taken), told_of.get(fence.session_id, 0)
            )

    def lose_messages(self, fence: RunFence, *, code: str, after_turns: bool = False) -> int:
        """With their senders' sessions locked."""
        with self._database.read() as connection:
            senders = senders_of(connection, [fence.session_id])
        with self._transaction({fence.session_id, *senders}) as transaction:
            if _kind(transaction, fence) is None:
                return 0
            if after_turns and not had_turns(transaction.connection, fence.session_id):
                return 0
            told_of = Told()
            lose(transaction, fence.session_id, code, told_of=told_of, untold=True)
            _clear_wake(transaction, fence)
            return told_of.get(fence.session_id, 0)

    def end_wake(self, fence: RunFence) -> None:
        """Behind the fence."""
        with self._transaction([fence.session_id]) as transaction:
            if _kind(transaction, fence) is not None:
                _clear_wake(transaction, fence)

    def injected(self, fence: RunFence, done: Sequence[Injected]) -> Settled:
        """Each by its delivery identity."""
        senders: set[SessionId] = set()
        if any(each.refused is not None for each in done):
            with self._database.read() as connection:
                senders = senders_of(connection, [fence.session_id])
        with self._transaction({fence.session_id, *senders}) as transaction:
            told_of = Told()
            states = tuple(_injected(transaction, fence, each, told_of) for each in done)
            return Settled(states, told_of.get(fence.session_id, 0))

    # --- the agent itself, and people ---

    def ack_messages(self, session_id: SessionId, *, up_to: int, by: str) -> tuple[Cursors, int]:
        """In order, as far as they were delivered."""
        with self._transaction([session_id]) as transaction:
            told_of = Told()
            rows = transaction.connection.execute(
                select(agent_messages)
                .where(C.session_id == session_id, C.state.in_(UNSETTLED), C.seq <= up_to)
                .order_by(C.seq)
            ).all()
            for row in rows:
                if row.state != MessageState.DELIVERED.value:
                    break
                change(transaction, row, MessageState.ACKED, told_of=told_of, by=by)
            return _cursors(transaction.connection, session_id), told_of.get(session_id, 0)

    def wake_session(self, session_id: SessionId, workspace_id: WorkspaceId | None, *, by: str) -> Woken:
        """As the rules say, but for what is a matter of patience: a person asks."""
        with self._transaction([session_id]) as transaction:
            _require(transaction, session_id, workspace_id)
            session = session_now(transaction, session_id)
            if session.state is not SessionState.OPEN:
                raise Conflict(f"session {session_id} is {session.state}", code=SESSION_CLOSED)
            transaction.connection.execute(
                update(sessions)
                .where(sessions.c.id == session_id)
                .values(wake_failures=0, wake_stopped=None, wake_after=None)
            )
            number = 0
            if session.wake_stopped is not None:
                number = transaction.append_event(session_id, EventType.WAKE_RESUMED, data={"by": by})
            session = session_now(transaction, session_id)
            decision, accepted = wake_if_due(transaction, session, pause=_NOTHING)
            if isinstance(decision, NotNow) and decision.why is WhyNot.LAZY:
                accepted = make_wake(transaction, session, after=_NOTHING, pause=_NOTHING, by=by)
            if isinstance(decision, Lost):
                told_of = Told()
                lose(transaction, session_id, decision.code, told_of=told_of)
                number = told_of.get(session_id, number)
            count = select(func.count()).select_from(agent_messages).where(*waiting(session_id))
            why = None if accepted is not None else decision.code if isinstance(decision, Lost) else None
            return Woken(
                session_id=session_id,
                mode=session.wake,
                waiting=transaction.connection.execute(count).scalar_one(),
                run_id=session.wake_run_id if accepted is None else accepted.run.id,
                why_not=decision.why.value if accepted is None and isinstance(decision, NotNow) else why,
                accepted=accepted,
                number=number if accepted is None else accepted.event_number,
            )


def senders_of(connection: Connection, ids: Sequence[SessionId]) -> set[SessionId]:
    """The sessions that sent what is not settled in these."""
    found = connection.execute(select(C.sender).where(C.session_id.in_(ids), C.state.in_(UNSETTLED))).scalars()
    named = {(parsed(sender) or {}).get("session_id") for sender in found}
    return {SessionId(each) for each in named if each}


def _take(transaction: Transaction, row: Any, fence: RunFence) -> Any:
    """Into the hands of this attempt; nothing is typed yet."""
    values = {
        "delivery_id": new_id("dlv"),
        "attempts": row.attempts + 1,
        "redelivered": bool(row.redelivered) or (row.attempts > 0 and row.outcome != Outcome.FAILED.value),
        "run_id": fence.run_id,
        "attempt": fence.attempt,
        "outcome": None,
        "reason": None,
    }
    connection = transaction.connection
    connection.execute(update(agent_messages).where(C.message_id == row.message_id).values(**values))
    return connection.execute(select(agent_messages).where(C.message_id == row.message_id)).one()


def _injected(transaction: Transaction, fence: RunFence, done: Injected, told_of: Told) -> MessageState:
    connection = transaction.connection
    row = connection.execute(select(agent_messages).where(C.message_id == done.message_id)).first()
    if row is None:
        return MessageState.DEAD
    state = MessageState(row.state)
    if row.delivery_id != done.delivery_id or state.settled or row.session_id != fence.session_id:
        return state
    if done.refused is not None:
        fail(transaction, row, done.refused, told_of=told_of)
        return MessageState.DEAD
    if done.untried and state is MessageState.QUEUED:
        values = {"attempts": row.attempts - 1, "run_id": None, "attempt": 0}
        connection.execute(update(agent_messages).where(C.message_id == row.message_id).values(**values))
        return state
    if done.outcome == Outcome.FAILED.value:
        # It is not in the agent's turn; the attempt that has it gives it back by ending.
        connection.execute(update(agent_messages).where(C.message_id == row.message_id).values(outcome=done.outcome))
        return state
    if state is MessageState.QUEUED:
        facts = {"outcome": done.outcome, "delivery_id": row.delivery_id, "attempts": row.attempts}
        change(
            transaction,
            row,
            MessageState.DELIVERED,
            told_of=told_of,
            redelivered=True if row.redelivered else None,
            **facts,
        )
        connection.execute(
            update(sessions).where(sessions.c.id == fence.session_id).values(wake_failures=0, wake_stopped=None)
        )
    if done.turn_over:
        row = connection.execute(select(agent_messages).where(C.message_id == done.message_id)).one()
        reply = None if done.reply is None else cleaned(done.reply[:REPLY])
        change(transaction, row, MessageState.ACKED, told_of=told_of, by="turn", reply=reply, outcome=done.outcome)
        return MessageState.ACKED
    return MessageState.DELIVERED


def _kind(transaction: Transaction, fence: RunFence) -> str | None:
    """Of the run of this attempt; None: it is not ours any more."""
    kind: str | None = transaction.connection.execute(
        select(runs.c.kind).where(
            runs.c.id == fence.run_id,
            runs.c.session_id == fence.session_id,
            runs.c.attempt == fence.attempt,
            runs.c.claim_token == fence.token,
            runs.c.status.in_(ACTIVE),
        )
    ).scalar_one_or_none()
    return kind


def _clear_wake(transaction: Transaction, fence: RunFence) -> None:
    transaction.connection.execute(
        update(sessions)
        .where(sessions.c.id == fence.session_id, sessions.c.wake_run_id == fence.run_id)
        .values(wake_run_id=None)
    )


def _require(transaction: Transaction, session_id: SessionId, workspace_id: WorkspaceId | None) -> None:
    if session_id not in transaction.sessions or workspace_id not in (
        None,
        session_now(transaction, session_id).workspace_id,
    ):
        raise NotFound(f"no session {session_id}")


def _cursors(connection: Connection, session_id: SessionId) -> Cursors:
    mine = (C.session_id == session_id, C.seq.is_not(None))
    last = connection.execute(select(func.max(C.seq)).where(*mine)).scalar() or 0
    first = connection.execute(select(func.min(C.seq)).where(*mine, C.state.in_(UNSETTLED))).scalar()
    waits = connection.execute(select(func.min(C.seq)).where(*mine, C.state == MessageState.QUEUED.value)).scalar()
    return Cursors(
        received=int(last if waits is None else waits - 1),
        acked=int(last if first is None else first - 1),
        last=int(last),
    )


def _contents(connection: Connection, ids: Sequence[str]) -> Mapping[str, Any]:
    if not ids:
        return {}
    found = connection.execute(
        select(messages.c.id, messages.c.payload, messages.c.headers, messages.c.priority).where(messages.c.id.in_(ids))
    )
    return {row.id: row for row in found}


def made(row: Any, content: Any = None) -> AgentMessage:
    """A row, with its content where that was read."""
    sender = parsed(row.sender) or {}
    return AgentMessage(
        message_id=MessageId(row.message_id),
        workspace_id=WorkspaceId(row.workspace_id),
        session_id=SessionId(row.session_id),
        seq=row.seq,
        mode=MessageMode(row.mode),
        state=MessageState(row.state),
        delivery_id=DeliveryId(row.delivery_id),
        attempts=row.attempts,
        sender=Sender(by=sender.get("by") or "", session_id=sender.get("session_id"), run_id=sender.get("run_id")),
        created_at=required(row.created_at),
        outcome=row.outcome,
        redelivered=bool(row.redelivered),
        run_id=None if row.run_id is None else RunId(row.run_id),
        callback=row.callback,
        expires_at=moment(row.expires_at),
        delivered_at=moment(row.delivered_at),
        ended_at=moment(row.ended_at),
        reason=row.reason,
        payload=b"" if content is None else bytes(content.payload),
        headers=b"" if content is None else bytes(content.headers),
        priority=Priority.NORMAL if content is None else Priority(content.priority),
    )
