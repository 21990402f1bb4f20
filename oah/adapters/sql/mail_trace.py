"""Where a message has been: everything that names it, for people who ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Text, cast, select

from oah.adapters.sql.agent_mail import made
from oah.adapters.sql.aggregate import Aggregate, picked
from oah.adapters.sql.governance_tables import dead_letters
from oah.adapters.sql.mail_rows import MAILBOX, SUMMARY, mailbox_of, message_of
from oah.adapters.sql.mail_tables import agent_messages, group_cursors, group_leases, mailboxes, messages
from oah.adapters.sql.rows import EVENT_COLUMNS, event_of, moment, required
from oah.adapters.sql.tables import run_events
from oah.core.model.event import Event
from oah.core.model.ids import MessageId, WorkspaceId
from oah.core.model.message import AgentMessage, Message
from oah.errors import NotFound
from oah.ports.traces import GroupShare, LetterMark, MessageTrace, ShareState

MOST_EVENTS = 200


class MailTrace(Aggregate):
    """See ports.traces.TraceStore."""

    def trace_message(self, message_id: MessageId, workspace_id: WorkspaceId | None) -> MessageTrace:
        """One look each at what names it. A workspace sees what is its own."""
        hint = "what was deleted from a mailbox leaves no trace"
        unknown = NotFound(f"no message {message_id}", code="message_not_found", hint=hint)
        if "\0" in message_id:
            raise unknown
        with self._database.read() as connection:
            row = connection.execute(
                select(*SUMMARY, messages.c.headers, messages.c.due_at, messages.c.settled_at).where(
                    messages.c.id == message_id
                )
            ).first()
            box = None if row is None else _mailbox(connection, row.mailbox_id)
            agent = _agent(connection, message_id)
            letters = _letters(connection, message_id, workspace_id)
            owner = box.workspace_id if box is not None else agent.workspace_id if agent is not None else None
            theirs = workspace_id is not None and owner is not None and owner != workspace_id
            if theirs or (owner is None and not letters):
                raise unknown
            return MessageTrace(
                id=message_id,
                message=None if row is None else message_of(row),
                mailbox=box,
                due_at=None if row is None else moment(row.due_at),
                settled_at=None if row is None else moment(row.settled_at),
                for_agent=agent,
                groups=() if row is None or row.seq is None else _groups(connection, message_of(row)),
                letters=letters,
                events=() if agent is None else _events(connection, agent),
            )


def _mailbox(connection: Connection, mailbox_id: str) -> Any:
    row = connection.execute(select(*MAILBOX).where(mailboxes.c.id == mailbox_id)).first()
    return None if row is None else mailbox_of(row)


def _agent(connection: Connection, message_id: str) -> AgentMessage | None:
    row = connection.execute(select(agent_messages).where(agent_messages.c.message_id == message_id)).first()
    return None if row is None else made(row)


def _groups(connection: Connection, message: Message) -> Sequence[GroupShare]:
    """By the cursors of the groups; what lies below one and has no row is done."""
    c, held = group_cursors.c, group_leases.c
    cursors: dict[str, int] = {}
    for row in connection.execute(select(c.group_name, c.priority, c.seq).where(c.mailbox_id == message.mailbox_id)):
        mine = row.seq if row.priority == int(message.priority) else 0
        cursors[row.group_name] = max(mine, cursors.get(row.group_name, 0))
    leases = connection.execute(
        select(held.group_name, held.lease_id, held.attempts, held.until).where(
            held.mailbox_id == message.mailbox_id, held.seq == message.seq
        )
    )
    found = {row.group_name: row for row in leases}
    return [_share(message, group, cursor, found.get(group)) for group, cursor in sorted(cursors.items())]


def _share(message: Message, group: str, cursor: int, row: Any) -> GroupShare:
    if row is not None:
        state = ShareState.GIVEN_BACK if row.lease_id is None else ShareState.HELD
        return GroupShare(group, state, row.attempts, moment(row.until))
    return GroupShare(group, ShareState.DONE if cursor >= message.seq else ShareState.AHEAD)


def _letters(connection: Connection, message_id: str, workspace_id: WorkspaceId | None) -> Sequence[LetterMark]:
    c = dead_letters.c
    wanted = select(c.id, c.code, c.reason, c.attempts, c.last_at, c.redriven_at, c.redriven_by).where(
        c.kind == "message", c.subject == message_id
    )
    if workspace_id is not None:
        wanted = wanted.where(c.workspace_id == workspace_id)
    return [
        LetterMark(
            id=row.id,
            code=row.code,
            reason=row.reason,
            attempts=row.attempts,
            last_at=required(row.last_at),
            redriven_at=moment(row.redriven_at),
            redriven_by=row.redriven_by,
        )
        for row in connection.execute(wanted.order_by(c.last_at))
    ]


def _events(connection: Connection, agent: AgentMessage) -> Sequence[Event]:
    """Of the session that it is for, and of the one that it came from."""
    sessions = {agent.session_id, *([agent.sender.session_id] if agent.sender.session_id else [])}
    c = run_events.c
    rows = connection.execute(
        select(*picked(run_events, EVENT_COLUMNS))
        .where(
            c.session_id.in_(sorted(sessions)),
            c.type.startswith("message."),
            cast(c.data, Text).contains(agent.message_id, autoescape=True),
        )
        .order_by(c.at, c.number)
        .limit(MOST_EVENTS)
    )
    found = [event_of(row) for row in rows]
    return [event for event in found if event.data.get("message_id") == agent.message_id]
