"""When a turn of a full-screen program is over: judged on its screens, never on silence alone.

Over means: ready, nothing in the composer, quiet for a while since the last output *and* the last key, and that the
program was seen to work or to have answered since the submit, because a screen that has not moved yet is still the one
from before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import assert_never

from oah.core.dialogue.reading import Condition, Dialog, Reading, asks_the_same


@dataclass(frozen=True, slots=True)
class TurnRules:
    """`settle`: quiet after which a ready screen is over (the longest silence of a working program was measured at
    0.4 s). `asked`: how long a dialog must stand before somebody is asked; `repeat`: and one that has been answered
    and still stands. `unseen`: quiet after which a turn is over of which nothing was seen, neither work nor an answer.
    `unknown`: quiet after which somebody is asked about a screen that no rule recognises; None: never (programs that
    work in silence). `still`: quiet after which that goes for a line that says that the program works, too: its own
    moves, a reply that quotes it does not; None: never."""

    settle: timedelta = timedelta(milliseconds=800)
    asked: timedelta = timedelta(milliseconds=500)
    repeat: timedelta = timedelta(seconds=5)
    unseen: timedelta = timedelta(seconds=10)
    unknown: timedelta | None = timedelta(seconds=20)
    still: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn since its submit. Moments are seconds of a monotonic clock. `changed_at`: the last output or key.
    `answered`: the dialog that was answered last."""

    changed_at: float
    worked: bool = False
    answered: Dialog | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """A dialog and the moment since which it has stood, whatever in it ticks. `shown`: since when there has been one of
    its name, whatever else has changed in it."""

    dialog: Dialog
    since: float
    shown: float

    def stood(self, now: float, rules: TurnRules) -> float:
        """Seconds for which it has. One that never rests, in a way that nobody knows, counts as well after a while."""
        shown = now - self.shown
        return max(now - self.since, shown if shown >= rules.repeat.total_seconds() else 0.0)


def standing(before: Standing | None, dialog: Dialog, *, output_at: float, key_at: float) -> Standing:
    """After another look. `output_at`, `key_at`: the last output and the last key (a dialog after a key is a new
    one)."""
    last = max(output_at, key_at)
    if before is None or before.dialog.name != dialog.name:
        return Standing(dialog, last, last)
    is_same = asks_the_same(before.dialog, dialog)
    return Standing(dialog, max(before.since, key_at) if is_same else last, max(before.shown, key_at))


@dataclass(frozen=True, slots=True)
class Going:
    """Not over; look again after `seconds` at the latest."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Over:
    """The program waits for the next text."""


@dataclass(frozen=True, slots=True)
class Asks:
    """The program waits for an answer of somebody, or cannot go on. `dialog` None: no rule knows what it shows."""

    dialog: Dialog | None


@dataclass(frozen=True, slots=True)
class Unseen:
    """Ready and quiet, but neither work nor an answer was ever seen."""


Verdict = Going | Over | Asks | Unseen


def output(turn: Turn, now: float) -> Turn:
    """The program wrote something."""
    return replace(turn, changed_at=max(turn.changed_at, now))


def key(turn: Turn, now: float) -> Turn:
    """We pressed something: what the screen shows is from before."""
    return replace(turn, changed_at=max(turn.changed_at, now))


def replied(turn: Turn, dialog: Dialog | None, now: float) -> Turn:
    """Somebody's answer to this dialog was typed."""
    return replace(key(turn, now), answered=dialog)


def judge(
    turn: Turn, reading: Reading, *, answered: bool, now: float, rules: TurnRules, stood: float = 0.0
) -> tuple[Turn, Verdict]:
    """What the screen says now. `answered`: a reply stands there that did not before the submit. `stood`: how long the
    dialog has stood, should something in it tick (`Standing`)."""
    quiet = now - turn.changed_at
    match reading.condition:
        case Condition.WORKING:
            return replace(turn, worked=True, answered=None), _working(reading, quiet=quiet, rules=rules)
        case Condition.ASKING | Condition.BLOCKED:
            assert reading.dialog is not None  # only a dialog makes these
            again = turn.answered is not None and asks_the_same(turn.answered, reading.dialog)
            left = (rules.repeat if again else rules.asked).total_seconds() - max(quiet, stood)
            return turn, Going(left) if left > 0 else Asks(reading.dialog)
        case Condition.READY:
            return turn, _ready(turn, reading, answered=answered, quiet=quiet, rules=rules)
        case Condition.UNRECOGNISED:
            if rules.unknown is None:
                return turn, Going(rules.settle.total_seconds())
            left = rules.unknown.total_seconds() - quiet
            return turn, Going(left) if left > 0 else Asks(None)
    assert_never(reading.condition)


def _working(reading: Reading, *, quiet: float, rules: TurnRules) -> Verdict:
    is_still = rules.still is not None and reading.composer is not None and quiet >= rules.still.total_seconds()
    return Asks(None) if is_still else Going(rules.settle.total_seconds())


def _ready(turn: Turn, reading: Reading, *, answered: bool, quiet: float, rules: TurnRules) -> Verdict:
    left = rules.settle.total_seconds() - quiet
    if left > 0 or reading.composer is None or reading.composer.draft:
        return Going(max(left, 0.05))
    if turn.worked or answered:
        return Over()
    return Unseen() if quiet >= rules.unseen.total_seconds() else Going(0.05)
