"""Queue groups: each message to one member under a lease, for every group anew.

A group has a cursor per priority; what lies below it is done, unless a row of ``group_leases`` says that it is held,
kept back or free again. So a lease costs what it hands out, whatever the group has done before.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    and_,
    delete,
    exists,
    func,
    literal_column,
    or_,
    select,
    union_all,
    update,
)

from oah.adapters.sql.aggregate import Aggregate, Transaction
from oah.adapters.sql.mail_letters import bury_message
from oah.adapters.sql.mail_reads import Pick, fresh, weighed
from oah.adapters.sql.mail_rows import (
    ALIVE,
    IS_LIVE,
    MAILBOX,
    UNEXPIRED,
    fetch,
    lock_mailbox,
    lock_mailboxes,
    lock_open_mailbox,
    mailbox_of,
    moment,
    remove,
    touch,
)
from oah.adapters.sql.mail_tables import group_cursors, group_leases, mailboxes, messages
from oah.core.model.ids import MailboxId
from oah.core.model.mailbox import Mailbox
from oah.core.model.message import Priority
from oah.errors import InvalidRequest, NotFound
from oah.ports.mailboxes import MOST_BYTES, Leased

SEEN_EVERY = timedelta(hours=1)
"""A group that asks in vain is noted so often."""
SPENT = "attempts_spent"
NEVER: ColumnElement[int] = literal_column("0", Integer()).label("attempts")


class MailGroups(Aggregate):
    """See MailboxStore."""

    def lease_messages(
        self,
        mailbox_id: MailboxId,
        group: str,
        *,
        holder: str,
        limit: int,
        lease: timedelta,
        most_attempts: int,
        priorities: Sequence[Priority] = tuple(Priority),
        most_bytes: int = MOST_BYTES,
    ) -> list[Leased]:
        """Asked without a lock first: who waits for messages writes nothing."""
        if limit < 1:
            raise InvalidRequest("limit must be at least 1")
        if self._nothing(mailbox_id, group, priorities):
            return []
        with self._transaction() as transaction:
            connection = transaction.connection
            self._database.by_index(connection)
            mailbox, at = lock_open_mailbox(connection, mailbox_id)
            cursors = _cursors(connection, mailbox_id, group)
            while True:
                picks = _picks(connection, mailbox_id, group, _after(cursors, priorities), at, limit=limit)
                chosen = weighed(picks, limit=limit, most_bytes=most_bytes)
                spent = [pick for pick in chosen if pick.attempts >= most_attempts]
                for pick in spent:
                    bury_lease(transaction, mailbox, group, pick.priority, pick.seq, pick.attempts)
                found = {} if spent else fetch(connection, [pick.id for pick in chosen])
                if not spent and (found or not chosen):
                    break  # none found: they expired just now, and what is behind them is there
            chosen = [pick for pick in chosen if pick.id in found]
            leases = _hand_out(transaction, mailbox_id, group, chosen, holder, at, lease, most_attempts)
            _advance(transaction, mailbox_id, group, cursors, chosen, at)
        return [Leased(message=found[pick.id], lease_id=leases[pick.id], attempt=pick.attempts + 1) for pick in chosen]

    def leased_mailbox(self, lease_id: str) -> Mailbox:
        """By the index of lease ids."""
        lost = NotFound("no such lease: it has ended", code="lease_not_found")
        if "\0" in lease_id:
            raise lost
        held = select(group_leases.c.mailbox_id).where(group_leases.c.lease_id == lease_id)
        with self._database.read() as connection:
            row = connection.execute(select(*MAILBOX).where(mailboxes.c.id == held.scalar_subquery(), ALIVE)).first()
        if row is None:
            raise lost
        return mailbox_of(row)

    def settle_lease(
        self,
        mailbox_id: MailboxId,
        lease_id: str,
        *,
        ack: bool,
        delay: timedelta = timedelta(0),
        untried: bool = False,
    ) -> bool:
        """Under the mailbox's lock."""
        if "\0" in lease_id:
            return False
        with self._transaction() as transaction:
            connection = transaction.connection
            self._database.by_index(connection)
            try:
                mailbox, at = lock_mailbox(connection, mailbox_id)
            except NotFound:
                return False
            row = connection.execute(
                select(group_leases).where(
                    group_leases.c.lease_id == lease_id,
                    group_leases.c.mailbox_id == mailbox_id,
                    group_leases.c.until > at,
                )
            ).first()
            if row is None:
                return False
            if ack:
                connection.execute(delete(group_leases).where(*_this(row)))
                drop_if_done(connection, mailbox_id, row.priority, row.seq)
            elif untried:
                free = {"attempts": row.attempts - 1, "lease_id": None, "holder": None, "until": None}
                connection.execute(update(group_leases).where(*_this(row)).values(**free))
                touch(connection, [mailbox_id])
            else:
                give_back(transaction, mailbox, row, until=at + delay if delay else None)
                touch(connection, [mailbox_id])
        return True

    def extend_leases(self, holder: str, *, lease: timedelta) -> int:
        """What somebody else works on just now is ended by that, or extended the next time."""
        with self._transaction() as transaction:
            connection = transaction.connection
            self._database.by_index(connection)
            at = moment(connection)
            theirs = and_(group_leases.c.holder == holder, group_leases.c.until > at)
            free = select(group_leases.c.lease_id).where(theirs).with_for_update(skip_locked=True)
            ids = connection.execute(free).scalars().all()
            if not ids:
                return 0
            extended = update(group_leases).where(group_leases.c.lease_id.in_(ids), theirs)
            return connection.execute(extended.values(until=at + lease)).rowcount

    def release_holder(self, holder: str) -> list[tuple[MailboxId, int]]:
        """The mailboxes are found first, then locked, then looked at again."""
        held = select(group_leases.c.mailbox_id).where(group_leases.c.holder == holder).distinct()
        with self._database.read() as connection:
            names = set(connection.execute(held).scalars())
        if not names:
            return []
        with self._transaction() as transaction:
            connection = transaction.connection
            self._database.by_index(connection)
            boxes = lock_mailboxes(connection, names)
            rows = connection.execute(
                select(group_leases).where(group_leases.c.holder == holder, group_leases.c.mailbox_id.in_(boxes))
            ).all()
            for row in rows:
                give_back(transaction, boxes[row.mailbox_id], row, until=None)
            touched = {row.mailbox_id for row in rows}
            touch(connection, touched)
        return [(MailboxId(name), boxes[name].last_seq) for name in sorted(touched)]

    def _nothing(self, mailbox_id: str, group: str, priorities: Sequence[Priority]) -> bool:
        """The group is known, has asked not long ago, and there is nothing for it. Raises nothing: who then finds the
        mailbox gone says so."""
        with self._database.read() as connection:
            self._database.by_index(connection)
            cursors = _cursors(connection, mailbox_id, group)
            at = moment(connection)
            if not cursors or min(row.seen_at for row in cursors.values()) < at - SEEN_EVERY:
                return False
            alive = select(mailboxes.c.id).where(mailboxes.c.id == mailbox_id, ALIVE)
            if connection.execute(alive).first() is None:
                return False
            return not _picks(connection, mailbox_id, group, _after(cursors, priorities), at, limit=1)


