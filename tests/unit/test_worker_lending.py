"""Slots that are lent by runs which wait for their children."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.core.policy.claim_order import Rules
from oah.errors import EpochMismatch, Unavailable
from oah.ports.broker import Claimed, ClaimReply, Target
from oah.ports.commands import CommandKind, WorkerCommand
from oah.ports.questions import Resumed
from oah.worker.claimer import Claimer
from oah.worker.lending import Lending
from oah.worker.shares import Shares
from oah.worker.slots import Slots
from oah.worker.table import Phase, Table
from oah.worker.waiting import Waiting
from oah.worker.work import Assignment
from tests.support.clock import StillClock
from tests.support.waiting import eventually
from tests.support.worker_doubles import WORKER, Scripted, context, fence, started

F = fence()
LANE = Lane("default", "noop")
LEASE = timedelta(seconds=30)


class Desk:
    """One slot, and a run in it whose turn ends when the test says so."""

    def __init__(self, **store: Any) -> None:
        self.table = Table(lease=timedelta(seconds=30), margin=timedelta(seconds=5))
        self.table.request(F.token)
        self.table.answered(F.token, [Claimed(F.session_id, F.token, False, ReadyClass.INTERACTIVE)], sent_at=0.0)
        run = started(F.session_id, F.token)
        self.entry = self.table.started(run, F.token, begun_at=0.0)
        assert self.entry.fence is not None
        self.fence = self.entry.fence
        self.assignment = Assignment(run, self.fence, ReadyClass.INTERACTIVE)
        self.over = threading.Event()
        self.store = Scripted(waits_for=[{}], with_live_children=[{self.fence.run_id}], check=[None], **store)
        self.broker = Scripted(ensure=[[]], free=[[]], claim=[self.claimed])
        self.context = context(self.store, self.broker, clock=StillClock())
        self.waiting = Waiting(self.context, self.table)
        self.crashes: list[BaseException] = []
        self.slots = Slots(1, execute=self.execute, freed=lambda: None, crashed=self.crashes.append)
        self.freed = 0
        errands: Any = SimpleNamespace(lend=None)
        self.lending = Lending(self.context, self.table, self.slots, self.waiting, errands, freed=self.count)
        self.claimer = Claimer(self.context, self.table, self.slots, wake=lambda: None, waiting=self.waiting)
        self.requests: list[Any] = []
        self.slots.start()
        self.slots.assign(self.assignment)

    def execute(self, assignment: Assignment) -> None:
        if assignment is self.assignment:
            self.over.wait(20)
        self.waiting.forget(assignment)

    def count(self) -> None:
        self.freed += 1

    def claimed(self, epoch: Any, request: Any) -> ClaimReply:
        self.requests.append(request)
        return ClaimReply((Claimed(F.session_id, F.token, True, ReadyClass.RESUME),), False, None, timedelta(0))

    def lend(self, attempt: int = 1) -> None:
        data = {"number": 4}
        self.lending.lend(WorkerCommand(1, WORKER, CommandKind.LEND, "agent", self.fence.run_id, attempt, data))

    def children_end(self) -> None:
        self.store.answers["waits_for"] = [{self.fence.run_id: SimpleNamespace(data={"children": True}, number=4)}]
        self.store.answers["with_live_children"] = [set()]


@pytest.fixture
def desk() -> Any:
    made = Desk(resume_answered=[[Resumed("", "children", 9)]])
    yield made
    made.over.set()
    eventually(lambda: made.slots.working == [], within=5, what="the turn is over")
    assert made.crashes == []


def test_a_lent_slot_takes_another_run_at_once(desk: Desk) -> None:
    assert desk.slots.idle == 0
    desk.lend()
    assert (desk.slots.idle, desk.slots.busy, desk.freed) == (1, 0, 1)
    assert desk.slots.working == [desk.assignment], "its turn goes on"
    assert desk.entry.phase is Phase.WAITING
    ((_, (_, [free]), _),) = desk.broker.calls
    assert (free.session_id, free.token, free.target) == (F.session_id, F.token, Target.PARKED)
    other = Assignment(started(fence(2).session_id, F.token), fence(2), ReadyClass.SUBAGENT)
    desk.slots.assign(other)
    eventually(lambda: desk.slots.working == [desk.assignment], within=5, what="the other one has run")
    assert desk.slots.idle == 1


def test_nothing_is_lent_twice_nor_for_another_attempt_nor_after_the_end(desk: Desk) -> None:
    desk.lend(attempt=2)
    assert desk.slots.idle == 0
    desk.lend()
    desk.lend()
    assert (desk.slots.idle, desk.freed) == (1, 1)
    desk.over.set()
    eventually(lambda: desk.slots.working == [], within=5, what="ended")
    assert (desk.slots.idle, desk.slots.used, len(desk.waiting)) == (1, 0, 0)
    desk.lend()
    assert desk.freed == 1


def test_the_broker_is_told_until_it_has_heard(desk: Desk) -> None:
    desk.broker.answers["free"] = [Unavailable("away"), EpochMismatch("flushed"), []]
    for raises in (desk.lend, desk.lending):
        with pytest.raises(Unavailable):
            raises()
    assert desk.slots.idle == 1, "the slot is free all the same"
    desk.lending()
    desk.lending()
    assert desk.broker.called("free") == 3


def test_it_is_called_when_its_children_have_ended_and_holds_a_slot_before_it_runs(desk: Desk) -> None:
    desk.lend()
    desk.lending()
    assert desk.broker.called("ensure") == 0
    desk.children_end()
    desk.lending()
    ((_, (_, [call]), _),) = [each for each in desk.broker.calls if each[0] == "ensure"]
    assert (call.session_id, call.ready_class) == (F.session_id, ReadyClass.RESUME)
    desk.claimer.hint()
    desk.claimer.step()
    assert desk.store.calls[-1][1] == (WORKER, [(desk.fence, 4)])
    assert (desk.slots.idle, desk.slots.busy, desk.entry.phase) == (0, 1, Phase.RUNNING)
    assert len(desk.waiting) == 0 and desk.assignment.lent is None


def test_one_that_may_not_go_on_yet_is_parked_again(desk: Desk) -> None:
    desk.store.answers["resume_answered"] = [[None]]
    desk.broker.answers["claim"] = [desk.claimed, ClaimReply((), False, None, timedelta(0))]
    desk.lend()
    desk.claimer.hint()
    desk.claimer.step()
    assert (desk.slots.idle, desk.entry.phase) == (1, Phase.RESUMING)
    desk.claimer.step()  # tells the broker
    assert desk.entry.phase is Phase.WAITING and desk.waiting.lent == 1


def test_beyond_the_limit_of_what_waits_only_children_start(desk: Desk) -> None:
    """Else parents that wait would fill the worker, and what they wait for could never begin."""
    desk.lend()
    object.__setattr__(desk.context.rules, "waiting", 0)
    assert desk.claimer.wanted() == 1
    desk.claimer.hint()
    desk.claimer.step()
    classes = {ready_class for _, ready_class in desk.requests[0].order}
    assert classes == {ReadyClass.RESUME, ReadyClass.SUBAGENT}


@pytest.mark.parametrize(("idle", "want", "all_classes"), [(4, 3, True), (2, 1, True), (1, 1, False)])
def test_the_reserve_goes_to_subagents_alone(idle: int, want: int, *, all_classes: bool) -> None:
    requests: list[Any] = []

    def claim(epoch: Any, request: Any) -> ClaimReply:
        requests.append(request)
        return ClaimReply((), False, None, timedelta(0))

    made = context(Scripted(check=[None]), Scripted(claim=[claim]), claim_rules=Rules(subagent_reserve=1))
    slots: Any = SimpleNamespace(idle=idle, size=4)
    claimer = Claimer(made, Table(lease=timedelta(seconds=30), margin=timedelta(seconds=5)), slots, wake=lambda: None)
    claimer.hint()
    claimer.step()
    [request] = requests
    classes = {ready_class for _, ready_class in request.order}
    assert request.want == want
    assert (ReadyClass.INTERACTIVE in classes) == all_classes and ReadyClass.SUBAGENT in classes


LIGHT, HEAVY = Lane("default", "light"), Lane("default", "heavy")


class Crowd:
    """Three runs wait, two more than may; of four idle slots, as many as a heavy agent takes, two are left."""

    answered = 0

    def __init__(self, *, lent: int) -> None:
        self.lent = lent
        self.requests: list[Any] = []
        made = context(Scripted(check=[None]), Scripted(claim=[self._claim]), lanes=(LIGHT, HEAVY))
        made = replace(made, rules=replace(made.rules, slots=4, waiting=1))
        self.shares = Shares((LIGHT, HEAVY), {"light": 1, "heavy": 4}.__getitem__, slots=4)
        slots, waiting, table = SimpleNamespace(idle=4, size=4), self, Table(lease=LEASE, margin=LEASE / 6)
        parts: Any = {"waiting": waiting, "shares": self.shares, "wake": lambda: None}
        self.claimer = Claimer(made, table, slots, **parts)  # type: ignore[arg-type]

    def _claim(self, epoch: Any, request: Any) -> ClaimReply:
        self.requests.append(request)
        return ClaimReply((), False, None, timedelta(0))

    def __len__(self) -> int:
        return 3


def test_children_too_heavy_for_what_those_who_wait_leave_begin_all_the_same() -> None:
    crowd = Crowd(lent=1)
    crowd.claimer.hint()
    while crowd.claimer.pending() is not None:
        crowd.claimer.step()
    looked = {request.order[0][0]: ({each for _, each in request.order}, request.want) for request in crowd.requests}
    assert looked[HEAVY] == ({ReadyClass.SUBAGENT, ReadyClass.RESUME}, 1)
    assert looked[LIGHT] == (set(ReadyClass), 2), "what is left is for everybody, and no more than that"


@pytest.mark.parametrize(("lent", "lanes"), [(0, (LIGHT,)), (1, (HEAVY,))])
def test_no_slots_are_saved_for_what_would_not_fit_into_them(lent: int, lanes: tuple[Lane, ...]) -> None:
    """Else nothing at all would start until people have answered. Children may have every slot."""
    crowd = Crowd(lent=lent)
    for now in (0.0, 10.0):
        crowd.shares.seen({HEAVY: 1}, now=now)
    assert crowd.shares.saved_for == (HEAVY,)
    assert crowd.claimer.lanes() == lanes
