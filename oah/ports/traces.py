"""What the store knows of where one message has been."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from oah.core.model.event import Event
from oah.core.model.ids import MessageId, WorkspaceId
from oah.core.model.mailbox import Mailbox
from oah.core.model.message import AgentMessage, Message


class ShareState(StrEnum):
    """How far a queue group is with a message."""

    AHEAD = "ahead"
    """Nobody of the group has had it."""
    HELD = "held"
    """A member has it."""
    GIVEN_BACK = "given_back"
    """It was had, and the next member gets it, perhaps not at once."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class GroupShare:
    """What a queue group has done with a message. ``until``: the end of the lease, or of being kept back."""

    group: str
    state: ShareState
    attempts: int = 0
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterMark:
    """A dead letter about it, in short."""

    id: str
    code: str
    reason: str
    attempts: int
    last_at: datetime
    redriven_at: datetime | None = None
    redriven_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTrace:
    """All there is. ``message`` and ``mailbox`` None: deleted since, and something else remembers it. ``due_at``: it
    was delayed until then. ``events``: of the sessions that it went to and came from."""

    id: MessageId
    message: Message | None
    mailbox: Mailbox | None
    due_at: datetime | None
    settled_at: datetime | None
    for_agent: AgentMessage | None
    groups: Sequence[GroupShare]
    letters: Sequence[LetterMark]
    events: Sequence[Event]


class TraceStore(Protocol):
    """Looks into everything that names a message; for people, not for loops."""

    def trace_message(self, message_id: MessageId, workspace_id: WorkspaceId | None) -> MessageTrace:
        """Raises NotFound ``message_not_found``: nothing remembers it."""
        ...
