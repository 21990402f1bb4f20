"""What the services ask of the store about messages for the agents of sessions: one row each, by (session, number)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from oah.core.model.ids import DeliveryId, MessageId, RunId, SessionId, WorkspaceId
from oah.core.model.message import AgentMessage, Cursors, MessageState, WakeMode
from oah.core.policy.wake import Rules
from oah.ports.rows import Accepted, Page, RunFence


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """What became of an attempt to give a message to an agent. ``outcome``: as in core/model/delivery.py.
    ``turn_over``: the turn that it began has ended. ``refused``: why this program will never take this text: it is
    dead. ``untried``: nothing was typed, for a reason that passes: the attempt does not count."""

    message_id: MessageId
    delivery_id: DeliveryId
    outcome: str
    turn_over: bool = False
    reply: str | None = None
    refused: str | None = None
    untried: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """``messages`` for the agent, oldest first. ``number``: the last event that this wrote (dead letters)."""

    messages: tuple[AgentMessage, ...] = ()
    number: int = 0


@dataclass(frozen=True, slots=True)
class Settled:
    """The state of each message after ``injected``, and the last event number of the session."""

    states: tuple[MessageState, ...] = ()
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """Which messages."""

    workspace_id: WorkspaceId | None = None
    session_id: SessionId | None = None
    state: MessageState | None = None
    cursor: str | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Woken:
    """What a wake by hand has come to. ``why_not``: why none was made (core/policy/wake.py)."""

    session_id: SessionId
    mode: WakeMode
    waiting: int
    run_id: RunId | None = None
    why_not: str | None = None
    accepted: Accepted | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Overdue:
    """Messages whose recipient is ready and that nobody delivers."""

    session_id: SessionId
    oldest: timedelta
    count: int


@dataclass(frozen=True, slots=True)
class MailSwept:
    """What a sweep has done about messages for agents. ``told``: (session, last event number) of theirs and of their
    senders'. ``wakes``: runs that were missing. ``stopped``: sessions whose agents messages start no more."""

    expired: int = 0
    dead: int = 0
    returned: int = 0
    acked: int = 0
    wakes: tuple[Accepted, ...] = ()
    stopped: tuple[SessionId, ...] = ()
    told: tuple[tuple[SessionId, int], ...] = field(default_factory=tuple)


class MessageStore(Protocol):
    """Rows of ``agent_messages`` and the wake columns of ``sessions``. Sending is ``MailboxStore.send_messages``."""

    def agent_message(self, message_id: MessageId, workspace_id: WorkspaceId | None) -> AgentMessage:
        """Raises NotFound."""
        ...

    def agent_messages(self, where: MessageFilter) -> Page[AgentMessage]:
        """Newest first, without their payloads."""
        ...

    def cursors(self, session_id: SessionId) -> Cursors:
        """By index: acked is the number before the first unsettled one."""
        ...

    def take_messages(self, fence: RunFence, *, limit: int, most_attempts: int) -> Taken:
        """The next ones for the agent of the session that this attempt holds, oldest first: each gets a new delivery
        identity, its attempt counted before it is typed; one that an earlier attempt may have typed says so
        (``redelivered``). What was tried ``most_attempts`` times becomes a dead letter. Empty where the fence is
        refused. A wake that is told of none has looked for the last time: what comes later makes another."""
        ...

    def lose_messages(self, fence: RunFence, *, code: str, after_turns: bool = False) -> int:
        """Nothing that waits can be delivered to this session's agent: all of it is dead. ``after_turns``: only if
        there was a conversation that is lost now. The last event number; 0: nothing was lost."""
        ...

    def end_wake(self, fence: RunFence) -> None:
        """This wake will not look again, and nothing is wrong: what waits, waits."""
        ...

    def injected(self, fence: RunFence, done: Sequence[Injected]) -> Settled:
        """Writes event ``message.delivered`` (and ``message.acked``) in the same transaction. Late ones, of an older
        delivery identity, change nothing."""
        ...

    def ack_messages(self, session_id: SessionId, *, up_to: int, by: str) -> tuple[Cursors, int]:
        """The agent itself says that it has all up to a number: cumulative; what was never delivered is not skipped.
        With the last event number, 0 when nothing changed."""
        ...

    def wake_session(self, session_id: SessionId, workspace_id: WorkspaceId | None, *, by: str) -> Woken:
        """By hand: failures and pause are forgotten, and if messages wait a wake is made, of a lazy session as well.
        Raises NotFound, Conflict ``session_closed``."""
        ...

    def sweep_messages(self, rules: Rules, *, limit: int = 500) -> MailSwept:
        """Whatever time and lost runs ask for: expiry (state, events, dead letter), deliveries whose run is over, runs
        that messages became, wakes that failed, wakes that are missing."""
        ...

    def overdue_messages(self, *, longer_than: timedelta, limit: int = 100) -> list[Overdue]:
        """Queued so long although their recipient is ready; the event ``message.overdue`` is written once of each."""
        ...