def give_back(transaction: Transaction, mailbox: Mailbox, row: Any, *, until: datetime | None) -> bool:
    """A lease of a locked mailbox is over; free at once, or kept back until then. True: it was the last attempt, and
    the message is a dead letter of the group."""
    if row.attempts >= row.most_attempts:
        bury_lease(transaction, mailbox, row.group_name, row.priority, row.seq, row.attempts)
        return True
    transaction.connection.execute(
        update(group_leases).where(*_this(row)).values(lease_id=None, holder=None, until=until)
    )
    return False


def bury_lease(transaction: Transaction, mailbox: Mailbox, group: str, priority: int, seq: int, attempts: int) -> None:
    """The group is done with a message of a locked mailbox, which nobody could handle."""
    connection = transaction.connection
    row = connection.execute(
        select(messages.c.id).where(
            messages.c.mailbox_id == mailbox.id,
            messages.c.priority == priority,
            messages.c.seq == seq,
            IS_LIVE,
            UNEXPIRED,
        )
    ).first()
    if row is not None:
        message = fetch(connection, [row.id]).get(row.id)
        if message is not None:
            bury_message(transaction, mailbox, message, group=group, attempts=attempts, code=SPENT)
    where = (
        group_leases.c.mailbox_id == mailbox.id,
        group_leases.c.group_name == group,
        group_leases.c.priority == priority,
        group_leases.c.seq == seq,
    )
    connection.execute(delete(group_leases).where(*where))
    drop_if_done(connection, mailbox.id, priority, seq)


def drop_if_done(connection: Connection, mailbox_id: str, priority: int, seq: int) -> None:
    """Delete a message of a locked mailbox once every group that the mailbox has had is done with it."""
    cursor, lease = group_cursors.c, group_leases.c
    pending = exists().where(lease.mailbox_id == mailbox_id, lease.seq == seq, lease.group_name == cursor.group_name)
    wanting = select(cursor.group_name).where(
        cursor.mailbox_id == mailbox_id, cursor.priority == priority, or_(cursor.seq < seq, pending)
    )
    if connection.execute(wanting.limit(1)).first() is not None:
        return
    row = connection.execute(
        select(messages.c.id).where(
            messages.c.mailbox_id == mailbox_id, messages.c.priority == priority, messages.c.seq == seq, IS_LIVE
        )
    ).first()
    if row is not None:
        remove(connection, mailbox_id, [row.id], [seq])


