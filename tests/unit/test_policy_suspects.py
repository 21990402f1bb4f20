"""What suspects and the limit of attempts promise together, whatever the order of things (HM1): a model of a fleet.

Killers take down whatever worker they are on, innocents are lost with it. Hypothesis chooses who starts where and who
strikes when; the decisions are the product's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oah.core.model.run import RunStatus
from oah.core.policy.recovery import Quarantine, Requeue, Rules, Strategy, View, decide

WORKERS, SLOTS = 3, 4
Step = tuple[int, int]
steps = st.lists(st.tuples(st.integers(0, WORKERS - 1), st.integers(0, 30)), max_size=120)


@dataclass
class Run:
    """`recovered` stands for recovery_attempts."""

    kills: bool
    recovered: int = 0
    quarantined: bool = False
    hits: int = 0


@dataclass
class Fleet:
    """Workers with slots; a place for one suspect each, as long as `rule` holds."""

    runs: list[Run]
    most: int
    rule: bool = True
    workers: list[list[Run]] = field(default_factory=lambda: [[] for _ in range(WORKERS)])

    def step(self, worker: int, choice: int) -> None:
        """The worker's killer strikes, or else a waiting run starts on it."""
        here = self.workers[worker]
        killers = [run for run in here if run.kills]
        if killers and choice % 3 == 0:
            killers[0].hits += 1
            self.workers[worker] = []
            for run in here:
                self._recover(run)
            return
        waiting = [run for run in self.runs if not run.quarantined and not any(run in each for each in self.workers)]
        if not waiting or len(here) >= SLOTS:
            return
        run = waiting[choice % len(waiting)]
        if self.rule and run.recovered and any(each.recovered for each in here):
            return  # the worker has no place for another suspect
        here.append(run)

    def _recover(self, run: Run) -> None:
        match decide(View(RunStatus.RUNNING, run.recovered), Rules(Strategy.REQUEUE_RUNNING, self.most)):
            case Requeue():
                run.recovered += 1
            case Quarantine():
                run.quarantined = True
            case other:
                raise AssertionError(other)


def _played(moves: list[Step], *, killers: int, most: int, rule: bool = True) -> Fleet:
    fleet = Fleet([Run(kills=number < killers) for number in range(killers + 6)], most, rule)
    for worker, choice in moves:
        fleet.step(worker, choice)
    return fleet


@given(steps, st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=150)
def test_an_innocent_is_lost_once_per_killer_at_most(moves: list[Step], killers: int, most: int) -> None:
    fleet = _played(moves, killers=killers, most=most)
    for run in fleet.runs:
        if run.kills:
            assert run.hits <= most + 1, "so many workers a killer takes, and no more"
        else:
            assert run.recovered + run.quarantined <= killers
            assert not run.quarantined or killers > most


@given(steps, st.integers(1, 4))
@settings(max_examples=100)
def test_beside_one_killer_no_innocent_is_ever_lost_twice(moves: list[Step], most: int) -> None:
    fleet = _played(moves, killers=1, most=most)
    assert all(run.recovered <= 1 and not run.quarantined for run in fleet.runs if not run.kills)


@pytest.mark.parametrize("most", [1, 2])
def test_without_the_rule_a_killer_drags_its_neighbours_along(most: int) -> None:
    """The deliberate violation: the same moves with room for any number of suspects. The model would see it."""
    chance = random.Random(most)

    def dragged() -> bool:
        moves = [(chance.randrange(WORKERS), chance.randrange(31)) for _ in range(120)]
        runs = _played(moves, killers=1, most=most, rule=False).runs
        return any(run.quarantined for run in runs if not run.kills)

    assert any(dragged() for _ in range(500))
