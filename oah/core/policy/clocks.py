"""Whether a clock that judges leases or marks has jumped: recovery holds for one lease when it has (I7).

The leader reads Redis's and the database's clock, each between two readings of its own CLOCK_BOOTTIME. Each clock is
compared with boottime, not with the other: two servers on one host step together. Offsets are intervals, as wide as
the reading took; a jump is what the intervals prove. A reading wider than half the margin proves nothing either way:
that pass decides nothing. Small steps add up, so every sample of the last lease is a baseline.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Rules:
    """`margin`: what a clock may be off within a lease before two agents could meet."""

    lease: timedelta
    margin: timedelta


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a server's clock (seconds), taken between two readings of CLOCK_BOOTTIME (seconds)."""

    before: float
    clock: float
    after: float

    @property
    def width(self) -> float:
        """Seconds of uncertainty."""
        return self.after - self.before

    def step_from(self, earlier: Reading) -> float:
        """Seconds that the clock has certainly moved against boottime since `earlier`; 0 if nothing is proven."""
        low = (self.clock - self.after) - (earlier.clock - earlier.before)
        high = (self.clock - self.before) - (earlier.clock - earlier.after)
        if low > 0:
            return low
        return min(high, 0.0)


@dataclass(frozen=True, slots=True)
class Watch:
    """What a leader remembers of one clock. Make a new one at every beginning of leadership."""

    samples: tuple[Reading, ...] = ()
    hold_until: float = 0.0
    """CLOCK_BOOTTIME in seconds."""
    last_step: float = 0.0
    blurred: bool = False

    def on_hold(self, boottime: float) -> bool:
        """Whether recovery must not decide now."""
        return self.blurred or boottime < self.hold_until


def begin(boottime: float, rules: Rules) -> Watch:
    """A new leader knows no baseline: its first lease is a hold."""
    return Watch(hold_until=boottime + rules.lease.total_seconds())


def watch(seen: Watch, reading: Reading, rules: Rules) -> Watch:
    """The watch after one more reading."""
    if reading.width > rules.margin.total_seconds() / 2:
        return Watch(seen.samples, seen.hold_until, seen.last_step, blurred=True)
    steps = [reading.step_from(earlier) for earlier in seen.samples]
    step = max(steps, key=abs, default=0.0)
    oldest = reading.before - rules.lease.total_seconds()
    recent = tuple(sample for sample in seen.samples if sample.before >= oldest)
    if abs(step) > rules.margin.total_seconds():
        hold = reading.after + rules.lease.total_seconds()
        return Watch((reading,), max(hold, seen.hold_until), step)
    return Watch((*recent, reading), seen.hold_until, seen.last_step)
