"""Sending: many messages in one transaction, each refused alone.

Sessions are locked first (the receivers' and, to be told of a failure, the senders'), then mailboxes, each in the order
of their ids. Numbers are given under the mailbox's lock, so they are dense and in the order of the commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, insert, select, text, update

from oah.adapters.sql.agent_messages import queue_for_agent
from oah.adapters.sql.aggregate import Aggregate, Transaction
from oah.adapters.sql.columns import now
from oah.adapters.sql.mail_rows import (
    TOMB,
    among,
    expired,
    lives,
    lock_mailboxes,
    missing,
    moment,
    remove,
    replace_keys,
)
from oah.adapters.sql.mail_tables import MORTAL, mailboxes, message_keys, messages
from oah.adapters.sql.rows import session_of
from oah.adapters.sql.text import sound
from oah.core.model.ids import MailboxId, MessageId, SessionId
from oah.core.model.mailbox import SESSION_PREFIX, Mailbox
from oah.errors import InvalidRequest, LimitReached, RequestError
from oah.ports.mailboxes import NewMessage, Sent

Name = tuple[str, str]
"""Of a mailbox: workspace, address."""


@dataclass(slots=True)
class _Box:
    """A locked mailbox, as this transaction has made it so far."""

    mailbox: Mailbox
    last_seq: int
    count: int
    known: dict[str, Sent] = field(default_factory=dict)
    """Answers of dedup keys that are remembered."""
    newest: dict[str, int] = field(default_factory=dict)
    """Of keys that are replaced: the number that stays."""


@dataclass(slots=True)
class _Writes:
    """What is inserted at the end, together."""

    at: datetime
    rows: list[dict[str, Any]] = field(default_factory=list)
    keys: list[dict[str, Any]] = field(default_factory=list)


class MailSends(Aggregate):
    """See MailboxStore."""

    def send_messages(
        self, messages_: Sequence[NewMessage], *, session_messages: int = 256
    ) -> list[Sent | RequestError]:
        """One transaction."""
        if not messages_:
            return []
        with self._transaction(_sessions(messages_)) as transaction:
            connection = transaction.connection
            self._database.by_index(connection)
            good = [each for each in messages_ if _unsound(each) is None]
            boxes, refused = _locked(transaction, good, session_messages)
            writes = _Writes(moment(connection))
            _remember(connection, good, boxes, writes.at)
            answers = [
                _unsound(each) or _send(transaction, each, boxes, refused, writes, session_messages)
                for each in messages_
            ]
            _write(transaction, boxes, writes)
        return answers


def _sessions(messages_: Sequence[NewMessage]) -> set[SessionId]:
    found: set[SessionId] = set()
    for each in messages_:
        if each.address.startswith(SESSION_PREFIX) and sound(each.address):
            found.add(SessionId(each.address))
            if each.for_agent is not None and each.for_agent.sender.session_id is not None:
                found.add(each.for_agent.sender.session_id)
    return found


def _unsound(message: NewMessage) -> RequestError | None:
    texts = (message.address, message.sender, message.dedup_key, message.key, *message.tags)
    if all(text is None or sound(text) for text in texts):
        return None
    return InvalidRequest("a text of this message contains a NUL or a lone surrogate")


def _name(message: NewMessage) -> Name:
    return message.workspace_id, message.address


def _locked(
    transaction: Transaction, messages_: Sequence[NewMessage], session_messages: int
) -> tuple[dict[Name, _Box], dict[Name, RequestError]]:
    """The mailboxes of all these messages, locked; why those that are not there are not."""
    names = {_name(each) for each in messages_}
    refused: dict[Name, RequestError] = {}
    for name in sorted(names):
        if name[1].startswith(SESSION_PREFIX) and not _made(transaction, name, session_messages):
            refused[name] = missing(name[1])
    names -= refused.keys()
    if not names:
        return {}, refused
    connection = transaction.connection
    ids: list[str] = []
    for workspace_id in sorted({name[0] for name in names}):
        addresses = {name[1] for name in names if name[0] == workspace_id}
        theirs = (mailboxes.c.workspace_id == workspace_id, among(connection, mailboxes.c.address, addresses))
        ids += connection.execute(select(mailboxes.c.id).where(*theirs)).scalars()
    found = lock_mailboxes(connection, ids).values()
    boxes: dict[Name, _Box] = {}
    at = moment(connection)
    for mailbox in found:
        name = (mailbox.workspace_id, mailbox.address.partition(TOMB)[0])
        if lives(mailbox, at):
            boxes[name] = _Box(mailbox, mailbox.last_seq, mailbox.messages)
        else:
            refused[name] = expired(name[1])
    return boxes, refused


def _made(transaction: Transaction, name: Name, session_messages: int) -> bool:
    """The mailbox of a session that is locked: there is one as long as there is the session."""
    workspace_id, address = name
    row = transaction.sessions.get(address)
    if row is None or session_of(row).workspace_id != workspace_id:
        return False
    transaction.insert_or_ignore(
        mailboxes,
        id=f"mbx_{address}",
        workspace_id=workspace_id,
        address=address,
        public=False,
        description="",
        session_id=address,
        max_messages=session_messages,
        created_at=now(),
    )
    return True


def _remember(connection: Connection, messages_: Sequence[NewMessage], boxes: dict[Name, _Box], at: datetime) -> None:
    """Dedup keys that were used within their window."""
    named: dict[str, set[str]] = {}
    for each in messages_:
        if each.dedup_key is not None and _name(each) in boxes:
            named.setdefault(boxes[_name(each)].mailbox.id, set()).add(each.dedup_key)
    by_id = {box.mailbox.id: box for box in boxes.values()}
    for mailbox_id, keys in named.items():
        theirs = (message_keys.c.mailbox_id == mailbox_id, among(connection, message_keys.c.dedup_key, keys))
        for row in connection.execute(select(message_keys).where(*theirs, message_keys.c.until > at)):
            box = by_id[MailboxId(mailbox_id)]
            box.known[row.dedup_key] = _sent(box, MessageId(row.message_id), row.seq, duplicate=True)


def _sent(box: _Box, message_id: MessageId, seq: int | None, **more: Any) -> Sent:
    mailbox = box.mailbox
    return Sent(message_id=message_id, mailbox_id=mailbox.id, seq=seq, session_id=mailbox.session_id, **more)


def _send(
    transaction: Transaction,
    message: NewMessage,
    boxes: dict[Name, _Box],
    refused: dict[Name, RequestError],
    writes: _Writes,
    session_messages: int,
) -> Sent | RequestError:
    box = boxes.get(_name(message))
    if box is None:
        return refused.get(_name(message)) or missing(message.address)
    if message.dedup_key is not None and message.dedup_key in box.known:
        return box.known[message.dedup_key]
    try:
        if box.mailbox.session_id is not None:
            sent = _to_agent(transaction, message, box, writes.at, session_messages)
        else:
            _require_room(transaction.connection, box, writes.at)
            writes.rows.append(_row(message, box, writes.at))
            sent = _sent(box, message.id, _number(box, message))
            box.count += 1
    except RequestError as error:
        return error
    if message.dedup_key is not None:
        box.known[message.dedup_key] = replace(sent, duplicate=True, wake=None, event_number=0, look=None)
        until = writes.at + message.dedup_window
        key = {"mailbox_id": box.mailbox.id, "dedup_key": message.dedup_key, "message_id": message.id}
        writes.keys.append({**key, "seq": sent.seq, "until": until})
    return sent


def _to_agent(transaction: Transaction, message: NewMessage, box: _Box, at: datetime, session_messages: int) -> Sent:
    """Behind a savepoint: its row is there before what is made of it, and goes with it. Raises RequestError."""
    mailbox = replace(box.mailbox, max_messages=session_messages)
    savepoint = transaction.savepoint()
    before = box.last_seq
    try:
        transaction.connection.execute(insert(messages).values(**_row(message, box, at)))
        seq = _number(box, message)
        queued = queue_for_agent(transaction, mailbox, message, message.for_agent, seq=seq)
    except BaseException:
        savepoint.rollback()
        box.last_seq = before
        raise
    savepoint.commit()
    return _sent(box, message.id, seq, event_number=queued.event_number, wake=queued.wake, look=queued.look)


def _number(box: _Box, message: NewMessage) -> int | None:
    """The next number, which ``_row`` has written already."""
    if message.delay:
        return None
    box.last_seq += 1
    if message.key is not None and box.mailbox.session_id is None:
        box.newest[message.key] = box.last_seq
    return box.last_seq


def _row(message: NewMessage, box: _Box, at: datetime) -> dict[str, Any]:
    delay = message.delay or timedelta(0)
    return {
        "id": message.id,
        "mailbox_id": box.mailbox.id,
        "seq": None if delay else box.last_seq + 1,
        "priority": message.priority.value,
        "payload": message.payload,
        "headers": message.headers,
        "sender": message.sender,
        "key": message.key,
        "tags": list(message.tags),
        "sent_at": at,
        "due_at": at + delay if delay else None,
        "expires_at": None if message.ttl is None else at + message.ttl,
    }


def _require_room(connection: Connection, box: _Box, at: datetime) -> None:
    """What has expired takes no room, whether or not the sweep has been there."""
    mailbox = box.mailbox
    if box.count < mailbox.max_messages:
        return
    dead = select(messages.c.id, messages.c.seq).where(
        messages.c.mailbox_id == mailbox.id, messages.c.expires_at <= at, text(MORTAL)
    )
    rows = connection.execute(dead).all()
    box.count -= remove(connection, mailbox.id, [row.id for row in rows], [row.seq for row in rows])
    if box.count >= mailbox.max_messages:
        raise LimitReached(
            f"mailbox {mailbox.address} has {mailbox.max_messages} messages",
            code="mailbox_full",
            hint="wait until some are deleted or have expired",
        )


def _write(transaction: Transaction, boxes: dict[Name, _Box], writes: _Writes) -> None:
    connection = transaction.connection
    if writes.rows:
        connection.execute(insert(messages), writes.rows)
    by_id = {box.mailbox.id: box for box in boxes.values()}
    added: dict[str, int] = {}
    for row in writes.rows:
        added[row["mailbox_id"]] = added.get(row["mailbox_id"], 0) + 1
    for name, box in sorted(by_id.items()):
        if box.last_seq != box.mailbox.last_seq or name in added:
            connection.execute(
                update(mailboxes)
                .where(mailboxes.c.id == name)
                .values(last_seq=box.last_seq, messages=mailboxes.c.messages + added.get(name, 0))
            )
        replace_keys(connection, name, box.newest)
    for key in sorted(writes.keys, key=lambda each: (each["mailbox_id"], each["dedup_key"])):
        statement = transaction.upsert(message_keys).values(**key)
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=["mailbox_id", "dedup_key"],
                set_={name: statement.excluded[name] for name in ("message_id", "seq", "until")},
            )
        )
