"""What time does to mailboxes: delayed messages become due, messages and mailboxes expire, leases end.

Nothing is ever read that has expired, whether or not this has been done; but a delayed message is there only when it
has its number, and a lost reader hears of a lease that ended from here. Each part finds its rows by an index without
locking them, locks their mailboxes (sessions before them) in the order of their ids, and looks again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import Table, and_, delete, select, tuple_, update

from oah.adapters.sql.agent_mail import senders_of
from oah.adapters.sql.agent_messages import number_for_agent
from oah.adapters.sql.aggregate import Aggregate, Transaction
from oah.adapters.sql.mail_groups import give_back
from oah.adapters.sql.mail_room import count, erase
from oah.adapters.sql.mail_rows import among, lives, lock_mailboxes, moment, remove, replace_keys, touch
from oah.adapters.sql.mail_tables import (
    group_cursors,
    group_leases,
    mailboxes,
    message_keys,
    messages,
)
from oah.core.model.ids import MailboxId, MessageId, SessionId
from oah.core.model.mailbox import Mailbox
from oah.ports.mailboxes import Sent, Swept

# As the partial indexes have it.
DELAYED = and_(messages.c.seq.is_(None), messages.c.settled_at.is_(None))
MORTAL = and_(messages.c.expires_at.is_not(None), messages.c.settled_at.is_(None))
OF_A_MAILBOX = 5_000
"""Messages that are deleted in one transaction with the mailbox that they were in."""
GROUP_LIFE = timedelta(days=7)
"""A group that nobody has asked for so long is forgotten."""


@dataclass(slots=True)
class _Done:
    """What a pass did so far."""

    mailboxes: int = 0
    messages: int = 0
    due: int = 0
    freed: int = 0
    dead: int = 0
    sent: list[Sent] = field(default_factory=list)
    changed: dict[MailboxId, int] = field(default_factory=dict)
    gone: list[MailboxId] = field(default_factory=list)


class MailSweeps(Aggregate):
    """See MailboxStore."""

    def sweep_mail(self, *, limit: int = 500) -> Swept:
        """One window of each kind."""
        done = _Done()
        self._end_delays(done, limit)
        self._expire_messages(done, limit)
        self._end_leases(done, limit)
        self._expire_mailboxes(done, limit)
        self._forget(limit)
        return Swept(
            mailboxes=done.mailboxes,
            messages=done.messages,
            due=done.due,
            freed=done.freed,
            dead=done.dead,
            sent=tuple(done.sent),
            changed=tuple(done.changed.items()),
            gone=tuple(done.gone),
        )

    def ended_leases(self, mailboxes: Collection[MailboxId]) -> set[MailboxId]:
        """As many as a sweep would find."""
        if not mailboxes:
            return set()
        with self._database.read() as connection:
            self._database.by_index(connection)
            over = group_leases.c.until <= moment(connection)
            theirs = among(connection, group_leases.c.mailbox_id.concat(""), mailboxes)
            names = connection.execute(select(group_leases.c.mailbox_id).where(over, theirs)).scalars()
            return {MailboxId(name) for name in names}

    def _end_delays(self, done: _Done, limit: int) -> None:
        rows = self._found(messages.c.due_at, DELAYED, limit, among_all=True)
        if not rows:
            return
        sessions = {SessionId(row.session_id) for row in rows if row.session_id is not None}
        if sessions:
            with self._database.read() as connection:
                sessions |= senders_of(connection, sorted(sessions))
        with self._transaction(sessions) as transaction:
            connection = transaction.connection
            self._database.by_index(connection)
            boxes = lock_mailboxes(connection, {row.mailbox_id for row in rows})
            at = moment(connection)
            still = connection.execute(
                select(messages.c.id, messages.c.mailbox_id, messages.c.key, messages.c.expires_at)
                .where(
                    among(connection, messages.c.id, [row.id for row in rows]),
                    messages.c.seq.is_(None),
                    messages.c.settled_at.is_(None),
                    messages.c.due_at <= at,
                )
                .order_by(messages.c.due_at, messages.c.id)
            ).all()
            for name, box in sorted(boxes.items()):
                theirs = [
                    row for row in still if row.mailbox_id == name and (row.expires_at is None or row.expires_at > at)
                ]
                if theirs and lives(box, at):
                    done.sent += _number(transaction, box, theirs)
                    done.due += len(theirs)
                    done.changed[box.id] = box.last_seq + len(theirs)

    def _expire_messages(self, done: _Done, limit: int) -> None:
        rows = self._found(messages.c.expires_at, MORTAL, limit, among_all=False)
        if not rows:
            return
        with self._transaction() as transaction:
            connection = transaction.connection
            self._database.by_index(connection)
            names = lock_mailboxes(connection, {row.mailbox_id for row in rows})
            for name in sorted(names):
                theirs = [row for row in rows if row.mailbox_id == name]
                done.messages += remove(connection, name, [row.id for row in theirs], [row.seq for row in theirs])

    def _end_leases(self, done: _Done, limit: int) -> None:
        with self._database.read() as connection:
            self._database.by_index(connection)
            over = group_leases.c.until <= moment(connection)
            found = select(group_leases.c.mailbox_id).where(over).order_by(group_leases.c.until).limit(limit)
            names = set(connection.execute(found).scalars())
        if not names:
            return
        with self._transaction() as transaction:
            connection = transaction.connection
            self._database.by_index(connection)
            boxes = lock_mailboxes(connection, names)
            over = and_(group_leases.c.until <= moment(connection), among(connection, group_leases.c.mailbox_id, boxes))
            rows = connection.execute(
                select(group_leases).where(over).order_by(group_leases.c.until).limit(limit)
            ).all()
            for row in rows:
                done.dead += give_back(transaction, boxes[row.mailbox_id], row, until=None)
            done.freed += len(rows)
            touched = {row.mailbox_id for row in rows}
            touch(connection, touched)
            for name in touched:
                done.changed.setdefault(MailboxId(name), 0)

    def _expire_mailboxes(self, done: _Done, limit: int) -> None:
        with self._database.read() as connection:
            self._database.by_index(connection)
            dead = select(mailboxes.c.id).where(mailboxes.c.expires_at <= moment(connection))
            names = connection.execute(dead.order_by(mailboxes.c.expires_at).limit(limit)).scalars().all()
        left = OF_A_MAILBOX
        for name in names:
            if left <= 0:
                return
            left -= self._empty(done, name, left)

    def _empty(self, done: _Done, name: str, limit: int) -> int:
        """Delete messages of a dead mailbox, and the mailbox with the last of them; how many went."""
        with self._transaction() as transaction:
            connection = transaction.connection
            self._database.by_index(connection)
            box = lock_mailboxes(connection, [name]).get(name)
            if box is None or lives(box, moment(connection)):
                return 0
            theirs = select(messages.c.id).where(messages.c.mailbox_id == name).limit(limit)
            ids = connection.execute(theirs).scalars().all()
            if ids:
                connection.execute(delete(messages).where(among(connection, messages.c.id, ids)))
            done.messages += len(ids)
            if len(ids) < limit:
                for table in (group_leases, group_cursors, message_keys):
                    connection.execute(delete(table).where(table.c.mailbox_id == name))
                less = erase(connection, name)
                done.mailboxes += 1
                done.gone.append(box.id)
                if less:
                    count(transaction, box.workspace_id, -less)
        return len(ids)

    def _forget(self, limit: int) -> None:
        """Dedup keys whose window is over, groups that nobody asks for."""
        self._drop_old(message_keys, "until", timedelta(0), limit)
        self._drop_old(group_cursors, "seen_at", GROUP_LIFE, limit)

    def _drop_old(self, table: Table, column: str, age: timedelta, limit: int) -> None:
        keys = list(table.primary_key.columns)
        with self._database.read() as connection:
            self._database.by_index(connection)
            old = table.c[column] <= moment(connection) - age
            if connection.execute(select(*keys).where(old).limit(1)).first() is None:
                return
        with self._transaction() as transaction:
            connection = transaction.connection
            self._database.by_index(connection)
            old = table.c[column] <= moment(connection) - age
            free = select(*keys).where(old).order_by(table.c[column]).limit(limit).with_for_update(skip_locked=True)
            rows = [tuple(row) for row in connection.execute(free)]
            if rows:
                connection.execute(delete(table).where(tuple_(*keys).in_(rows), old))

    def _found(self, column: Any, condition: Any, limit: int, *, among_all: bool) -> Sequence[Any]:
        """Messages whose time has come; ``among_all`` False: but those for agents, which end with more than a row."""
        with self._database.read() as connection:
            self._database.by_index(connection)
            # No join: a planner might begin with the mailboxes.
            session = select(mailboxes.c.session_id).where(mailboxes.c.id == messages.c.mailbox_id).scalar_subquery()
            statement = (
                select(messages.c.id, messages.c.mailbox_id, messages.c.seq, session.label("session_id"))
                .where(column <= moment(connection), condition)
                .order_by(column)
                .limit(limit)
            )
            if not among_all:
                statement = statement.where(session.is_(None))
            return connection.execute(statement).all()


def _number(transaction: Transaction, box: Mailbox, rows: Sequence[Any]) -> list[Sent]:
    """Numbers in the order in which they were due; agents are told."""
    connection = transaction.connection
    seq, sent, newest = box.last_seq, [], {}
    for row in rows:
        seq += 1
        connection.execute(update(messages).where(messages.c.id == row.id).values(seq=seq))
        if box.session_id is None:
            if row.key is not None:
                newest[row.key] = seq
            continue
        queued = number_for_agent(transaction, box.session_id, row.id, seq=seq)
        sent.append(
            Sent(
                message_id=MessageId(row.id),
                mailbox_id=box.id,
                seq=seq,
                session_id=box.session_id,
                event_number=queued.event_number,
                wake=queued.wake,
                look=queued.look,
            )
        )
    connection.execute(update(mailboxes).where(mailboxes.c.id == box.id).values(last_seq=seq))
    replace_keys(connection, box.id, newest)
    return sent
