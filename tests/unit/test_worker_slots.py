"""Slots come and go while agents work in them, and agents take as many as they weigh."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from oah.worker.slots import Slots
from tests.support import eventually


@dataclass(eq=False)
class Work:
    """Stands for an assignment; runs until it is let go."""

    weight: int = 1
    begun: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)


class Desk:
    """Slots whose work does what the test says."""

    def __init__(self, count: int) -> None:
        self._others = set(threading.enumerate())
        self.all: list[Work] = []
        self.freed = 0
        self.crashes: list[BaseException] = []
        self.slots = Slots(
            count, execute=self._execute, freed=self._free, crashed=self.crashes.append, weigh=lambda work: work.weight
        )
        self.slots.start()

    def _execute(self, work: Any) -> None:
        work.begun.set()
        assert work.over.wait(60)

    def _free(self) -> None:
        self.freed += 1

    @property
    def threads(self) -> int:
        """How many live."""
        return len(
            [each for each in threading.enumerate() if each.name.startswith("slot-") and each not in self._others]
        )

    def give(self, weight: int = 1) -> Work:
        """It has begun when this returns."""
        work = Work(weight)
        self.all.append(work)
        self.slots.assign(work)  # type: ignore[arg-type]
        assert work.begun.wait(60)
        return work

    def end(self, *works: Work) -> None:
        """They are over when this returns."""
        for work in works:
            work.over.set()
        eventually(lambda: not any(work in self.slots.working for work in works), within=5)


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk(2)
    yield made
    made.end(*made.all)
    made.slots.resize(0)
    eventually(lambda: made.threads == 0, within=5, what="no slot thread is left")
    assert made.crashes == []


def test_slots_open_and_close_and_threads_with_them(desk: Desk) -> None:
    assert (desk.slots.size, desk.slots.idle, desk.threads) == (2, 2, 2)
    desk.slots.resize(5)
    works = [desk.give() for _ in range(5)]
    assert desk.slots.idle == 0
    desk.end(*works[1:])
    desk.slots.resize(2)
    eventually(lambda: desk.threads == 2, within=5)
    assert (desk.slots.size, desk.slots.idle, desk.slots.used) == (2, 1, 1)


def test_a_slot_that_is_in_use_closes_when_it_is_free(desk: Desk) -> None:
    works = [desk.give() for _ in range(2)]
    desk.slots.resize(1)
    assert (len(desk.slots.working), desk.slots.idle) == (2, 0), "nothing is interrupted"
    desk.end(works[0])
    eventually(lambda: desk.threads == 1, within=5)
    assert desk.slots.idle == 0
    desk.end(works[1])
    assert (desk.slots.idle, desk.freed) == (1, 2)


def test_what_was_claimed_for_a_slot_that_has_closed_meanwhile_runs_all_the_same(desk: Desk) -> None:
    desk.slots.resize(1)
    works = [desk.give() for _ in range(3)]
    assert (desk.slots.used, desk.slots.idle) == (3, 0)
    desk.end(*works)
    eventually(lambda: desk.threads == 1, within=5)


def test_an_agent_takes_as_many_slots_as_it_weighs(desk: Desk) -> None:
    desk.slots.resize(8)
    heavy, light = desk.give(6), desk.give()
    assert (desk.slots.used, desk.slots.idle, len(desk.slots.working)) == (7, 1, 2)
    over = desk.give(6)
    assert (desk.slots.used, desk.slots.idle) == (13, 0), (
        "one that was parked here goes on, its memory is in use anyway"
    )
    desk.end(heavy, over)
    assert (desk.slots.used, desk.slots.idle) == (1, 7)
    desk.end(light)


def test_the_peak_is_that_since_it_was_asked_last(desk: Desk) -> None:
    desk.slots.resize(8)
    desk.end(desk.give(3), desk.give(2))
    assert desk.slots.peak() == 5
    assert desk.slots.peak() == 0
    work = desk.give()
    assert (desk.slots.peak(), desk.slots.peak()) == (1, 1)
    desk.end(work)
