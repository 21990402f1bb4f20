"""How long a turn may take, and how long it may go without progress: a judgement over elapsed times, no clock here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.timeout import TimeoutReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one turn; None: no such limit. ``deadline``: what is left of the run's deadline when the turn begins."""

    run: timedelta | None = None
    deadline: timedelta | None = None
    idle: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Elapsed:
    """``turn``: since it began. ``idle``: since the last progress anybody knows of."""

    turn: timedelta
    idle: timedelta


def passed(limits: Limits, elapsed: Elapsed) -> TimeoutReason | None:
    """The limit that is passed; where several are, the one whose moment came first."""
    overdue = [
        (over, reason)
        for limit, spent, reason in (
            (limits.deadline, elapsed.turn, TimeoutReason.DEADLINE),
            (limits.run, elapsed.turn, TimeoutReason.RUN),
            (limits.idle, elapsed.idle, TimeoutReason.IDLE),
        )
        if limit is not None and (over := spent - limit) >= timedelta(0)
    ]
    return max(overdue, key=lambda each: each[0])[1] if overdue else None
