"""What the services ask of the store about messages for the agents of sessions: one row each, by (session, number)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from oah.core.model.ids import DeliveryId, MessageId, RunId, SessionId, WorkspaceId
from oah.core.model.message import AgentMessage, Cursors, MessageState, WakeMode
from oah.ports.rows import Page, RunFence


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """What became of an attempt to give a message to an agent. ``turn_over``: the turn that it began has ended."""

    message_id: MessageId
    delivery_id: DeliveryId
    outcome: str
    turn_over: bool = False
    reply: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """Which messages."""

    workspace_id: WorkspaceId | None = None
    session_id: SessionId | None = None
    state: MessageState | None = None
    cursor: str | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """Why a session's agent is not started for its messages, or when it may be. ``stopped``: it crashed too often."""

    session_id: SessionId
    mode: WakeMode
    failures: int = 0
    pause: timedelta | None = None
    stopped: str | None = None
    queued: int = 0
    run_id: RunId | None = None
    """A wake that is under way."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """Messages whose recipient is ready and that nobody delivers."""

    session_id: SessionId
    oldest: timedelta
    count: int


@dataclass(frozen=True, slots=True)
class MailSwept:
    """Messages for agents that ended without one: (session, last event number) of theirs and of their senders'."""

    expired: int = 0
    dead: int = 0
    told: tuple[tuple[SessionId, int], ...] = field(default_factory=tuple)


class MessageStore(Protocol):
    """Rows of ``agent_messages`` and the wake columns of ``sessions``. Sending is ``MailboxStore.send_messages``."""

    def agent_message(self, message_id: MessageId, workspace_id: WorkspaceId | None) -> AgentMessage:
        """Raises NotFound."""
        ...

    def agent_messages(self, where: MessageFilter) -> Page[AgentMessage]: ...
    def cursors(self, session_id: SessionId) -> Cursors:
        """By index: acked is the number before the first unsettled one."""
        ...

    def take_messages(self, fence: RunFence, *, limit: int, most_attempts: int) -> list[AgentMessage]:
        """The next ones for the agent of the session that this attempt holds, oldest first: each gets a new delivery
        identity, its attempt counted before it is typed; one that an earlier attempt may have typed says so
        (``redelivered``). What was tried ``most_attempts`` times becomes a dead letter. Empty where the fence is
        refused."""
        ...

    def injected(self, fence: RunFence, done: Sequence[Injected]) -> list[MessageState]:
        """Writes event ``message.delivered`` (and ``message.acked``) in the same transaction. Late ones, of an older
        delivery identity, change nothing."""
        ...

    def ack_messages(self, session_id: SessionId, *, up_to: int) -> Cursors:
        """The agent itself says that it has all up to a number: cumulative; what was never delivered is not skipped."""
        ...

    def sweep_messages(self, *, limit: int = 500) -> MailSwept:
        """Expiry: state, event to the session, event ``message.failed`` to the sender's session, dead letter."""
        ...

    def overdue_messages(self, *, longer_than: timedelta, limit: int = 100) -> list[Overdue]: ...
