"""What became of a session's conversation when an agent was opened for a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from oah.core.model.home import SessionHome
from oah.core.model.ids import SessionId
from oah.ports.rows import RunFence


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedAgent:
    """`agent`: ``resumed``, ``repaired`` or ``fresh``; `reason`: see core/model/run.py, Attempt. `session_ref`: the
    program's name of the conversation, None where it is not known yet. `before`: the name of the one that was given
    up."""

    agent: str
    reason: str | None = None
    session_ref: str | None = None
    home: SessionHome | None = None
    before: str | None = None


class ConversationStore(Protocol):
    """The truth about conversations."""

    def opened(self, fence: RunFence, agent: OpenedAgent) -> bool:
        """Record it with the attempt and the session, and tell it (``run.agent``). False: the fence refused."""
        ...

    def unbind_homes(self, sessions: Sequence[tuple[SessionId, str]]) -> int:
        """Homes at a place (their mark) that is gone: runs of these sessions may start anywhere, and begin anew."""
        ...
