"""What the services ask of the store about mailboxes and their messages.

Every call looks at the clock of the database: nothing that has expired is ever read, pushed or accepted, whether or
not the sweep has been there. Numbers (``seq``) are given under the mailbox's row lock, so they are dense and in the
order of the commits: who has read up to a number has missed nothing below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from oah.core.model.ids import MailboxId, MessageId, SessionId, WorkspaceId
from oah.core.model.mailbox import Mailbox
from oah.core.model.message import Message, MessageMode, Priority, Sender
from oah.errors import RequestError
from oah.ports.rows import Accepted, Page


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMailbox:
    """``id`` and ``address`` are given by the caller (fresh randomness for a private one)."""

    id: MailboxId
    workspace_id: WorkspaceId
    address: str
    public: bool
    ttl: timedelta | None
    max_messages: int
    description: str = ""
    session_id: SessionId | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """``new`` False: it was there, and is as it was created first."""

    mailbox: Mailbox
    new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ForAgent:
    """What a message to a session's mailbox asks for besides."""

    mode: MessageMode
    sender: Sender
    callback: str | None = None
    wake_pause: timedelta = timedelta(seconds=5)
    """Between two starts of the agent for its messages (``mail.wake_pause_seconds``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message to send. Of a dedup key the first message within ``dedup_window`` counts; the answer names it."""

    id: MessageId
    workspace_id: WorkspaceId
    address: str
    payload: bytes
    priority: Priority = Priority.NORMAL
    headers: bytes = b""
    sender: str | None = None
    dedup_key: str | None = None
    dedup_window: timedelta = timedelta(minutes=5)
    key: str | None = None
    tags: tuple[str, ...] = ()
    ttl: timedelta | None = None
    delay: timedelta | None = None
    for_agent: ForAgent | None = None
    """None: the defaults, where the mailbox is a session's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message is stored. ``seq`` None: it is delayed and has no number yet. ``duplicate``: it was sent before."""

    message_id: MessageId
    mailbox_id: MailboxId
    seq: int | None
    duplicate: bool = False
    session_id: SessionId | None = None
    """Whose agent it is for."""
    event_number: int = 0
    """Of ``message.queued`` in that session."""
    wake: Accepted | None = None
    """A run that was made to deliver it: the broker is to hear of it, as of any submit; what it misses the relay
    repeats."""


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Per priority the highest number that a reader has had; all below it are had, too."""

    had: Mapping[Priority, int] = field(default_factory=dict)

    def after(self, message: Message) -> Watermarks:
        """With this one had."""
        return Watermarks({**self.had, message.priority: max(message.seq, self.had.get(message.priority, 0))})


@dataclass(frozen=True, slots=True)
class Head:
    """What a mailbox has come to. ``gone``: expired or deleted."""

    last_seq: int
    gone: bool
    expires_in: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """A message handed to one member of a group until ``lease`` ends or it is deleted, acked or given back."""

    message: Message
    lease_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep has done. ``changed``: mailboxes that have something new to be pushed (delayed messages that are
    due, leases that ended); ``gone``: mailboxes that went."""

    mailboxes: int = 0
    messages: int = 0
    dead: int = 0
    changed: tuple[tuple[MailboxId, int], ...] = ()
    gone: tuple[MailboxId, ...] = ()


class MailboxStore(Protocol):
    """Rows of ``mailboxes``, ``messages``, ``message_keys`` and ``group_leases``."""

    def create_mailbox(self, new: NewMailbox) -> Created:
        """Idempotent by address; the first ttl, limit and description stand. One that has expired is replaced by a new
        one, whose messages are none of the old. Concurrent calls: exactly one is told ``new``. Raises LimitReached."""
        ...

    def mailbox(self, workspace_id: WorkspaceId, address: str) -> Mailbox:
        """Raises NotFound ``mailbox_not_found``; for one that has expired ``mailbox_expired``."""
        ...

    def mailboxes(
        self, workspace_id: WorkspaceId | None, *, cursor: str | None = None, limit: int = 100, public: bool = True
    ) -> Page[Mailbox]:
        """By address. ``public`` False: private ones and those of sessions, too (for operators)."""
        ...

    def delete_mailbox(self, workspace_id: WorkspaceId, address: str) -> bool:
        """With its messages. False: there was none. Raises Conflict for a session's."""
        ...

    def send_messages(self, messages: Sequence[NewMessage]) -> list[Sent | RequestError]:
        """One transaction, mailboxes locked in id order. A refusal fails its message only: NotFound (see ``mailbox``),
        LimitReached ``mailbox_full``, Conflict ``session_closed``."""
        ...

    def ready_messages(
        self, mailbox_id: MailboxId, had: Watermarks, *, limit: int, priorities: Sequence[Priority] = tuple(Priority)
    ) -> list[Message]:
        """What a reader has not had, highest priority first, oldest first within one: at most ``limit``. By index,
        however long the mailbox is. Raises NotFound when the mailbox is gone."""
        ...

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
        """A snapshot in priority order, without payloads; it disturbs nobody."""
        ...

    def peek_message(self, mailbox_id: MailboxId, seq: int) -> Message:
        """The whole of it. Raises NotFound."""
        ...

    def delete_message(self, mailbox_id: MailboxId, seq: int) -> bool:
        """Whether something was deleted. Its leases in all groups are over."""
        ...

    def purge_messages(self, mailbox_id: MailboxId) -> int: ...
    def heads(self, mailboxes: Sequence[MailboxId]) -> Mapping[MailboxId, Head]:
        """One statement for all that a process has subscribers of."""
        ...

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
    ) -> list[Leased]:
        """Hand out what nobody of the group holds, in priority order, stored messages included. What has been handed
        out ``most_attempts`` times becomes a dead letter of kind ``message`` and is deleted. Concurrent members never
        get the same message."""
        ...

    def settle_lease(self, mailbox_id: MailboxId, lease_id: str, *, ack: bool, delay: timedelta = timedelta(0)) -> bool:
        """Ack: the group is done with it (the message goes when it has no subscriber but this group: it is deleted).
        Not ack: it goes to the next member after ``delay``. False: the lease was over."""
        ...

    def extend_leases(self, holder: str, *, lease: timedelta) -> int:
        """A member that lives keeps what it holds."""
        ...

    def release_holder(self, holder: str) -> list[tuple[MailboxId, int]]:
        """A member has gone: what it held is free again; the mailboxes, with their last numbers."""
        ...

    def sweep_mail(self, *, limit: int = 500) -> Swept:
        """Delete what has expired, number delayed messages that are due, end leases. By index, bounded."""
        ...
