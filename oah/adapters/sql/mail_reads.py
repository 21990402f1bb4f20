"""Reading a mailbox by index, and deleting from it.

Priorities are walked from the highest down, each by the unique index of what is live: a read costs what it returns.
What is chosen is weighed before its payloads are fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, func, literal, literal_column, select, union_all

from oah.adapters.sql.agent_messages import withdraw_for_agent
from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.mail_rows import (
    ALIVE,
    IS_LIVE,
    SUMMARY,
    UNEXPIRED,
    WHOLE,
    fetch,
    gone,
    lock_mailbox,
    lock_open_mailbox,
    message_of,
    remove,
)
from oah.adapters.sql.mail_tables import group_leases, mailboxes, messages
from oah.adapters.sql.pages import LONGEST
from oah.core.model.ids import MailboxId, SessionId
from oah.core.model.message import Message, Priority
from oah.errors import InvalidRequest, NotFound
from oah.ports.mailboxes import MOST_BYTES, Watermarks
from oah.ports.rows import Page


class Pick(NamedTuple):
    """A message that may be read, with its weight. ``attempts``: how often its group was handed it."""

    priority: int
    seq: int
    id: str
    size: int
    attempts: int = 0


class MailReads(Aggregate):
    """See MailboxStore."""

    def ready_messages(
        self,
        mailbox_id: MailboxId,
        had: Watermarks,
        *,
        limit: int,
        priorities: Sequence[Priority] = tuple(Priority),
        most_bytes: int = MOST_BYTES,
    ) -> list[Message]:
        """Chosen in one statement, fetched in a second. What is deleted or expires between them is not there; where
        that was all, it is looked further: a reader takes nothing for the end, and sleeps."""
        if limit < 1:
            raise InvalidRequest("limit must be at least 1")
        while True:
            picks, found = self._once(mailbox_id, had, limit, priorities, most_bytes)
            if found or not picks:
                return found

    def _once(
        self, mailbox_id: MailboxId, had: Watermarks, limit: int, priorities: Sequence[Priority], most_bytes: int
    ) -> tuple[list[Pick], list[Message]]:
        after = {priority: had.had.get(priority, 0) for priority in priorities}
        with self._database.read() as connection:
            self._database.by_index(connection)
            there = select(literal_column("-1"), literal_column("0"), mailboxes.c.id, literal_column("0"))
            arms = [there.where(mailboxes.c.id == mailbox_id, ALIVE), *fresh(mailbox_id, after, limit)]
            rows = [Pick(*row) for row in connection.execute(union_all(*arms))]
            if not any(row.priority < 0 for row in rows):
                raise gone(mailbox_id)
            picks = weighed((row for row in rows if row.priority >= 0), limit=limit, most_bytes=most_bytes)
            found = fetch(connection, [pick.id for pick in picks])
        return picks, [found[pick.id] for pick in picks if pick.id in found]

    def list_messages(
        self,
        mailbox_id: MailboxId,
        *,
        cursor: str | None = None,
        limit: int = 100,
        key: str | None = None,
        tag: str | None = None,
        since: datetime | None = None,
    ) -> Page[Message]:
        """Priority by priority until the page is full."""
        if limit < 1:
            raise InvalidRequest("limit must be at least 1")
        limit = min(limit, LONGEST)
        highest, behind = _cursor(cursor)
        items: list[Message] = []
        with self._database.read() as connection:
            self._database.by_index(connection)
            _require(connection, mailbox_id)
            conditions = list(_filters(connection, key, tag, since))
            for priority in sorted(Priority, reverse=True):
                if priority > highest or len(items) > limit:
                    continue
                statement = _live(select(*SUMMARY), mailbox_id, priority, behind if priority == highest else 0)
                rows = connection.execute(statement.where(*conditions).limit(limit + 1 - len(items)))
                items += [message_of(row) for row in rows]
        last = items[:limit][-1] if len(items) > limit else None
        return Page(tuple(items[:limit]), None if last is None else f"{last.priority.value}.{last.seq}")

    def peek_message(self, mailbox_id: MailboxId, seq: int) -> Message:
        """By its number."""
        with self._database.read() as connection:
            self._database.by_index(connection)
            _require(connection, mailbox_id)
            row = connection.execute(
                select(*WHOLE).where(messages.c.mailbox_id == mailbox_id, messages.c.seq == seq, IS_LIVE, UNEXPIRED)
            ).first()
        if row is None:
            raise NotFound(f"no message {seq} in this mailbox", code="message_not_found")
        return message_of(row)

    def delete_message(self, mailbox_id: MailboxId, seq: int) -> bool:
        """What has expired is not deleted by this, but is gone."""
        with self._database.read() as connection:
            named = select(mailboxes.c.session_id).where(mailboxes.c.id == mailbox_id)
            session = connection.execute(named).scalar()
        with self._transaction([] if session is None else [SessionId(session)]) as transaction:
            connection = transaction.connection
            self._database.by_index(connection)
            try:
                mailbox, at = lock_mailbox(connection, mailbox_id)
            except NotFound:
                return False
            row = connection.execute(
                select(messages.c.id, messages.c.expires_at).where(
                    messages.c.mailbox_id == mailbox_id, messages.c.seq == seq, IS_LIVE
                )
            ).first()
            if row is None or (row.expires_at is not None and row.expires_at <= at):
                return False
            if mailbox.session_id is not None:
                return withdraw_for_agent(transaction, mailbox.session_id, row.id)
            return remove(connection, mailbox_id, [row.id], [seq]) > 0

    def purge_messages(self, mailbox_id: MailboxId) -> int:
        """All of them, in the transaction that counted them."""
        with self._transaction() as transaction:
            connection = transaction.connection
            self._database.by_index(connection)
            lock_open_mailbox(connection, mailbox_id)
            theirs = messages.c.mailbox_id == mailbox_id
            count = connection.execute(select(func.count()).where(theirs, UNEXPIRED)).scalar_one()
            connection.execute(messages.delete().where(theirs))
            connection.execute(group_leases.delete().where(group_leases.c.mailbox_id == mailbox_id))
            connection.execute(mailboxes.update().where(mailboxes.c.id == mailbox_id).values(messages=0))
        return int(count)


def fresh(mailbox_id: str, after: Mapping[Priority, int], limit: int) -> list[Select[Any]]:
    """One arm per priority: the first messages behind a number."""
    columns = (messages.c.seq, messages.c.id, func.length(messages.c.payload).label("size"))
    arms = []
    for priority, seq in after.items():
        chosen = select(literal_column(str(priority.value)).label("priority"), *columns)
        arm = _live(chosen, mailbox_id, priority, seq).where(UNEXPIRED).limit(limit).subquery()
        arms.append(select(arm))
    return arms


def weighed(picks: Iterable[Pick], *, limit: int, most_bytes: int) -> list[Pick]:
    """In the order in which they are read, until there are enough of them."""
    chosen: list[Pick] = []
    weight = 0
    for pick in sorted(picks, key=lambda each: (-each.priority, each.seq)):
        weight += pick.size
        if len(chosen) == limit or (chosen and weight > most_bytes):
            break
        chosen.append(pick)
    return chosen


def _live(statement: Select[Any], mailbox_id: str, priority: Priority, after: int) -> Select[Any]:
    return statement.where(
        messages.c.mailbox_id == mailbox_id, messages.c.priority == priority.value, messages.c.seq > after, IS_LIVE
    ).order_by(messages.c.seq)


def _require(connection: Connection, mailbox_id: str) -> None:
    if connection.execute(select(mailboxes.c.id).where(mailboxes.c.id == mailbox_id, ALIVE)).first() is None:
        raise gone(mailbox_id)


def _filters(
    connection: Connection, key: str | None, tag: str | None, since: datetime | None
) -> Iterable[ColumnElement[bool]]:
    yield UNEXPIRED
    for text in (key, tag):
        if text is not None and "\0" in text:
            yield literal(value=False)
            return
    if key is not None:
        yield messages.c.key == key
    if since is not None:
        yield messages.c.sent_at > since
    if tag is not None:
        yield has_tag(connection, tag)


def has_tag(connection: Connection, tag: str) -> ColumnElement[bool]:
    """Among the tags of a message."""
    if connection.dialect.name == "postgresql":
        return messages.c.tags.op("@>", is_comparison=True)(func.jsonb_build_array(literal(tag)))
    each = func.json_each(messages.c.tags).table_valued("value")
    return select(each.c.value).where(each.c.value == tag).exists()


def _cursor(cursor: str | None) -> tuple[int, int]:
    """The priority and the number behind which a page begins."""
    if cursor is None:
        return max(Priority), 0
    priority, _, seq = cursor.partition(".")
    if not (priority.isascii() and priority.isdigit() and seq.isascii() and seq.isdigit() and len(cursor) < 21):
        raise InvalidRequest("this is no cursor of ours", hint="pass next_cursor of the page before")
    return int(priority), int(seq)
