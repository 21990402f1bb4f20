"""Post: mailboxes and the messages in them, as the API, the gateway and the agents use them.

What is sent is checked here, stored by group commit and then told to readers: to those of this process directly, to
those of others by a hint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Protocol

from oah.core.model.ids import MailboxId, MessageId, WorkspaceId
from oah.core.model.mailbox import PRIVATE_PREFIX, SESSION_PREFIX, Mailbox, require_public_address
from oah.core.model.message import Message, Priority
from oah.errors import InvalidRequest, PayloadTooLarge, RequestError
from oah.ports.broker import Signals
from oah.ports.clock import Ids
from oah.ports.mailboxes import (
    AGAIN,
    GONE,
    MOST_BYTES,
    Created,
    Hint,
    Leased,
    MailboxStore,
    NewMailbox,
    NewMessage,
    Outgoing,
    Sent,
    Watermarks,
)
from oah.ports.rows import Page
from oah.ports.telemetry import Telemetry

LONGEST_WORD = 256
"""Characters of a key, a tag, a sender's name, a group."""
MOST_TAGS = 16
LONGEST_DELAY = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class MailRules:
    """What a deployment allows; the defaults are those of the settings."""

    default_ttl: timedelta | None = timedelta(days=1)
    """Of a mailbox; None: it lives until it is deleted."""
    max_ttl: timedelta = timedelta(days=30)
    max_payload_bytes: int = 1_048_576
    max_header_bytes: int = 65_536
    max_messages: int = 10_000
    max_mailboxes: int = 100_000
    session_messages: int = 256
    message_ttl: timedelta = timedelta(hours=1)
    """Of messages for agents."""
    dedup_window: timedelta = timedelta(minutes=5)
    wake_pause: timedelta = timedelta(seconds=5)
    """Between two starts of an agent for its messages."""
    lease: timedelta = timedelta(seconds=30)
    max_attempts: int = 5


Commit = Callable[[Sequence[NewMessage]], list[Sent | RequestError]]


class Watch(Protocol):
    """The readers of this process (``runtime/mail_watch.py``)."""

    def told(self, hints: Iterable[Hint]) -> None: ...


