"""The live probe: it looks at whether the claim loop moves, and at nothing that this worker depends on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from oah.errors import InDoubt, Unavailable
from oah.ports.store import NothingEligible
from oah.worker.alive import Alive
from oah.worker.engine import Engine
from tests.support import eventually
from tests.support.clock import StillClock
from tests.support.worker_doubles import Scripted
from tests.unit.test_worker_claimer import Desk as ClaimDesk
from tests.unit.test_worker_claimer import S


class Duty:
    """Hangs in a step for as long as the test likes."""

    def __init__(self) -> None:
        self.due, self.hangs, self.free = False, threading.Event(), threading.Event()

    def pending(self) -> float | None:
        return 0.0 if self.due else None

    def step(self) -> None:
        self.due = False
        self.hangs.set()
        assert self.free.wait(60)


class Desk:
    """Two engines, as on PostgreSQL: what is settled sleeps until there is something, claims are hinted at."""

    def __init__(self) -> None:
        self.clock = StillClock()
        self.settler, self.claimer = Engine("settler"), Engine("claimer")
        self.settles, self.claims = Duty(), Duty()
        self.settler.carry(self.settles)
        self.claimer.carry(self.claims)
        self.alive = Alive(self.clock, [self.settler, self.claimer], limit=timedelta(seconds=60))

    def passed(self, seconds: float, *, hinted: bool = True) -> list[str]:
        """After so long; the ear has hinted meanwhile."""
        self.clock.seconds += seconds
        if hinted:
            turns = self.claimer.turns
            self.claimer.wake()
            eventually(lambda: self.claimer.turns > turns, within=5)
        return self.alive.stuck()


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    assert made.alive.stuck() == [], "not before it has started"
    for engine in (made.settler, made.claimer):
        engine.start()
    eventually(lambda: made.settler.turns and made.claimer.turns, within=5)
    yield made
    for duty, engine in ((made.settles, made.settler), (made.claims, made.claimer)):
        duty.free.set()
        engine.stop(timedelta(0))
        assert engine.join(timedelta(seconds=5))
    made.clock.seconds += 1000
    assert made.alive.stuck() == [], "nor after it was stopped"


def test_an_idle_worker_lives_as_long_as_its_ear_hints(desk: Desk) -> None:
    assert [desk.passed(59) for _ in range(5)] == [[]] * 5
    assert desk.passed(61, hinted=False) == ["the claimer loop has not moved for 61 s"]
    assert desk.passed(1) == []


def test_a_step_that_hangs_is_seen(desk: Desk) -> None:
    desk.claims.due = True
    desk.claimer.wake()
    assert desk.claims.hangs.wait(60)
    assert desk.passed(1, hinted=False) == [] and desk.passed(59, hinted=False) == []
    assert desk.passed(1, hinted=False) == ["the claimer loop has not moved for 60 s"]
    desk.claims.free.set()
    eventually(lambda: desk.alive.stuck() == [], within=5)


def test_a_settler_may_sleep_and_may_not_hang(desk: Desk) -> None:
    assert [desk.passed(100) for _ in range(3)] == [[]] * 3
    desk.settles.due = True
    desk.settler.wake()
    assert desk.settles.hangs.wait(60)
    assert desk.passed(1) == []
    assert desk.passed(60) == ["the settler loop has not moved for 60 s"]


def test_a_start_in_doubt_moves_for_as_long_as_sql_is_away() -> None:
    """Its agents live and go on when SQL is back: starting this process again would only kill them."""
    moved: list[int] = []
    away = Unavailable("away")
    desk = ClaimDesk(store=Scripted(start=[InDoubt("cut")], start_outcome=[away, away, [NothingEligible(S)]]))
    desk.claimer.starting.goes_on = lambda: moved.append(desk.store.called("start_outcome"))
    desk.claim()
    assert moved == [0, 1, 2]
