"""Whether a text can be given now: is the composer there, empty, and the program willing?"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import assert_never

from oah.core.dialogue.reading import Condition, Reading
from oah.core.dialogue.turn import TurnRules


class Place(StrEnum):
    """What the screen says to somebody who wants to type."""

    FREE = "free"
    TAKEN = "taken"
    """Somebody else's half-typed line stands in the composer."""
    ASKS = "asks"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"
    """Quiet for long, and no rule knows what it shows."""
    WAIT = "wait"


def place(reading: Reading, *, quiet: float, settle: timedelta, rules: TurnRules, blind: bool = False) -> Place:
    """The judgement. `quiet`: seconds since the last output or key. `settle`: how long a place must have been free (a
    program that starts shows its composer before it listens). `blind`: a program that shows none is free when it is
    quiet."""
    match reading.condition:
        case Condition.READY:
            if quiet < settle.total_seconds():
                return Place.WAIT
            return Place.TAKEN if reading.composer is not None and reading.composer.draft else Place.FREE
        case Condition.ASKING:
            return Place.ASKS if quiet >= rules.asked.total_seconds() else Place.WAIT
        case Condition.BLOCKED:
            return Place.BLOCKED if quiet >= rules.asked.total_seconds() else Place.WAIT
        case Condition.WORKING:
            return Place.WAIT
        case Condition.UNRECOGNISED:
            if blind:
                return Place.FREE if quiet >= rules.settle.total_seconds() else Place.WAIT
            is_long = rules.unknown is not None and quiet >= rules.unknown.total_seconds()
            return Place.UNKNOWN if is_long else Place.WAIT
    assert_never(reading.condition)
