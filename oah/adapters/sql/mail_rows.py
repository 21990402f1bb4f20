"""What the modules of mailboxes share: rows as values, what is alive, and the one lock order.

Whoever changes a mailbox, its messages or its leases has locked the mailbox's row first, several in the order of their
ids, and sessions before all of them. The count of a workspace's mailboxes is locked behind all that (``mail_room.py``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    any_,
    delete,
    func,
    literal,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY

from oah.adapters.sql.aggregate import picked
from oah.adapters.sql.columns import now
from oah.adapters.sql.mail_tables import LIVE, group_leases, mailboxes, messages
from oah.adapters.sql.rows import parsed, required
from oah.core.model.ids import MailboxId, MessageId, SessionId, WorkspaceId
from oah.core.model.mailbox import Mailbox
from oah.core.model.message import Message, Priority
from oah.errors import Conflict, NotFound

MAILBOX: tuple[ColumnElement[Any], ...] = tuple(
    picked(
        mailboxes,
        (
            "id", "workspace_id", "address", "public", "description", "session_id", "ttl_ms", "max_messages",
            "last_seq", "messages", "turn", "created_at", "expires_at",
        ),
    )
)  # fmt: skip
SUMMARY: tuple[ColumnElement[Any], ...] = (
    *picked(messages, ("id", "mailbox_id", "seq", "priority", "sender", "key", "tags", "sent_at", "expires_at")),
    func.length(messages.c.payload).label("size"),
)
WHOLE: tuple[ColumnElement[Any], ...] = (*SUMMARY, messages.c.payload, messages.c.headers)
TOMB = "#"
"""No address has it: the name of a mailbox that was deleted or replaced is free at once, its rows go later."""
IS_LIVE = text(LIVE)
ALIVE = or_(mailboxes.c.expires_at.is_(None), mailboxes.c.expires_at > now())
UNEXPIRED = or_(messages.c.expires_at.is_(None), messages.c.expires_at > now())


def mailbox_of(row: Any) -> Mailbox:
    """A row of MAILBOX."""
    return Mailbox(
        id=MailboxId(row.id),
        workspace_id=WorkspaceId(row.workspace_id),
        address=row.address,
        public=bool(row.public),
        description=row.description,
        session_id=None if row.session_id is None else SessionId(row.session_id),
        ttl=None if row.ttl_ms is None else timedelta(milliseconds=row.ttl_ms),
        max_messages=row.max_messages,
        last_seq=row.last_seq,
        messages=row.messages,
        turn=row.turn,
        created_at=required(row.created_at),
        expires_at=row.expires_at,
    )


def message_of(row: Any) -> Message:
    """A row of SUMMARY or WHOLE."""
    return Message(
        id=MessageId(row.id),
        mailbox_id=MailboxId(row.mailbox_id),
        seq=row.seq or 0,
        priority=Priority(row.priority),
        sender=row.sender,
        key=row.key,
        tags=tuple(parsed(row.tags) or ()),
        sent_at=required(row.sent_at),
        expires_at=row.expires_at,
        size=row.size,
        payload=bytes(getattr(row, "payload", b"")),
        headers=bytes(getattr(row, "headers", b"")),
    )


def moment(connection: Connection) -> datetime:
    """The database's clock, as a value: an index can be used with it, and all that is written has the same."""
    value: datetime = connection.execute(select(now())).scalar_one()
    return value


def among(connection: Connection, column: ColumnElement[Any], values: Collection[Any]) -> ColumnElement[bool]:
    """The column is one of the values: one parameter, however many there are."""
    wanted = sorted(values)
    if connection.dialect.name == "postgresql":
        return column == any_(literal(wanted, ARRAY(column.type)))
    each = func.json_each(json.dumps(wanted)).table_valued("value")
    return column.in_(select(each.c.value))


def missing(address: str) -> NotFound:
    """No such mailbox."""
    return NotFound(f"no mailbox {address}", code="mailbox_not_found")


