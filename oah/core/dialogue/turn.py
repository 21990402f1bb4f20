"""When a turn of a full-screen program is over: judged on its screens, never on silence alone.

Over means: ready, nothing in the composer, quiet for a while since the last output *and* the last key, and that the
program was seen to work or to have answered since the submit, because a screen that has not moved yet is still the one
from before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import assert_never

from oah.core.dialogue.reading import Condition, Dialog, Reading


@dataclass(frozen=True, slots=True)
class TurnRules:
    """`settle`: quiet after which a ready screen is over (the longest silence of a working program was measured at
    0.4 s). `asked`: how long a dialog must stand before somebody is asked. `unseen`: quiet after which a turn is over
    of which nothing was seen, neither work nor an answer."""

    settle: timedelta = timedelta(milliseconds=800)
    asked: timedelta = timedelta(milliseconds=500)
    unseen: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn since its submit. Moments are seconds of a monotonic clock. `changed_at`: the last output or key."""

    changed_at: float
    worked: bool = False


@dataclass(frozen=True, slots=True)
class Going:
    """Not over; look again after `seconds` at the latest."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Over:
    """The program waits for the next text."""


@dataclass(frozen=True, slots=True)
class Asks:
    """The program waits for an answer of somebody, or cannot go on."""

    dialog: Dialog


Verdict = Going | Over | Asks


def output(turn: Turn, now: float) -> Turn:
    """The program wrote something."""
    return replace(turn, changed_at=max(turn.changed_at, now))


def key(turn: Turn, now: float) -> Turn:
    """We pressed something: what the screen shows is from before."""
    return replace(turn, changed_at=max(turn.changed_at, now))


def judge(turn: Turn, reading: Reading, *, answered: bool, now: float, rules: TurnRules) -> tuple[Turn, Verdict]:
    """What the screen says now. `answered`: a reply stands there that did not before the submit."""
    quiet = now - turn.changed_at
    match reading.condition:
        case Condition.WORKING:
            return replace(turn, worked=True), Going(rules.settle.total_seconds())
        case Condition.ASKING | Condition.BLOCKED:
            assert reading.dialog is not None  # only a dialog makes these
            left = rules.asked.total_seconds() - quiet
            return turn, Going(left) if left > 0 else Asks(reading.dialog)
        case Condition.READY:
            left = rules.settle.total_seconds() - quiet
            idle = reading.composer is not None and not reading.composer.draft
            seen = turn.worked or answered or quiet >= rules.unseen.total_seconds()
            if left <= 0 and idle and seen:
                return turn, Over()
            return turn, Going(max(left, 0.05))
        case Condition.UNRECOGNISED:
            return turn, Going(rules.settle.total_seconds())
    assert_never(reading.condition)
