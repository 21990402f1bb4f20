"""What travels between claimer, slots and settler."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from oah.core.model.drain import AtDeadline
from oah.core.model.ids import ClaimToken, SessionId
from oah.core.model.message import AgentMessage
from oah.core.model.question import Question
from oah.core.model.run import ReadyClass, RunKind
from oah.ports.agent import Agent
from oah.ports.store import RunFence, Settlement, Started


@dataclass(frozen=True, slots=True)
class Waited:
    """An agent in the middle of a turn, and what it asks. ``number``: of the question in SQL; 0: not there yet."""

    agent: Agent
    kind: str
    question: Question
    key: str
    """Of this asking, so that a repetition is found."""
    number: int = 0
    since: float = 0.0
    """Monotonic seconds."""


@dataclass(slots=True)
class Assignment:
    """A started run on its way through a slot.

    ``give_back``: the worker drains, end the agent and release the run. ``lost``: the session is somebody else's, end
    the agent and write nothing. Both are set by other threads, then ``agent`` is closed by them.
    """

    started: Started
    fence: RunFence
    ready_class: ReadyClass
    agent: Agent | None = None
    begun_at: float | None = None
    """CLOCK_BOOTTIME before the start was sent."""
    give_back: bool = False
    drained: AtDeadline | None = None
    """With ``give_back``: what somebody said of it. None: released, or the recovery policy decides while it asks."""
    lost: bool = False
    said: int = field(default=0)
    """Bytes of ``run.output`` text so far."""
    waited: Waited | None = None
    """Its turn was left because the program asks: it goes on with that agent, and nothing is begun."""
    answer: str | None = None
    """What was answered; None: nobody has, the turn is only looked at, because it is to end."""
    lent: int | None = None
    """It waits for its children in the middle of its turn and has lent its slot: the number of the wait in SQL."""
    spent: timedelta = timedelta(0)
    """In its turn, without the time that it waited in no slot."""
    letter: AgentMessage | None = None
    """The message whose turn it is; None: the run's own text."""
    letters: bool = True
    """Whether it looks for a message before the run's own text."""
    typed: bool = False
    """Whether the program was seen to take it, or it was typed at least."""
    replies: list[str] = field(default_factory=list)
    """What the agent answered to messages."""

    @property
    def is_wake(self) -> bool:
        """Its run has no text of its own."""
        return self.started.run.kind is RunKind.WAKE

    def is_lost(self) -> bool:
        """Asked again and again: another thread may have set it."""
        return self.lost

    def is_withdrawn(self) -> bool:
        """The turn is not to begin."""
        return self.lost or self.give_back


@dataclass(frozen=True, slots=True)
class Finished:
    """An outcome to settle; ``agent`` when it stays warm."""

    settlement: Settlement
    ready_class: ReadyClass
    seconds: float
    """How long the attempt took."""
    agent: Agent | None = None
    assignment: Assignment | None = None
    """What was executed, for those who are told of its end."""


@dataclass(frozen=True, slots=True)
class Returned:
    """A run to release: its tree is verified empty, nothing is counted."""

    fence: RunFence
    ready_class: ReadyClass


@dataclass(frozen=True, slots=True)
class Orphaned:
    """A run whose agent was lost under it (host, deadman): tree verified empty, the recovery policy decides."""

    fence: RunFence
    reason: str


@dataclass(frozen=True, slots=True)
class Unparked:
    """A warm agent was ended: the owner row goes. ``empty`` False: its tree could not be emptied, so it is held."""

    session_id: SessionId
    token: ClaimToken
    empty: bool = True


@dataclass(frozen=True, slots=True)
class Asks:
    """A turn that was left because its program asks: the run waits, and its slot is free."""

    assignment: Assignment
    waited: Waited

    @property
    def fence(self) -> RunFence:
        """Of the attempt."""
        return self.assignment.fence


@dataclass(frozen=True, slots=True)
class Answered:
    """A policy has answered; ``how``: ``allowed`` or ``denied``."""

    fence: RunFence
    question: Question
    choice: str
    rule: str
    how: str


Ending = Finished | Returned | Orphaned | Unparked | Asks
