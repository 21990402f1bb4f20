"""How long to wait before the next text goes to one agent: slower after failures, faster after confirmations.

Confirmed three times in a row halves the delay; a failure ends the streak and sets the delay by how many there were in
a row; an unverified delivery only ends the streak: it says nothing about the speed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from oah.core.model.delivery import Outcome

FLOOR = timedelta(milliseconds=100)
LADDER = tuple(timedelta(milliseconds=each) for each in (100, 200, 500, 1_000, 2_000, 5_000))
"""Delay after the first, second, … failure in a row; the last for all further ones."""

STREAK = 3
"""Confirmations in a row that halve the delay."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """The state of one agent."""

    delay: timedelta = FLOOR
    confirmed: int = 0
    failed: int = 0


def after(throttle: Throttle, outcome: Outcome) -> Throttle:
    """The state after one more delivery."""
    match outcome:
        case Outcome.CONFIRMED:
            confirmed = throttle.confirmed + 1
            delay = max(throttle.delay / 2, FLOOR) if confirmed % STREAK == 0 else throttle.delay
            return Throttle(delay, confirmed, 0)
        case Outcome.FAILED:
            failed = throttle.failed + 1
            return Throttle(LADDER[min(failed, len(LADDER)) - 1], 0, failed)
        case Outcome.UNVERIFIED:
            return replace(throttle, confirmed=0)
