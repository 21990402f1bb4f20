"""How long the runs that a worker started lately had waited."""

from __future__ import annotations

from datetime import timedelta

from oah.core.policy.quantiles import bucket
from oah.worker.recent import LATELY, NOW, RecentWaits
from tests.support.clock import StillClock


def test_a_minute_five_minutes_and_no_more() -> None:
    clock = StillClock()
    waits = RecentWaits(clock)
    waits.add("interactive", 1.0)
    waits.add("interactive", 1.0)
    clock.seconds += 90
    waits.add("background", 5.0)
    assert waits.within(NOW) == {"background": {bucket(5.0): 1}}
    assert waits.within(LATELY) == {"interactive": {bucket(1.0): 2}, "background": {bucket(5.0): 1}}
    clock.seconds += 240
    assert waits.within(NOW) == {}
    assert waits.within(LATELY) == {"background": {bucket(5.0): 1}}
    clock.seconds += 3600
    waits.add("subagent", 0.0)
    assert waits.within(timedelta(days=1)) == {"subagent": {0: 1}}, "the rest is forgotten"
