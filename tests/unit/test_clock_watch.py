"""A leader keeps watch over the stores' clocks in every pass, so that it can say when not to judge."""

from datetime import timedelta

import pytest

from oah.core.policy.clocks import Rules
from oah.errors import Unavailable
from oah.ports.telemetry import NullTelemetry
from oah.services.clocks import WatchClocks
from oah.services.decisions import Decisions
from tests.support.clock import StillClock

RULES = Rules(lease=timedelta(seconds=6), margin=timedelta(seconds=1))


class Server:
    """A store's clock, which goes with the test's and can jump or be away."""

    def __init__(self, clock: StillClock) -> None:
        self._clock = clock
        self.step = 0.0
        self.away = False

    def now(self) -> float:
        if self.away:
            raise Unavailable("away")
        return self._clock.boottime() + self.step


def watching() -> tuple[WatchClocks, StillClock, Server, Server]:
    """A leader whose first lease is over, with a look every second of it."""
    clock = StillClock()
    database, redis = Server(clock), Server(clock)
    watch = WatchClocks(database, redis, clock, NullTelemetry(), RULES, Decisions(clock))  # type: ignore[arg-type]
    for _ in range(8):
        watch.keep_watch()
        clock.seconds += 1
    assert not watch.on_hold()
    return watch, clock, database, redis


def test_a_step_is_seen_although_nothing_was_judged_before() -> None:
    """HB4: after a quiet hour the Redis host jumps a minute ahead, and the first judgement is about that minute."""
    watch, clock, _, redis = watching()
    redis.step = 60
    assert watch.look()
    clock.seconds += 5.9
    assert watch.on_hold()
    clock.seconds += 0.2
    assert not watch.on_hold()


def test_without_the_watch_the_first_judgement_has_nothing_to_compare_with() -> None:
    """What the test above rests on."""
    watch, clock, _, redis = watching()
    watch.begin()
    clock.seconds += 7
    redis.step = 60
    assert not watch.look()


def test_a_database_that_was_away_makes_nobody_an_orphan_for_a_lease() -> None:
    """Marks are old because nobody could mark; a worker that died and came back delivers what it kept first."""
    watch, clock, database, _ = watching()
    database.away = True
    for _ in range(4):
        clock.seconds += 1
        with pytest.raises(Unavailable):
            watch.keep_watch()
    database.away = False
    clock.seconds += 1
    assert watch.keep_watch()
    clock.seconds += 5.9
    assert watch.on_hold()
    clock.seconds += 0.2
    assert not watch.on_hold()


def test_an_absence_of_redis_or_a_short_one_of_the_database_holds_nothing() -> None:
    watch, clock, database, redis = watching()
    redis.away = True
    for _ in range(20):
        clock.seconds += 1
        with pytest.raises(Unavailable):
            watch.keep_watch()
    redis.away = False
    database.away = True
    clock.seconds += 1
    with pytest.raises(Unavailable):
        watch.keep_watch()
    database.away = False
    clock.seconds += 1
    assert not watch.keep_watch()
