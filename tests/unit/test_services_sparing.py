"""Counting that takes long is asked for seldom."""

from __future__ import annotations

import pytest

from oah.errors import Unavailable
from oah.services.sparing import Sparing
from tests.support.clock import StillClock


class Counter:
    def __init__(self, clock: StillClock, takes: float) -> None:
        self.clock, self.takes, self.asked, self.away = clock, takes, 0, False

    def __call__(self) -> int:
        self.clock.seconds += self.takes
        self.asked += 1
        if self.away:
            raise Unavailable("away")
        return self.asked


def test_what_is_quick_is_always_anew() -> None:
    clock = StillClock()
    sparing = Sparing(clock, Counter(clock, 0.001))
    assert [sparing() for _ in range(3)] == [1, 2, 3]


def test_what_is_slow_takes_a_twentieth_of_the_time() -> None:
    clock = StillClock()
    counter = Counter(clock, 0.5)
    sparing = Sparing(clock, counter)
    begun = clock.seconds
    while clock.seconds - begun < 1000:
        sparing()
        clock.seconds += 0.1
    assert 0.04 <= counter.asked * counter.takes / (clock.seconds - begun) <= 0.05


def test_a_failure_is_told_and_not_kept() -> None:
    clock = StillClock()
    counter = Counter(clock, 0.5)
    sparing = Sparing(clock, counter)
    counter.away = True
    with pytest.raises(Unavailable):
        sparing()
    counter.away = False
    assert (sparing(), sparing()) == (2, 2)