def expired(address: str) -> NotFound:
    """There was one, until a moment ago."""
    return NotFound(f"mailbox {address} has expired", code="mailbox_expired")


def gone(mailbox_id: str) -> NotFound:
    """Expired, deleted, or never there."""
    return NotFound(f"mailbox {mailbox_id} is gone", code="mailbox_gone")


def lock_mailboxes(connection: Connection, ids: Collection[str]) -> dict[str, Mailbox]:
    """Lock the rows in id order; those that are there, dead or alive."""
    if not ids:
        return {}
    rows = connection.execute(
        select(*MAILBOX)
        .where(among(connection, mailboxes.c.id, ids))
        .order_by(mailboxes.c.id)
        .with_for_update(key_share=True)
    )
    return {row.id: mailbox_of(row) for row in rows}


def lock_mailbox(connection: Connection, mailbox_id: str) -> tuple[Mailbox, datetime]:
    """Lock one that lives, and the moment of that. Raises NotFound ``mailbox_gone``."""
    mailbox = lock_mailboxes(connection, [mailbox_id]).get(mailbox_id)
    at = moment(connection)
    if mailbox is None or not lives(mailbox, at):
        raise gone(mailbox_id)
    return mailbox, at


def lock_open_mailbox(connection: Connection, mailbox_id: str) -> tuple[Mailbox, datetime]:
    """The same, of one whose messages anybody may take. Raises Conflict ``session_mailbox``."""
    mailbox, at = lock_mailbox(connection, mailbox_id)
    if mailbox.session_id is not None:
        raise Conflict(
            f"{mailbox.address} is the mailbox of a session: its messages are its agent's",
            code="session_mailbox",
            hint=f"see /v1/sessions/{mailbox.session_id}/messages",
        )
    return mailbox, at


def lives(mailbox: Mailbox, at: datetime) -> bool:
    """Whether it has not expired."""
    return mailbox.expires_at is None or mailbox.expires_at > at


def fetch(connection: Connection, ids: Sequence[str]) -> dict[str, Message]:
    """Whole messages by their ids, those that have not expired."""
    if not ids:
        return {}
    rows = connection.execute(select(*WHOLE).where(among(connection, messages.c.id, ids), UNEXPIRED))
    return {row.id: message_of(row) for row in rows}


def remove(connection: Connection, mailbox_id: str, ids: Collection[str], numbers: Iterable[int | None]) -> int:
    """Delete messages of a locked mailbox, their leases with them; how many were there."""
    if not ids:
        return 0
    count = connection.execute(
        # The mailbox as no index has it: a planner without statistics would take the one of all that is in it.
        delete(messages).where(among(connection, messages.c.id, ids), messages.c.mailbox_id.concat("") == mailbox_id)
    ).rowcount
    seqs = [number for number in numbers if number is not None]
    if seqs:
        connection.execute(
            delete(group_leases).where(
                group_leases.c.mailbox_id == mailbox_id, among(connection, group_leases.c.seq, seqs)
            )
        )
    if count:
        connection.execute(
            update(mailboxes).where(mailboxes.c.id == mailbox_id).values(messages=mailboxes.c.messages - count)
        )
    return count


def touch(connection: Connection, ids: Collection[str]) -> None:
    """Something in these mailboxes, which are locked, can be read again."""
    if ids:
        connection.execute(
            update(mailboxes).where(among(connection, mailboxes.c.id, ids)).values(turn=mailboxes.c.turn + 1)
        )


def replace_keys(connection: Connection, mailbox_id: str, newest: dict[str, int]) -> None:
    """Of each key only the message with this number stays."""
    if not newest:
        return
    # Nothing is asked but what the index of keys has: a planner without statistics might take another one.
    theirs = (messages.c.mailbox_id == mailbox_id, among(connection, messages.c.key, newest))
    named = connection.execute(select(messages.c.id, messages.c.seq, messages.c.key).where(*theirs)).all()
    rows = [row for row in named if row.seq is not None and row.seq < newest[row.key]]
    remove(connection, mailbox_id, [row.id for row in rows], [row.seq for row in rows])
