"""What the services ask of the store about mailboxes and their messages.

Every call looks at the clock of the database: nothing that has expired is ever read, pushed or accepted, whether or
not the sweep has been there. Numbers (``seq``) are given under the mailbox's row lock, so they are dense and in the
order of the commits: who has read up to a number has missed nothing below it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from oah.core.model.ids import MailboxId, MessageId, SessionId, WorkerId, WorkspaceId
from oah.core.model.mailbox import Mailbox
from oah.core.model.message import Message, MessageMode, Priority, Sender
from oah.errors import RequestError
from oah.ports.rows import Accepted, Page

AGAIN = 0
"""As the number of a hint: something that was stored before can be read again."""
GONE = -1
"""As the number of a hint: the mailbox has expired or was deleted."""
Hint = tuple[MailboxId, int]
"""A mailbox with the number of its newest message, or one of these words."""
MOST_BYTES = 8_388_608
"""Of payloads read at once: a reader that is slow must not make a process hold a mailbox full of large ones."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to be sent, as its sender has it."""

    workspace_id: WorkspaceId
    address: str
    payload: bytes
    priority: Priority = Priority.NORMAL
    headers: bytes = b""
    sender: str | None = None
    dedup_key: str | None = None
    key: str | None = None
    tags: tuple[str, ...] = ()
    ttl: timedelta | None = None
    delay: timedelta | None = None
    for_agent: ForAgent | None = None
    """None: the defaults, where the mailbox is a session's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage(Outgoing):
    """A message to store. Of a dedup key the first message within ``dedup_window`` counts; the answer names it."""

    id: MessageId
    dedup_window: timedelta = timedelta(minutes=5)
    wake_pause: timedelta = timedelta(seconds=5)
    """Between two starts of an agent for its messages."""


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
    look: WorkerId | None = None
    """Who is to say it into its live turn: to be told to look."""


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Per priority the highest number that a reader has had; all below it are had, too."""

    had: Mapping[Priority, int] = field(default_factory=dict)

    def after(self, message: Message) -> Watermarks:
        """With this one had."""
        return Watermarks({**self.had, message.priority: max(message.seq, self.had.get(message.priority, 0))})


@dataclass(frozen=True, slots=True)
class Head:
    """What a mailbox has come to. ``gone``: expired or deleted. ``turn`` counts what makes stored messages readable
    again: leases that ended, messages given back."""

    last_seq: int
    gone: bool
    expires_in: timedelta | None = None
    turn: int = 0


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
    due: int = 0
    """Delayed messages that have their numbers now."""
    freed: int = 0
    """Leases that ended."""
    dead: int = 0
    sent: tuple[Sent, ...] = ()
    """Of the due ones those for agents, as a send would have answered."""
    changed: tuple[tuple[MailboxId, int], ...] = ()
    gone: tuple[MailboxId, ...] = ()


@dataclass(frozen=True, slots=True)
class MailFigures:
    """All mailboxes that live, and the messages in them."""

    mailboxes: int
    messages: int


class MailboxStore(Protocol):
    """Rows of ``mailboxes``, ``messages``, ``message_keys`` and ``group_leases``."""

    def create_mailbox(self, new: NewMailbox, *, most: int | None = None) -> Created:
        """Idempotent by address; the first ttl, limit and description stand. One that has expired is replaced by a new
        one, whose messages are none of the old. Concurrent calls: exactly one is told ``new``. Raises LimitReached
        ``mailboxes_full`` where ``most`` of the workspace live (those of sessions do not count), at the cost of a
        look at a count; NotFound for an unknown workspace."""
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

    def send_messages(
        self, messages: Sequence[NewMessage], *, session_messages: int = 256
    ) -> list[Sent | RequestError]:
        """One transaction, mailboxes locked in id order. A refusal fails its message only: NotFound (see ``mailbox``),
        LimitReached ``mailbox_full``, Conflict ``session_closed``. ``session_messages``: unsettled ones that a session
        may have; its mailbox is made by the first."""
        ...

    def ready_messages(
        self,
        mailbox_id: MailboxId,
        had: Watermarks,
        *,
        limit: int,
        priorities: Sequence[Priority] = tuple(Priority),
        most_bytes: int = MOST_BYTES,
    ) -> list[Message]:
        """What a reader has not had, highest priority first, oldest first within one: at most ``limit`` messages and
        ``most_bytes`` of payload (but one message at least). By index, however long the mailbox is. Raises NotFound
        when the mailbox is gone."""
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
        """Whether something was deleted (what has expired is gone already). Its leases in all groups are over. Of a
        session's mailbox: it is withdrawn, unless the agent has it or is being given it."""
        ...

    def purge_messages(self, mailbox_id: MailboxId) -> int:
        """Delete all, the delayed ones too; how many. Raises NotFound, Conflict ``session_mailbox``."""
        ...

    def heads(self, known: Mapping[MailboxId, Head | None]) -> Mapping[MailboxId, Head]:
        """What has become of all that a process has readers of, in one statement: those that are not as they were
        known (None: not at all). What has expired, was deleted or never was is gone, also when that is known."""
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
        most_bytes: int = MOST_BYTES,
    ) -> list[Leased]:
        """Hand out what nobody of the group holds, in priority order, stored messages included; ``limit`` and
        ``most_bytes`` as for ``ready_messages``. What has been handed out ``most_attempts`` times becomes a dead letter
        of kind ``message`` and the group is done with it. Concurrent members never get the same message. Raises
        NotFound, Conflict ``session_mailbox``: a session's messages are its agent's."""
        ...

    def leased_mailbox(self, lease_id: str) -> Mailbox:
        """Whose message a lease is for. Raises NotFound ``lease_not_found``."""
        ...

    def settle_lease(
        self,
        mailbox_id: MailboxId,
        lease_id: str,
        *,
        ack: bool,
        delay: timedelta = timedelta(0),
        untried: bool = False,
    ) -> bool:
        """Ack: the group is done with it; when every group that the mailbox has had is, the message is deleted. Not
        ack: it goes to the next member after ``delay``. ``untried``: its member never saw it, so that this was no
        attempt. False: the lease was over."""
        ...

    def extend_leases(self, holder: str, *, lease: timedelta) -> int:
        """A member that lives keeps what it holds."""
        ...

    def ended_leases(self, mailboxes: Collection[MailboxId]) -> set[MailboxId]:
        """In which of them a lease is over that no sweep has ended yet: one statement, by index."""
        ...

    def release_holder(self, holder: str) -> list[tuple[MailboxId, int]]:
        """A member has gone: what it held is free again; the mailboxes, with their last numbers."""
        ...

    def sweep_mail(self, *, limit: int = 500) -> Swept:
        """Delete what has expired, number delayed messages that are due, end leases. By index, bounded."""
        ...

    def mail_figures(self) -> MailFigures: ...
