"""How often a workspace may submit: a generic cell rate (GCRA), exact to a microsecond, one number to remember.

Guarantees: at most `burst` runs at once, never more than `burst` + `per_minute` × minutes in any stretch of time, and
the full rate for whoever asks again when told to. The number is a moment of the database's clock; one that lies further
ahead than it could (the clock went back, the limit was raised) is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

MINUTE_US = 60_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """Runs per minute, and how many of them at once; at least 1 each."""

    per_minute: int
    burst: int

    @property
    def every_us(self) -> int:
        """Microseconds from one run to the next."""
        return max(MINUTE_US // self.per_minute, 1)


def rate_of(per_minute: int | None, burst: int | None) -> Rate | None:
    """Of a workspace; a limit without a burst lets a minute's worth in at once. None: no limit."""
    if per_minute is None:
        return None
    return Rate(per_minute, per_minute if burst is None else burst)


@dataclass(frozen=True, slots=True)
class Admitted:
    """Let in; ``full_at``: what to remember."""

    full_at: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Not now."""

    retry_after: timedelta


def admit(full_at: int, rate: Rate, *, now_us: int) -> Admitted | Refused:
    """One more run. ``full_at``: what was remembered, 0 at first."""
    ahead = min(max(full_at, now_us), now_us + rate.burst * rate.every_us)
    spare = now_us + (rate.burst - 1) * rate.every_us
    if ahead > spare:
        return Refused(timedelta(microseconds=ahead - spare))
    return Admitted(ahead + rate.every_us)
