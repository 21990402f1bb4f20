"""Messages of mailboxes that nobody could handle, as dead letters; and how one is posted again.

A letter has the whole message. Posted again it keeps its identity and, in the mailbox where it was, its number: only
the group that could not handle it gets it once more, under a new lease.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, insert, select, tuple_, update

from oah.adapters.sql.aggregate import Transaction
from oah.adapters.sql.columns import MICROSECOND
from oah.adapters.sql.governance_tables import dead_letters
from oah.adapters.sql.letters import put
from oah.adapters.sql.mail_rows import lives, lock_mailboxes, mailbox_of, moment, touch
from oah.adapters.sql.mail_tables import group_leases, mailboxes, messages
from oah.adapters.sql.rows import parsed
from oah.core.model.mailbox import Mailbox
from oah.core.model.message import Message, priority_of
from oah.errors import Conflict
from oah.ports.dead_letters import DeadLetter, LetterKind

REASON = "no member of the group was done with it"


def bury_message(
    transaction: Transaction, mailbox: Mailbox, message: Message, *, group: str, attempts: int, code: str
) -> None:
    """The mailbox is locked; whether the message goes is for the caller to say."""
    life = None if message.expires_at is None else (message.expires_at - message.sent_at) // MICROSECOND
    row: dict[str, Any] = {
        "id": f"dl_{message.id}.{secrets.token_hex(4)}",
        "workspace_id": mailbox.workspace_id,
        "kind": LetterKind.MESSAGE.value,
        "subject": message.id,
        "session_id": None,
        "code": code,
        "reason": f"{REASON} {group} after {attempts} attempts",
        "payload": {
            "message_id": message.id,
            "mailbox": mailbox.address,
            "mailbox_id": mailbox.id,
            "group": group,
            "seq": message.seq,
            "priority": message.priority.word,
            "sender": message.sender,
            "key": message.key,
            "tags": list(message.tags),
            "headers_base64": base64.b64encode(message.headers).decode(),
            "size": message.size,
            "sent_at": message.sent_at.isoformat(),
            "life_us": life,
        },
        "payload_bytes": message.payload,
        "attempts": attempts,
        "note": None,
    }
    put(transaction, row, first_at=message.sent_at)


def lock_for_letters(transaction: Transaction, letters: Sequence[str]) -> None:
    """The mailboxes that letters are from, and those that have their addresses now, in the order of their ids."""
    connection = transaction.connection
    theirs = select(dead_letters.c.workspace_id, dead_letters.c.payload).where(
        dead_letters.c.id.in_(letters),
        dead_letters.c.kind == LetterKind.MESSAGE.value,
        dead_letters.c.session_id.is_(None),
    )
    rows = [(row.workspace_id, parsed(row.payload) or {}) for row in connection.execute(theirs)]
    ids = {about["mailbox_id"] for _, about in rows if "mailbox_id" in about}
    names = sorted({(workspace, about["mailbox"]) for workspace, about in rows if "mailbox_id" in about})
    if names:
        now_there = select(mailboxes.c.id).where(tuple_(mailboxes.c.workspace_id, mailboxes.c.address).in_(names))
        ids |= set(connection.execute(now_there).scalars())
    lock_mailboxes(connection, ids)


def post_again(transaction: Transaction, letter: DeadLetter) -> None:
    """For the group that the letter is of. Raises Conflict ``not_redrivable`` where its mailbox is gone."""
    connection = transaction.connection
    about = letter.payload
    mailbox = _mailbox(transaction, letter) if "mailbox_id" in about else None
    at = moment(connection)
    if mailbox is None or not lives(mailbox, at):
        raise Conflict(
            f"the mailbox of {letter.id} is not there any more",
            code="not_redrivable",
            hint="its payload says what to send",
        )
    same = mailbox.id == about["mailbox_id"]
    there = connection.execute(select(messages.c.mailbox_id).where(messages.c.id == letter.subject)).scalar()
    if there is not None and there != mailbox.id:  # with the old mailbox, which is dead, it would go
        connection.execute(delete(messages).where(messages.c.id == letter.subject))
        there = None
    if there is None:
        seq = int(about["seq"]) if same else mailbox.last_seq + 1
        connection.execute(insert(messages).values(**_row(letter, mailbox, seq, at)))
        counted: dict[str, Any] = {"messages": mailboxes.c.messages + 1, "last_seq": max(seq, mailbox.last_seq)}
        connection.execute(update(mailboxes).where(mailboxes.c.id == mailbox.id).values(**counted))
    else:
        connection.execute(update(messages).where(messages.c.id == letter.subject).values(expires_at=_end(letter, at)))
    if same:
        _free(transaction, letter, mailbox)
    touch(connection, [mailbox.id])


def _mailbox(transaction: Transaction, letter: DeadLetter) -> Mailbox | None:
    """Where it was, or what has its address now; locked."""
    connection = transaction.connection
    found = lock_mailboxes(connection, [letter.payload["mailbox_id"]])
    for mailbox in found.values():
        if lives(mailbox, moment(connection)):
            return mailbox
    row = connection.execute(
        select(mailboxes)
        .where(mailboxes.c.workspace_id == letter.workspace_id, mailboxes.c.address == letter.payload["mailbox"])
        .with_for_update(key_share=True)
    ).first()
    return None if row is None else mailbox_of(row)


def _row(letter: DeadLetter, mailbox: Mailbox, seq: int, at: datetime) -> dict[str, Any]:
    about = letter.payload
    return {
        "id": letter.subject,
        "mailbox_id": mailbox.id,
        "seq": seq,
        "priority": priority_of(about["priority"]).value,
        "payload": letter.payload_bytes or b"",
        "headers": base64.b64decode(about["headers_base64"]),
        "sender": about.get("sender"),
        "key": about.get("key"),
        "tags": list(about.get("tags", ())),
        "sent_at": at,
        "expires_at": _end(letter, at),
    }


def _end(letter: DeadLetter, at: datetime) -> datetime | None:
    """It has its whole life once more, also where it lies there still, about to expire or expired just now."""
    life = letter.payload.get("life_us")
    return None if life is None else at + timedelta(microseconds=life)


def _free(transaction: Transaction, letter: DeadLetter, mailbox: Mailbox) -> None:
    about = letter.payload
    statement = transaction.upsert(group_leases).values(
        mailbox_id=mailbox.id,
        group_name=about["group"],
        priority=priority_of(about["priority"]).value,
        seq=int(about["seq"]),
        attempts=0,
        most_attempts=letter.attempts,
        until=None,
    )
    transaction.connection.execute(statement.on_conflict_do_nothing())
