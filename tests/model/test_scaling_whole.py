"""The controller itself, with its rows in a real database, under simulated load: pods that take 45 s to start, runs of
any length, leaders that die in the middle of things, a registry that goes blind. Nobody's work is interrupted."""

from __future__ import annotations

import heapq
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.scaling_sim import PODS, step
from oah.ports.scaling import Outcome
from tests.support.scale_world import ScaleWorld, Unit

SLOTS, TICK = 4, 5.0


@pytest.fixture
def world(tmp_path: Path, sqlite_template: Path) -> Iterator[ScaleWorld]:
    world = ScaleWorld(Path(shutil.copy(sqlite_template, tmp_path)), slots=SLOTS)
    yield world
    world.close()


class Load:
    """Sessions that want a run, always the next when one ends."""

    def __init__(
        self, world: ScaleWorld, sessions: Callable[[float], float], *, run: float = 30, seed: int = 1
    ) -> None:
        self._world = world
        self._sessions = sessions
        self._run = run
        self._begin = world.clock.seconds
        self._chance = random.Random(seed)
        self._ends: list[tuple[float, int, Unit]] = []
        self.served = 0

    @property
    def at(self) -> float:
        return self._world.clock.seconds - self._begin

    def work(self) -> None:
        """What ends has ended, what can be claimed is claimed by whoever has most room."""
        now = self._world.clock.seconds
        while self._ends and self._ends[0][0] <= now:
            heapq.heappop(self._ends)[2].busy -= 1
            self.served += 1
        waiting = max(0, int(self._sessions(self.at)) - len(self._ends))
        while waiting:
            open_to = [each for each in self._world.units.values() if self._takes(each, now)]
            if not open_to:
                break
            unit = min(open_to, key=lambda each: each.busy)
            unit.busy += 1
            waiting -= 1
            heapq.heappush(self._ends, (now + self._chance.uniform(0.5, 1.5) * self._run, self.served + waiting, unit))
        self._world.ready = waiting

    @staticmethod
    def _takes(unit: Unit, now: float) -> bool:
        return unit.begins <= now and not unit.cordoned and unit.busy < SLOTS


def changes(world: ScaleWorld) -> list[tuple[int, int]]:
    """What was decided and done, from the rows."""
    rows = [each for each in world.decisions() if each.outcome in {Outcome.SCALED, Outcome.DRAINING, Outcome.OVERTAKEN}]
    return [(int(each.inputs["staying"]), each.desired) for each in rows if each.inputs["staying"] != each.desired]


def test_a_step_with_leaders_that_die_and_a_registry_that_goes_blind(world: ScaleWorld) -> None:
    rules = replace(PODS, down_window=24)  # two minutes: the shrinks, too, fall into what is simulated
    load, chance = Load(world, step), random.Random(3)
    leader, leaders = world.leader(rules, holder="leader 1"), 1
    sizes: dict[float, int] = {}
    while load.at < 1_860:
        world.sure = not (300 <= load.at < 360 or 800 <= load.at < 815)
        load.work()
        if chance.random() < 0.02:  # once in four minutes, in the midst of whatever there is
            leaders += 1
            leader = world.leader(rules, holder=f"leader {leaders}")
        if not 640 <= load.at < 700:  # for a minute there is none at all
            leader()
        sizes[load.at] = world.target.size
        world.tick(TICK)
    assert world.interrupted == []
    assert leaders >= 5
    assert load.served > 3_000
    assert {size for at, size in sizes.items() if 70 <= at < 660} == {25}
    assert {size for at, size in sizes.items() if at >= 1_270} == {25}
    assert min(size for at, size in sizes.items() if 660 <= at < 1_260) == 0
    assert len(changes(world)) <= 6
    ups = [to > size for size, to in changes(world)]
    assert sum(a != b for a, b in pairwise(ups)) == 2  # up, down, up


def test_what_comes_back_in_the_middle_of_a_shrink_takes_back_who_was_going(world: ScaleWorld) -> None:
    """100 sessions, then 20, and 100 again while those that are to go still work: hardly a pod is started anew."""
    rules = replace(PODS, down_window=3, down_cooldown=timedelta(seconds=10))
    load = Load(world, lambda at: 20.0 if 200 <= at < 300 else 100.0, run=120)
    leader, going = world.leader(rules), 0
    while load.at < 400:
        load.work()
        leader()
        if load.at == 295:
            going = len(world.going())
        world.tick(TICK)
    assert world.interrupted == []
    assert going >= 5
    assert (world.target.size, world.going()) == (25, set())
    assert not any(unit.cordoned for unit in world.units.values())
    assert world.target._numbers == 25 + len(world.ended)  # who was going stayed: only who had gone was replaced
    assert len(world.ended) <= 20 - going
