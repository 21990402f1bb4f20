"""Whether a session's agent is to be started for the messages that wait for it, and if not, why not.

A wake is a run like any other. One that is under way has promised to look once more before it ends, so that a burst of
messages makes one; a run that waits in the session's queue gives the messages before its own text, so that none is
needed beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from oah.core.model.message import WakeMode

SESSION_CLOSED = "session_closed"
UNRECOVERABLE = "session_unrecoverable"
"""Its agent is gone, and with it the conversation: nothing can go on with it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """``pause``: between two starts of an agent for messages. ``failures``: starts that failed in a row, after which
    messages start it no more."""

    pause: timedelta = timedelta(seconds=5)
    failures: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A session as its locked rows show it."""

    waiting: int
    """Messages that are queued, due, and in nobody's hands."""
    mode: WakeMode = WakeMode.LAZY
    is_open: bool = True
    under_way: bool = False
    """A wake is queued or running and has not looked for the last time."""
    run_next: bool = False
    """A run is queued that may start now."""
    alive: bool = False
    """Somebody owns the session: its agent runs, or is warm."""
    had_turns: bool = False
    """There was a conversation."""
    resumable: bool = False
    """A new process can go on with it."""
    stopped: str | None = None
    repeated: bool = False
    """Nobody has sent anything just now: a wake before has not delivered what waits."""
    pause_left: timedelta = timedelta(0)


class WhyNot(StrEnum):
    """Why no wake is made now; what happens next instead."""

    NOTHING_WAITS = "nothing_waits"
    UNDER_WAY = "under_way"
    """The wake that is under way takes them."""
    RUN_NEXT = "run_next"
    """The next run takes them before its text."""
    LAZY = "lazy"
    """They wait until somebody starts the agent."""
    STOPPED = "stopped"
    """Too many starts failed; ``oah session wake`` tries again."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Make one. ``after``: not before so much time has passed."""

    after: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class NotNow:
    """Make none."""

    why: WhyNot


@dataclass(frozen=True, slots=True)
class Lost:
    """They can never be delivered: they are dead."""

    code: str


Decision = Wake | NotNow | Lost


def decide(view: View) -> Decision:
    """What is to be done about the messages that wait."""
    if view.waiting <= 0:
        return NotNow(WhyNot.NOTHING_WAITS)
    if not view.is_open:
        return Lost(SESSION_CLOSED)
    if view.had_turns and not view.alive and not view.resumable:
        return Lost(UNRECOVERABLE)
    if view.under_way:
        return NotNow(WhyNot.UNDER_WAY)
    if view.run_next:
        return NotNow(WhyNot.RUN_NEXT)
    if view.alive:
        # At once for who sends; again and again not: somebody may be typing to it, for as long as he likes.
        return Wake(max(view.pause_left, timedelta(0)) if view.repeated else timedelta(0))
    if view.mode is WakeMode.LAZY:
        return NotNow(WhyNot.LAZY)
    return NotNow(WhyNot.STOPPED) if view.stopped else Wake(max(view.pause_left, timedelta(0)))


def stops(failures: int, rules: Rules) -> bool:
    """Whether so many failed wakes in a row are enough."""
    return failures >= rules.failures
