"""Scaling while everything happens by chance: leaders die between any two writes or act at once, targets refuse,
workers crash, fall silent and come back, claims are late, operators cordon, load comes and goes. Nobody who works is
ever ended; and once it is quiet the pool has its size, nothing is left open, and only an operator's cordons stand."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oah.core.policy.scaling import Rules
from oah.errors import Unavailable
from oah.services.scale import ScaleFleet
from tests.support.scale_world import QUICK, ScaleWorld

STEPS = 60
RULES = Rules(
    minimum=1, maximum=8, per_unit=2, slots_per_unit=2, up_window=1, down_window=2,
    up_cooldown=QUICK.up_cooldown, down_cooldown=QUICK.down_cooldown, memory=QUICK.up_cooldown,
)  # fmt: skip


class Died(BaseException):
    """A process that ends where it stands."""


class Deadly:
    """Calls after or before which the caller may die."""

    def __init__(self, inner: Any, chances: Chances) -> None:
        self._inner, self._chances = inner, chances

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("add_decision", "change_decision", "resize"):
            return found

        def call(*args: Any, **more: Any) -> Any:
            self._chances.may_die()
            answer = found(*args, **more)
            self._chances.may_die()
            return answer

        return call


class Chances:
    """One course of events."""

    def __init__(self, world: ScaleWorld, seed: int) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.deadly = 0.0
        self.rules = RULES
        self.cordoned: set[str] = set()
        self.leaders: list[ScaleFleet] = []
        self.real, world.store = world.store, Deadly(world.store, self)

    def may_die(self) -> None:
        if self.chance.random() < self.deadly:
            raise Died

    def leader(self) -> ScaleFleet:
        return self.world.leader(self.rules, f"l{self.chance.random()}", target=Deadly(self.world.target, self))

    def lead(self) -> None:
        """Whoever believes to lead does a pass, in any order."""
        for leader in self.chance.sample(self.leaders, len(self.leaders)):
            try:
                leader()
            except Died:
                self.leaders.remove(leader)
            except Unavailable:
                pass
        while not self.leaders or (len(self.leaders) < 2 and self.chance.random() < 0.1):
            self.leaders.append(self.leader())
        if len(self.leaders) > 1 and self.chance.random() < 0.3:
            self.leaders.pop()

    def work(self) -> None:
        """Runs end, workers claim: those that were cordoned a moment ago may have a claim under way."""
        world, chance = self.world, self.chance
        before = {unit.name: unit.cordoned for unit in world.units.values()}
        world.tick(chance.choice((0.5, 1.0, 1.0, 5.0)))
        for unit in world.units.values():
            unit.busy -= sum(chance.random() < 0.2 for _ in range(unit.busy))
            unit.shown = unit.busy if unit.shown is None and chance.random() < 0.3 else None  # until the next report
            late = unit.cordoned and not before[unit.name] and chance.random() < 0.5
            if unit.begins <= world.clock.seconds and (late or not unit.cordoned):
                while world.ready and unit.busy < world.slots:
                    unit.busy, world.ready = unit.busy + 1, world.ready - 1

    def happen(self) -> None:
        world, chance = self.world, self.chance
        if chance.random() < 0.3:
            world.ready += chance.choice((1, 2, 5, 20))
        world.target.fails = Unavailable("away") if chance.random() < 0.1 else None
        if chance.random() < 0.1:
            world.target.quota = chance.choice((3, 5, 1000))
        if chance.random() < 0.5:
            world.target.come()
        for unit in list(world.units.values()):
            if chance.random() < 0.01:  # its machine is gone
                world.ready += unit.busy
                del world.units[unit.name]
                continue
            if chance.random() < 0.1:
                unit.silent = not unit.silent
            if chance.random() < 0.02:
                world.ready += unit.busy
                world.restart(unit.name)
            if chance.random() < 0.02 and not unit.cordoned:
                unit.cordoned = True
                self.cordoned.add(unit.name)
        world.sure = chance.random() > 0.1 and sum(unit.silent for unit in world.units.values()) * 3 < len(world.units)

    def calm(self) -> None:
        """Nothing happens any more, what was asked for is worked off, and the pool shall be no smaller than now."""
        world = self.world
        self.deadly, world.target.fails, world.sure = 0.0, None, True
        world.target.quota = 1000
        world.target.come()
        for unit in world.units.values():
            unit.silent = False
        self.rules = replace(RULES, minimum=8)
        self.leaders = [self.leader()]
        for _ in range(400):
            self.work()
            self.lead()
            if world.ready == 0 and not any(unit.busy for unit in world.units.values()):
                break
        for _ in range(20):
            self.work()
            self.lead()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_nobody_who_works_is_ended(tmp_path: Path, sqlite_template: Path, seed: int) -> None:
    world = ScaleWorld(Path(shutil.copy(sqlite_template, tmp_path)), slots=2)
    world.have(busy=3, idle=2)
    course = Chances(world, seed)
    course.deadly = 0.05
    for _ in range(STEPS):
        course.happen()
        course.lead()
        course.work()
    course.calm()
    assert world.interrupted == []
    assert (world.target.size, len(world.units), world.ready) == (8, 8, 0)
    assert course.real.open_decision("default") is None
    assert {unit.name for unit in world.units.values() if unit.cordoned} <= course.cordoned
    course.real.real.close()