def _this(row: Any) -> tuple[Any, ...]:
    lease = group_leases.c
    return (
        lease.mailbox_id == row.mailbox_id,
        lease.group_name == row.group_name,
        lease.priority == row.priority,
        lease.seq == row.seq,
    )


def _cursors(connection: Connection, mailbox_id: str, group: str) -> dict[int, Any]:
    theirs = (group_cursors.c.mailbox_id == mailbox_id, group_cursors.c.group_name == group)
    statement: Select[Any] = select(group_cursors).where(*theirs)
    rows: list[Any] = list(connection.execute(statement))
    return {row.priority: row for row in rows}


def _after(cursors: Mapping[int, Any], priorities: Sequence[Priority]) -> dict[Priority, int]:
    return {each: cursors[each].seq if each in cursors else 0 for each in priorities}


def _picks(
    connection: Connection, mailbox_id: str, group: str, after: Mapping[Priority, int], at: datetime, *, limit: int
) -> list[Pick]:
    """What is free again, and what comes behind the cursors. Of a group that was forgotten both may be the same."""
    arms: list[Select[Any]] = [_again(mailbox_id, group, priority, at, limit) for priority in after]
    for arm in fresh(mailbox_id, after, limit):
        arms.append(select(*arm.subquery().c, NEVER))
    found: dict[str, Pick] = {}
    for row in connection.execute(union_all(*arms)):
        pick = Pick(*row)
        found[pick.id] = max(pick, found.get(pick.id, pick), key=lambda each: each.attempts)
    return list(found.values())


def _again(mailbox_id: str, group: str, priority: Priority, at: datetime, limit: int) -> Select[Any]:
    lease = group_leases.c
    arm = (
        select(
            literal_column(str(priority.value)).label("priority"),
            lease.seq,
            messages.c.id,
            func.length(messages.c.payload).label("size"),
            lease.attempts,
        )
        .join_from(
            group_leases,
            messages,
            and_(
                messages.c.mailbox_id == lease.mailbox_id,
                messages.c.priority == lease.priority,
                messages.c.seq == lease.seq,
            ),
        )
        .where(
            lease.mailbox_id == mailbox_id,
            lease.group_name == group,
            lease.priority == priority.value,
            or_(lease.until.is_(None), lease.until <= at),
            messages.c.seq.is_not(None),
            messages.c.settled_at.is_(None),
            UNEXPIRED,
        )
        .order_by(lease.seq)
        .limit(limit)
        .subquery()
    )
    return select(arm)


def _hand_out(
    transaction: Transaction,
    mailbox_id: str,
    group: str,
    chosen: Sequence[Pick],
    holder: str,
    at: datetime,
    lease: timedelta,
    most_attempts: int,
) -> dict[str, str]:
    """Message → lease."""
    if not chosen:
        return {}
    ids = {pick.id: secrets.token_hex(16) for pick in chosen}
    common = {
        "mailbox_id": mailbox_id,
        "group_name": group,
        "holder": holder,
        "until": at + lease,
        "most_attempts": most_attempts,
    }
    rows = [
        {**common, "priority": pick.priority, "seq": pick.seq, "lease_id": ids[pick.id], "attempts": pick.attempts + 1}
        for pick in chosen
    ]
    statement = transaction.upsert(group_leases)
    changed = ("lease_id", "holder", "until", "attempts", "most_attempts")
    transaction.connection.execute(
        statement.on_conflict_do_update(
            index_elements=["mailbox_id", "group_name", "priority", "seq"],
            set_={name: statement.excluded[name] for name in changed},
        ),
        rows,
    )
    return ids


def _advance(
    transaction: Transaction,
    mailbox_id: str,
    group: str,
    cursors: Mapping[int, Any],
    chosen: Sequence[Pick],
    at: datetime,
) -> None:
    """The cursors pass what was handed out; the group is there from its first question on."""
    reached = {each.value: cursors[each].seq if each in cursors else 0 for each in Priority}
    for pick in chosen:
        reached[pick.priority] = max(reached[pick.priority], pick.seq)
    statement = transaction.upsert(group_cursors)
    transaction.connection.execute(
        statement.on_conflict_do_update(
            index_elements=["mailbox_id", "group_name", "priority"],
            set_={"seq": statement.excluded.seq, "seen_at": statement.excluded.seen_at},
        ),
        [
            {"mailbox_id": mailbox_id, "group_name": group, "priority": priority, "seq": seq, "seen_at": at}
            for priority, seq in reached.items()
        ],
    )
