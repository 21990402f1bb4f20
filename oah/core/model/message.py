"""Messages: items of a mailbox, and what became of those that are for a session's agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any

from oah.core.model.ids import DeliveryId, MailboxId, MessageId, RunId, SessionId, WorkspaceId
from oah.errors import InvalidRequest


class Priority(IntEnum):
    """Higher first; first in, first out within one."""

    NORMAL = 0
    URGENT = 1
    CRITICAL = 2

    @property
    def word(self) -> str:
        """As subjects, headers and documents have it."""
        return self.name.lower()


def priority_of(word: str | None) -> Priority:
    """The priority of a word; None is normal. Raises InvalidRequest."""
    try:
        return Priority.NORMAL if word is None else Priority[word.upper()]
    except KeyError:
        raise InvalidRequest(f"'{word}' is no priority", hint="normal, urgent or critical") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A row of ``messages``. In lists ``payload`` is empty where only the metadata were asked for."""

    id: MessageId
    mailbox_id: MailboxId
    seq: int
    """Dense in the mailbox, in the order of commits; the ``msg_id`` of the protocol."""
    priority: Priority
    sent_at: datetime
    payload: bytes = b""
    headers: bytes = b""
    """Lines ``Name: value`` as they came, each with its CRLF."""
    size: int = 0
    """Bytes of the payload."""
    sender: str | None = None
    key: str | None = None
    """Only the newest message of a key stays."""
    tags: tuple[str, ...] = ()
    expires_at: datetime | None = None


class MessageMode(StrEnum):
    """How a message reaches a session's agent."""

    WAIT = "wait"
    """At the next boundary where the agent is idle, before the next run's prompt."""
    STEER = "steer"
    """Into the turn that is going on."""
    RUN = "run"
    """As a run of the session."""


class MessageState(StrEnum):
    """What became of a message for an agent."""

    QUEUED = "queued"
    DELIVERED = "delivered"
    """Typed to the agent, whose turn goes on; what the terminal showed of it is the ``outcome``."""
    ACKED = "acked"
    """The turn that it began has ended, or the agent has said that it has it."""
    EXPIRED = "expired"
    DEAD = "dead"

    @property
    def settled(self) -> bool:
        """Cursors pass it."""
        return self in (MessageState.ACKED, MessageState.EXPIRED, MessageState.DEAD)


class WakeMode(StrEnum):
    """Whether a message starts a session's agent that does not run."""

    EAGER = "eager"
    LAZY = "lazy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Who sent a message, as far as we know it ourselves; nothing that a sender could claim."""

    by: str
    """The key or user."""
    session_id: SessionId | None = None
    run_id: RunId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMessage:
    """A row of ``agent_messages``: a message for a session's agent."""

    message_id: MessageId
    workspace_id: WorkspaceId
    session_id: SessionId
    seq: int | None
    """None: it is delayed."""
    mode: MessageMode
    state: MessageState
    delivery_id: DeliveryId
    attempts: int
    sender: Sender
    created_at: datetime
    outcome: str | None = None
    """``confirmed``, ``unverified`` or ``failed``: what the terminal showed of the latest injection."""
    redelivered: bool = False
    """It may have reached the agent before."""
    run_id: RunId | None = None
    """The run during which it was delivered, or which it became."""
    callback: str | None = None
    expires_at: datetime | None = None
    delivered_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str | None = None
    payload: bytes = b""
    headers: bytes = b""
    priority: Priority = Priority.NORMAL
    note: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cursors:
    """How far a session's messages are: everything up to ``acked`` is settled, ``received`` is the newest that was
    delivered, ``last`` the newest there is."""

    received: int
    acked: int
    last: int
