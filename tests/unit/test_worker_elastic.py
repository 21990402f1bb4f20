"""The elastic pool of one worker: opens slots at once, closes those that are not used, stops under pressure."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.core.model.worker import WorkerReport, WorkerState
from oah.core.policy import claim_order, pressure
from oah.core.policy.pressure import Usage
from oah.errors import Unavailable
from oah.ports.dispatch import LaneDepth, QueueFigures
from oah.worker.elastic import Elastic
from tests.support.clock import StillClock
from tests.support.worker_doubles import Scripted, context, started

OWN, OTHER = Lane("default", "noop"), Lane("gpu", "noop")
CALM, SHORT = Usage(memory=0.5, load=1.0, disk=0.5), Usage(memory=0.95, load=1.0, disk=0.5)


class Desk:
    """A pool in which nothing runs by itself: ``used`` says how many slots are in use."""

    def __init__(self, *, least: int | None = 2, most: int = 8, weight: int = 1, reserve: int = 0) -> None:
        self.clock = StillClock()
        self.ready: dict[Lane, int] = {}
        self.usage = CALM
        self.broker = Scripted(figures=[self._figures])
        of = context(None, self.broker, clock=self.clock, machine=lambda: self.usage, slot_weight=lambda name: weight)
        rules = replace(of.rules, slots=most, slots_min=least, slot_idle=timedelta(seconds=60))
        thresholds = pressure.Rules(memory=0.9, hold=timedelta(seconds=10))
        order = claim_order.Rules(subagent_reserve=reserve)
        self.of = replace(of, rules=rules, pressure=thresholds, claim_rules=order)
        self.elastic = Elastic(self.of, execute=self._nothing, freed=lambda: None, crashed=self._nothing)
        self.told: list[Any] = []
        self.elastic.pressed = lambda *, under: self.told.append(under)
        self.elastic.opened = lambda: self.told.append("opened")
        self.slots = self.elastic.slots
        self._works: list[Any] = []

    def _figures(self) -> QueueFigures:
        depths = tuple(LaneDepth(lane, ReadyClass.INTERACTIVE, count) for lane, count in self.ready.items())
        return QueueFigures(depths, None, 0, 0, 0)

    def _nothing(self, *args: Any) -> None: ...

    def use(self, count: int) -> None:
        """So many runs work from now on."""
        while len(self._works) < count:
            work = SimpleNamespace(started=started("ses_1", "a" * 32))  # type: ignore[arg-type]
            self._works.append(work)
            self.slots.assign(work)  # type: ignore[arg-type]
        with self.slots._lock:
            del self._works[count:]
            self.slots._working[:] = self._works
            self.slots._used = len(self._works) * self.elastic.shares.heaviest

    def sizes(self, seconds: int, every: float = 1.0) -> list[int]:
        """After each pass of so long."""
        found = []
        for _ in range(round(seconds / every)):
            self.clock.seconds += every
            self.elastic()
            found.append(self.slots.size)
        return found


def test_it_begins_with_its_minimum_and_opens_what_is_needed_at_once() -> None:
    desk = Desk()
    assert (desk.slots.size, desk.sizes(3)) == (2, [2, 2, 2])
    assert desk.broker.called("figures") == 0, "while a slot is idle whatever is ready is claimed anyway"
    desk.use(2)
    desk.ready = {OWN: 3, OTHER: 50}
    assert (desk.sizes(1), desk.told) == ([5], ["opened"])
    desk.use(5)
    desk.ready = {OWN: 50}
    assert desk.sizes(2) == [8, 8]


def test_slots_close_when_they_have_not_been_used_for_a_while() -> None:
    desk = Desk()
    desk.use(2)
    desk.ready = {OWN: 4}
    desk.sizes(1)
    desk.use(6)
    desk.ready = {}
    desk.sizes(30)
    desk.use(3)
    sizes = desk.sizes(70)
    assert sizes[:57] == [6] * 57 and sizes[-5:] == [3] * 5, "used sixty seconds ago, they may be used again"
    assert sorted(set(sizes)) == [3, 6], "one step"
    desk.use(0)
    assert desk.sizes(70)[-1] == 2


def test_short_use_between_two_looks_counts() -> None:
    desk = Desk()
    desk.use(2)
    desk.ready = {OWN: 6}
    desk.sizes(1)
    for _ in range(100):
        desk.use(7)
        desk.use(1)
        desk.ready = {}
        assert desk.sizes(1)[0] >= 7


def test_load_that_goes_up_and_down_does_not_flap() -> None:
    desk = Desk()
    changes, before = 0, desk.slots.size
    for second in range(600):
        wanted = 7 if second % 40 < 10 else 1
        desk.use(min(wanted, desk.slots.size))
        desk.ready = {OWN: wanted - min(wanted, desk.slots.size)}
        size = desk.sizes(1)[0]
        changes, before = changes + (size != before), size
    assert changes <= 2


def test_pressure_stops_growth_and_claims_and_ends_clearly_below() -> None:
    desk = Desk()
    desk.use(2)
    desk.ready = {OWN: 6}
    desk.usage = SHORT
    assert (set(desk.sizes(30)), desk.told) == ({2}, [True])
    assert (desk.elastic.pressure.names, desk.elastic.short_of_memory) == (("memory",), True)
    desk.usage = replace(SHORT, memory=0.88)
    assert set(desk.sizes(30)) == {2}
    desk.usage = CALM
    assert (desk.sizes(1), desk.told) == ([8], [True, False, "opened"])
    assert not desk.elastic.short_of_memory


def test_no_slot_is_opened_for_a_worker_that_takes_nothing() -> None:
    desk = Desk()
    desk.use(2)
    desk.ready = {OWN: 6}
    desk.elastic.taking = lambda: False
    assert (desk.sizes(5), desk.broker.called("figures")) == ([2] * 5, 0)
    desk.elastic.taking = lambda: True
    assert desk.sizes(1) == [8]


def test_slots_are_opened_for_what_only_this_worker_can_go_on_with() -> None:
    """Sessions that are called here are no figure of the queue: their agents would wait beside closed slots, for as
    long as the runs take that have the open ones, or be ended."""
    desk = Desk()
    desk.use(2)
    desk.elastic.called = lambda: ["noop"] * 3
    assert desk.sizes(1) == [5]
    desk.use(5)
    desk.elastic.called, desk.elastic.resumes = list, lambda: ["noop"]
    assert desk.sizes(1) == [6]
    desk.use(2)
    desk.elastic.resumes = desk.elastic.called = list
    assert desk.sizes(70)[-1] == 2
    desk.use(1)
    asked: list[None] = []
    desk.elastic.called = lambda: asked.append(None) or []  # type: ignore[func-returns-value]
    desk.sizes(1)
    assert not asked, "a slot is idle: it is claimed anyway"
    desk.use(2)
    desk.sizes(2, every=0.01)
    assert 8 <= len(asked) <= 9, "however often it is woken"


def test_a_worker_that_takes_nothing_opens_slots_for_its_runs_that_may_go_on_alone() -> None:
    """A drain would otherwise end them at its deadline."""
    desk = Desk()
    desk.use(2)
    desk.ready, desk.elastic.taking = {OWN: 6}, lambda: False
    desk.elastic.called, desk.elastic.resumes = (lambda: ["noop"] * 3), (lambda: ["noop"])
    assert desk.sizes(3) == [3] * 3
    desk.usage = SHORT
    desk.elastic.resumes = lambda: ["noop"] * 2
    assert desk.sizes(3) == [3] * 3, "under pressure those that run end first"


def test_what_is_called_and_is_not_known_opens_nothing() -> None:
    desk = Desk()
    desk.use(2)

    def away() -> list[str]:
        raise Unavailable("away")

    desk.elastic.called, desk.elastic.resumes = away, (lambda: ["noop"])
    assert desk.sizes(1) == [3]


def test_under_pressure_idle_slots_still_close() -> None:
    desk = Desk()
    desk.use(2)
    desk.ready = {OWN: 6}
    desk.sizes(1)
    desk.use(0)
    desk.usage = SHORT
    assert desk.sizes(70)[-1] == 2


def test_without_the_broker_nothing_changes() -> None:
    desk = Desk()
    desk.use(2)
    desk.ready = {OWN: 4}
    desk.sizes(1)
    desk.use(6)
    desk.broker.answers["figures"] = [Unavailable("away")]
    assert set(desk.sizes(100)) == {6}
    desk.usage = SHORT
    desk.sizes(1)
    assert desk.elastic.pressure, "pressure is judged all the same"


@pytest.mark.parametrize("least", [None, 8, 20])
def test_a_fixed_pool_asks_nobody_and_keeps_its_slots(least: int | None) -> None:
    desk = Desk(least=least)
    desk.use(8)
    desk.ready = {OWN: 40}
    assert set(desk.sizes(10)) == {8}
    assert desk.broker.called("figures") == 0


def test_heavy_agents_open_as_many_slots_as_they_take() -> None:
    desk = Desk(weight=3)
    desk.ready = {OWN: 2}
    assert desk.sizes(1) == [6], "the two slots that are open fit none of them"
    desk.use(2)
    assert desk.slots.used == 6


def test_a_reserve_for_subagents_is_no_room_for_others() -> None:
    """Its one open slot is idle, and no run of a person may have it."""
    desk = Desk(least=1, reserve=1)
    desk.ready = {OWN: 2}
    assert desk.sizes(1) == [3]
    desk.use(2)
    desk.ready = {}
    assert set(desk.sizes(70)) == {3, 2}


def test_slots_stay_saved_while_the_broker_is_away() -> None:
    """What is not known is not gone: a heavy lane would begin to wait anew with every error."""
    desk = Desk(least=8)
    desk.elastic.shares._groups = {1: (OTHER,), 6: (OWN,)}
    desk.ready = {OWN: 1}
    desk.use(1)
    desk.sizes(8)
    assert desk.elastic.shares.saved_for == (OWN,)
    desk.broker.answers["figures"] = [Unavailable("away")]
    desk.sizes(2)
    assert desk.elastic.shares.saved_for == (OWN,)


def test_what_happened_can_be_seen() -> None:
    desk = Desk()
    desk.use(2)
    desk.ready = {OWN: 3}
    desk.usage = replace(CALM, disk=None)
    desk.sizes(1)
    view = desk.elastic.view()
    assert {key: view[key] for key in ("slots", "slots_min", "slots_max", "busy", "weight", "idle", "pressure")} == {
        "slots": 5,
        "slots_min": 2,
        "slots_max": 8,
        "busy": 2,
        "weight": 2,
        "idle": 3,
        "pressure": [],
    }
    assert view["usage"] == {"memory": 0.5, "load": 1.0, "disk": None}
    (change,) = view["recent"]
    assert (change["from"], change["to"], change["reason"], change["ready"]) == (2, 5, "startup", 3)


moments = st.tuples(st.integers(0, 10), st.integers(0, 30), st.booleans(), st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.lists(moments, min_size=1, max_size=40), st.integers(0, 20))
def test_whatever_happens_it_stays_in_its_bounds_and_settles(least: int, life: list[Any], constant: int) -> None:
    """Used (more than open after a resume), ready, memory short, broker away."""
    desk = Desk(least=least)
    for used, ready, short, away in life:
        before = desk.slots.size
        desk.use(used)
        desk.ready = {OWN: ready}
        desk.usage = SHORT if short else CALM
        desk.broker.answers["figures"] = [Unavailable("away")] if away else [desk._figures]
        (size,) = desk.sizes(1)
        assert least <= size <= 8
        assert size <= before or not desk.elastic.pressure, "nothing opens under pressure"
        assert size >= min(used, before), "nothing in use closes"
    desk.broker.answers["figures"] = [desk._figures]
    desk.usage = CALM
    sizes = []
    for _ in range(200):
        desk.use(min(constant, desk.slots.size))
        desk.ready = {OWN: constant - min(constant, desk.slots.size)}
        sizes += desk.sizes(1)
    assert sizes[-100:] == [min(max(constant, least), 8)] * 100, "under constant load it is right, and stays"


def test_an_older_worker_has_as_many_slots_as_it_says() -> None:
    of = Desk().of
    report = WorkerReport(
        of.worker_id, "w", "h", 1, "default", ("noop",), WorkerState.BUSY, 8, 3, 0, False, False, "0", of.clock.now()
    )
    assert (report.capacity, report.taken, report.free, report.room("noop")) == (8, 3, 5, 5)
    elastic = replace(report, slots_max=16, weight=6, weights={"noop": 4})
    assert (elastic.capacity, elastic.taken, elastic.free, elastic.room("noop"), elastic.room("other")) == (
        16,
        6,
        10,
        2,
        10,
    )
    for change in ({"cordoned": True}, {"draining": True}, {"pressure": ("load",)}, {"state": WorkerState.STOPPING}):
        gone = replace(elastic, **change)  # type: ignore[arg-type]
        assert (gone.takes, gone.free, gone.room("noop")) == (False, 0, 0)


def test_pools_that_look_at_the_same_queue_do_not_swing() -> None:
    """Each grows by what it sees ready, so together they may open more than is needed; nobody takes that back from the
    other. Six runs at a time, of four seconds each, at two workers that take turns."""
    desks = [Desk(least=2), Desk(least=2)]
    ends: list[list[int]] = [[], []]
    changes: list[list[int]] = [[], []]
    for second in range(400):
        ends = [[end for end in each if end > second] for each in ends]
        ready = 6 - sum(map(len, ends))
        for turn in (0, 1):
            at = (second + turn) % 2
            taken = min(ready, desks[at].slots.size - len(ends[at]))
            ends[at] += [second + 4] * taken
            ready -= taken
        for each, desk in enumerate(desks):
            desk.use(len(ends[each]))
            desk.ready = {OWN: ready}
            before = desk.slots.size
            if desk.sizes(1) != [before]:
                changes[each].append(second)
    assert all(len(each) <= 3 for each in changes), changes
    assert all(second < 100 for each in changes for second in each), changes