class Post:
    """One object per process, thread safe. ``for_agents`` hears of what was stored for agents, after the commit;
    ``together`` lets concurrent senders share their commits."""

    def __init__(
        self,
        store: MailboxStore,
        signals: Signals,
        ids: Ids,
        rules: MailRules,
        telemetry: Telemetry,
        *,
        watch: Watch | None = None,
        for_agents: Callable[[Sequence[Sent]], None] = lambda sent: None,
        together: Callable[[Commit], Commit] = lambda commit: commit,
    ) -> None:
        self.rules = rules
        self._store = store
        self._signals = signals
        self._ids = ids
        self._telemetry = telemetry
        self._watch = watch
        self._for_agents = for_agents
        self._batches = together(self._commit)

    # --- mailboxes ---

    def create(
        self,
        workspace_id: WorkspaceId,
        *,
        address: str | None = None,
        public: bool = False,
        ttl: timedelta | None = None,
        description: str = "",
    ) -> Created:
        """Private under an address that nobody can guess, or public under the one given. ``ttl`` None: the default;
        zero: it lives until it is deleted, where the deployment lets mailboxes do that.

        Raises InvalidRequest (``invalid_address``, ``invalid_ttl``), LimitReached ``mailboxes_full``.
        """
        if public != (address is not None):
            raise InvalidRequest(
                "a public mailbox has a chosen address, a private one is given its own", code="invalid_address"
            )
        if address is None:
            address = PRIVATE_PREFIX + self._ids.nonce()
        else:
            require_public_address(address)
        new = NewMailbox(
            id=MailboxId(self._ids.new("mbx")),
            workspace_id=workspace_id,
            address=address,
            public=public,
            ttl=self._life(ttl),
            max_messages=self.rules.max_messages,
            description=_text("description", description, 2_000),
        )
        return self._store.create_mailbox(new, most=self.rules.max_mailboxes)

    def mailbox(self, workspace_id: WorkspaceId, address: str) -> Mailbox:
        """Raises NotFound (``mailbox_not_found``, ``mailbox_expired``)."""
        return self._store.mailbox(workspace_id, address)

    def mailboxes(
        self, workspace_id: WorkspaceId | None, *, cursor: str | None = None, limit: int = 100, public: bool = True
    ) -> Page[Mailbox]:
        """By address."""
        return self._store.mailboxes(workspace_id, cursor=cursor, limit=limit, public=public)

    def delete_mailbox(self, workspace_id: WorkspaceId, address: str) -> bool:
        """With its messages; its readers are told. False: there was none. Raises Conflict for a session's."""
        try:
            mailbox = self._store.mailbox(workspace_id, address)
        except RequestError:
            return False
        deleted = self._store.delete_mailbox(workspace_id, address)
        if deleted:
            self._tell([(mailbox.id, GONE)])
        return deleted

    # --- sending ---

    def send(self, letters: Sequence[Outgoing]) -> list[Sent | RequestError]:
        """Answers in order, after COMMIT. A message that cannot be sent fails alone: PayloadTooLarge, InvalidRequest,
        NotFound, LimitReached ``mailbox_full``, Conflict ``session_closed``. Raises Unavailable, InDoubt."""
        answers: list[Sent | RequestError | None] = [None] * len(letters)
        good: list[tuple[int, NewMessage]] = []
        for index, letter in enumerate(letters):
            try:
                good.append((index, self._checked(letter)))
            except RequestError as error:
                answers[index] = error
        if good:
            for (index, _), answer in zip(good, self._batches([message for _, message in good]), strict=True):
                answers[index] = answer
        return [answer for answer in answers if answer is not None]

    def _checked(self, letter: Outgoing) -> NewMessage:
        rules = self.rules
        if len(letter.payload) > rules.max_payload_bytes:
            raise PayloadTooLarge(
                f"a payload may have {rules.max_payload_bytes} bytes, this one has {len(letter.payload)}"
            )
        if len(letter.headers) > rules.max_header_bytes:
            raise PayloadTooLarge(f"headers may have {rules.max_header_bytes} bytes, these have {len(letter.headers)}")
        if len(letter.tags) > MOST_TAGS:
            raise InvalidRequest(f"at most {MOST_TAGS} tags")
        for name, value in (("sender", letter.sender), ("dedup_key", letter.dedup_key), ("key", letter.key)):
            if value is not None:
                _word(name, value)
        for tag in letter.tags:
            _word("tag", tag)
        if letter.delay is not None and not timedelta(0) <= letter.delay <= LONGEST_DELAY:
            raise InvalidRequest(f"a delay may be 0 to {LONGEST_DELAY.total_seconds():g} seconds", code="invalid_delay")
        ttl = self._message_ttl(letter)
        given = {each.name: getattr(letter, each.name) for each in fields(letter)}
        given |= {"ttl": ttl, "delay": letter.delay or None}
        given |= {"dedup_window": rules.dedup_window, "wake_pause": rules.wake_pause}
        return NewMessage(id=MessageId(self._ids.new("msg")), **given)

    def _message_ttl(self, letter: Outgoing) -> timedelta | None:
        if letter.ttl is None:
            return self.rules.message_ttl if letter.address.startswith(SESSION_PREFIX) else None
        if not timedelta(0) < letter.ttl <= self.rules.max_ttl:
            raise InvalidRequest(
                f"a message lives more than 0 and at most {self.rules.max_ttl.total_seconds():g} seconds",
                code="invalid_ttl",
            )
        return letter.ttl

    def _commit(self, messages: Sequence[NewMessage]) -> list[Sent | RequestError]:
        answers = self._store.send_messages(messages, session_messages=self.rules.session_messages)
        sent = [answer for answer in answers if isinstance(answer, Sent)]
        newest: dict[MailboxId, int] = {}
        for message, answer in zip(messages, answers, strict=True):
            if not isinstance(answer, Sent):
                self._telemetry.count("oah_messages_refused_total", code=answer.code)
            elif not answer.duplicate:
                self._telemetry.count("oah_messages_sent_total", priority=message.priority.word)
                if answer.seq is not None:
                    newest[answer.mailbox_id] = max(answer.seq, newest.get(answer.mailbox_id, 0))
        self._telemetry.observe("oah_batch_size", len(messages), work="send")
        self._tell(newest.items())
        if agents := [each for each in sent if each.session_id is not None and not each.duplicate]:
            self._for_agents(agents)
        return answers

    # --- reading ---

    def ready(
        self,
        mailbox_id: MailboxId,
        had: Watermarks,
        *,
        limit: int,
        priorities: Sequence[Priority] = tuple(Priority),
        most_bytes: int = MOST_BYTES,
    ) -> list[Message]:
        """What a reader has not had. Raises NotFound when the mailbox is gone."""
        return self._store.ready_messages(mailbox_id, had, limit=limit, priorities=priorities, most_bytes=most_bytes)

    def listing(
        self,
        mailbox_id: MailboxId,
        *,
        cursor: str | None = None,
        limit: int = 100,
        key: str | None = None,
        tag: str | None = None,
        since: datetime | None = None,
    ) -> Page[Message]:
        """A snapshot in priority order, without payloads."""
        return self._store.list_messages(mailbox_id, cursor=cursor, limit=limit, key=key, tag=tag, since=since)

    def peek(self, mailbox_id: MailboxId, seq: int) -> Message:
        """The whole of one. Raises NotFound."""
        return self._store.peek_message(mailbox_id, seq)

    def delete(self, mailbox_id: MailboxId, seq: int) -> bool:
        """Whether something was deleted."""
        deleted = self._store.delete_message(mailbox_id, seq)
        self._telemetry.count("oah_messages_deleted_total", int(deleted))
        return deleted

    def purge(self, mailbox_id: MailboxId) -> int:
        """How many were deleted."""
        count = self._store.purge_messages(mailbox_id)
        self._telemetry.count("oah_messages_deleted_total", count)
        return count

    # --- queue groups ---

    def receive(
        self,
        mailbox_id: MailboxId,
        group: str,
        holder: str,
        *,
        limit: int,
        priorities: Sequence[Priority] = tuple(Priority),
        most_bytes: int = MOST_BYTES,
    ) -> list[Leased]:
        """Messages that nobody of the group has, for a member; they are its own for ``rules.lease``."""
        leased = self._store.lease_messages(
            mailbox_id,
            _word("group", group),
            holder=_word("holder", holder),
            limit=limit,
            lease=self.rules.lease,
            most_attempts=self.rules.max_attempts,
            priorities=priorities,
            most_bytes=most_bytes,
        )
        self._telemetry.count("oah_messages_leased_total", len(leased))
        return leased

    def leased_mailbox(self, lease_id: str) -> Mailbox:
        """Whose message a lease is for. Raises NotFound ``lease_not_found``."""
        return self._store.leased_mailbox(lease_id)

    def settle(
        self,
        mailbox_id: MailboxId,
        lease_id: str,
        *,
        ack: bool,
        delay: timedelta = timedelta(0),
        untried: bool = False,
    ) -> bool:
        """See MailboxStore.settle_lease; who waits hears of what was given back."""
        if not timedelta(0) <= delay <= LONGEST_DELAY:
            raise InvalidRequest(f"a delay may be 0 to {LONGEST_DELAY.total_seconds():g} seconds", code="invalid_delay")
        settled = self._store.settle_lease(mailbox_id, lease_id, ack=ack, delay=delay, untried=untried)
        if settled and not ack and not delay:
            self._tell([(mailbox_id, AGAIN)])
        return settled

    def extend(self, holder: str) -> int:
        """A member that lives keeps what it holds for another ``rules.lease``."""
        return self._store.extend_leases(holder, lease=self.rules.lease)

    def ended_leases(self, mailboxes: Collection[MailboxId]) -> set[MailboxId]:
        """Those of the mailboxes in which a lease is over that nobody has ended yet."""
        return self._store.ended_leases(mailboxes)

    def leave(self, holder: str) -> int:
        """A member has gone: others get what it held. In how many mailboxes."""
        free = self._store.release_holder(holder)
        self._tell([(mailbox_id, AGAIN) for mailbox_id, _ in free])
        return len(free)

    # --- what both halves use ---

    def _tell(self, hints: Iterable[Hint]) -> None:
        hints = list(hints)
        if not hints:
            return
        if self._watch is not None:
            self._watch.told(hints)
        self._signals.publish_mail(hints)

    def _life(self, ttl: timedelta | None) -> timedelta | None:
        rules = self.rules
        if ttl is None:
            return rules.default_ttl
        if ttl == timedelta(0) and rules.default_ttl is None:
            return None
        if not timedelta(0) < ttl <= rules.max_ttl:
            raise InvalidRequest(
                f"a mailbox lives more than 0 and at most {rules.max_ttl.total_seconds():g} seconds",
                code="invalid_ttl",
            )
        return ttl


def _word(name: str, value: str) -> str:
    if not value:
        raise InvalidRequest(f"an empty {name} is none")
    return _text(name, value, LONGEST_WORD)


def _text(name: str, value: str, longest: int) -> str:
    if len(value) > longest:
        raise InvalidRequest(f"{name} may have {longest} characters, this one has {len(value)}")
    if "\0" in value or any("\ud800" <= each <= "\udfff" for each in value):
        raise InvalidRequest(f"{name} contains a NUL or a lone surrogate")
    return value
