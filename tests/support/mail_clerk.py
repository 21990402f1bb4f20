"""A clerk for mailboxes: short words for what tests do with them, and time that passes when it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from oah.adapters.sql.sqlite.connections import now_us
from oah.core.model.ids import MailboxId, MessageId, WorkspaceId
from oah.core.model.message import Message, Priority
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.errors import RequestError
from oah.ports.mailboxes import Leased, NewMailbox, NewMessage, Sent, Watermarks
from oah.ports.store import Store
from tests.support.store_clerk import Behind

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
MOMENTS = {
    "mailboxes": ("created_at", "expires_at"),
    "messages": ("sent_at", "due_at", "expires_at"),
    "message_keys": ("until",),
    "group_leases": ("until",),
    "group_cursors": ("seen_at",),
}


class MailClerk:
    """One store, one workspace; ids count up."""

    def __init__(self, store: Store, url: str) -> None:
        self.store = store
        self.url = url
        self.behind = Behind(url)
        self._numbers = count(1)

    def box(self, address: str = "team.reviews", *, ttl: timedelta | None = None, most: int = 1_000) -> MailboxId:
        """A mailbox, made if there is none."""
        return self.store.create_mailbox(self.new_box(address, ttl=ttl, most=most)).mailbox.id

    def new_box(
        self, address: str, *, ttl: timedelta | None = None, most: int = 1_000, workspace: WorkspaceId | None = None
    ) -> NewMailbox:
        """One to create."""
        return NewMailbox(
            id=MailboxId(f"mbx_{next(self._numbers):04d}"),
            workspace_id=workspace or DEFAULT_WORKSPACE,
            address=address,
            public=True,
            ttl=ttl,
            max_messages=most,
        )

    def new(self, payload: bytes | str = b"x", *, to: str = "team.reviews", **more: Any) -> NewMessage:
        """A message to send."""
        text = payload.encode() if isinstance(payload, str) else payload
        message_id = MessageId(more.pop("id", f"msg_{next(self._numbers):06d}"))
        return NewMessage(id=message_id, workspace_id=DEFAULT_WORKSPACE, address=to, payload=text, **more)

    def send(self, payload: bytes | str = b"x", *, to: str = "team.reviews", **more: Any) -> Sent:
        """Send one that is stored."""
        answer = self.try_send(payload, to=to, **more)
        assert isinstance(answer, Sent), answer
        return answer

    def try_send(self, payload: bytes | str = b"x", *, to: str = "team.reviews", **more: Any) -> Sent | RequestError:
        """Send one."""
        return self.store.send_messages([self.new(payload, to=to, **more)])[0]

    def ready(self, box: MailboxId, had: Watermarks | None = None, **more: Any) -> list[Message]:
        """What a reader finds."""
        more.setdefault("limit", 100)
        return self.store.ready_messages(box, had or Watermarks(), **more)

    def texts(self, box: MailboxId) -> list[str]:
        """The payloads that a new reader finds, in its order."""
        return [message.payload.decode() for message in self.ready(box, limit=1_000)]

    def lease(self, box: MailboxId, group: str = "g", **more: Any) -> list[Leased]:
        """What a member gets."""
        words: dict[str, Any] = {"holder": "h1", "limit": 100, "lease": MINUTE, "most_attempts": 3, **more}
        return self.store.lease_messages(box, group, **words)

    def pass_time(self, by: timedelta) -> None:
        """Everything that is stamped lies so much earlier."""
        given: Any = by // timedelta(microseconds=1) if self.url.startswith("sqlite") else by
        for table, columns in MOMENTS.items():
            changes = ", ".join(f"{column} = {column} - ?" for column in columns)
            self.behind.query(f"UPDATE {table} SET {changes}", *[given] * len(columns))

    def ends_in(self, table: str, left: timedelta) -> None:
        """All rows of the table expire so long from now on, by the database's own clock."""
        if self.url.startswith("sqlite"):
            self.behind.query(f"UPDATE {table} SET expires_at = ?", now_us() + left // timedelta(microseconds=1))
        else:
            self.behind.query(f"UPDATE {table} SET expires_at = clock_timestamp() + ?", left)

    def rows(self, table: str) -> int:
        """How many rows there are."""
        return int(self.behind.query(f"SELECT count(*) FROM {table}")[0][0])

    def audit(self) -> None:
        """What must be true of the rows whatever has happened."""
        counted = dict(self.behind.query("SELECT mailbox_id, count(*) FROM messages GROUP BY mailbox_id"))
        for box, number in self.behind.query("SELECT id, messages FROM mailboxes WHERE session_id IS NULL"):
            assert number == counted.get(box, 0), f"{box} counts {number}, has {counted.get(box, 0)}"
        strays = self.behind.query(
            "SELECT l.mailbox_id, l.seq FROM group_leases l WHERE NOT EXISTS (SELECT 1 FROM messages m"
            " WHERE m.mailbox_id = l.mailbox_id AND m.priority = l.priority AND m.seq = l.seq)"
        )
        assert not strays, f"leases of nothing: {strays}"
        theirs = self.behind.query("SELECT workspace_id, count(*) FROM mailboxes WHERE counted GROUP BY workspace_id")
        kept = self.behind.query("SELECT workspace_id, mailboxes FROM mailbox_counters WHERE mailboxes <> 0")
        assert dict(kept) == dict(theirs), "a workspace counts the mailboxes that are counted"
        wrong = self.behind.query(
            "SELECT address FROM mailboxes WHERE counted AND (session_id IS NOT NULL OR address LIKE '%#%')"
            " OR NOT counted AND expires_at IS NULL AND session_id IS NULL"
        )
        assert not wrong, f"counted, or not, that should be otherwise: {wrong}"


def priorities(*words: str) -> list[Priority]:
    """By their first letters."""
    return [{"n": Priority.NORMAL, "u": Priority.URGENT, "c": Priority.CRITICAL}[word] for word in words]


@pytest.fixture
def mail(store: Store, store_url: str) -> Iterator[MailClerk]:
    """A clerk of a fresh database, of both dialects in turn; the rows are audited at the end."""
    clerk = MailClerk(store, store_url)
    yield clerk
    clerk.audit()
