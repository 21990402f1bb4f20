"""Runs that wait for an answer: called until they are claimed, never evicted, ended without a slot."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from oah.core.model.ids import WorkerId
from oah.core.model.question import Choice, DialogKind, Question
from oah.core.model.run import ReadyClass
from oah.core.policy import answers
from oah.errors import Conflict, EpochMismatch, Unavailable
from oah.ports.broker import Claimed, ClaimReply, Target
from oah.ports.questions import AskReply, Resumed
from oah.services.settle import SettleRuns
from oah.worker.asking import Asking
from oah.worker.claimer import Claimer
from oah.worker.control import Control
from oah.worker.table import Phase, Table
from oah.worker.waiting import Waiting, numbered
from oah.worker.work import Asks, Assignment, Waited
from tests.support.clock import StillClock
from tests.support.waiting import eventually
from tests.support.worker_doubles import Scripted, context, fence, refused, settled, started

QUESTION = Question(name="permission", kind=DialogKind.PERMISSION, text="may I?", choices=(Choice("1", "Yes"),))
F = fence()


class Asker:
    """An agent in the middle of its turn."""

    def __init__(self) -> None:
        self.lives = self.shown = True
        self.closed = 0

    def alive(self) -> bool:
        return self.lives

    def asks(self) -> bool:
        return self.shown

    def close(self, grace: timedelta) -> bool:
        self.closed += 1
        return True


class Desk:
    """One session whose run waits."""

    def __init__(self, *, steps: Any = None, **store: Any) -> None:
        self.clock = StillClock()
        self.table = Table(lease=timedelta(seconds=30), margin=timedelta(seconds=5))
        self.table.request(F.token)
        self.table.answered(F.token, [Claimed(F.session_id, F.token, False, ReadyClass.INTERACTIVE)], sent_at=0.0)
        run = started(F.session_id, F.token)
        self.entry = self.table.started(run, F.token, begun_at=0.0)
        assert self.entry.fence is not None
        self.fence = self.entry.fence
        self.agent = Asker()
        agent: Any = self.agent
        self.assignment = Assignment(run, self.fence, ReadyClass.INTERACTIVE)
        self.assignment.waited = Waited(agent, "fresh", QUESTION, "key")
        self.store = Scripted(waits_for=[steps or {}], check=[None], **store)
        self.broker = Scripted(ensure=[[]], free=[[]], claim=[self.claimed])
        self.context = context(self.store, self.broker, clock=self.clock)
        self.request: Any = None
        self.waiting = Waiting(self.context, self.table)
        self.finished: list[Assignment] = []
        self.hints = 0
        self.waiting.finish = self.finished.append
        self.waiting.called = self.hint
        self.assigned: list[Assignment] = []
        slots: Any = SimpleNamespace(idle=2, assign=self.assigned.append)
        self.claimer = Claimer(self.context, self.table, slots, wake=lambda: None, waiting=self.waiting)

    def hint(self) -> None:
        self.hints += 1

    def park(self) -> None:
        self.waiting.put(numbered(self.assignment, 1))
        assert self.table.waits(self.fence) is not None

    def claimed(self, epoch: Any, request: Any) -> ClaimReply:
        self.request = request
        return ClaimReply((Claimed(F.session_id, F.token, True, ReadyClass.RESUME),), False, None, timedelta(0))

    def answer(self) -> None:
        self.store.answers["waits_for"] = [{self.fence.run_id: SimpleNamespace(data={"answer": {}}, number=1)}]


def test_nothing_is_called_before_somebody_has_answered() -> None:
    desk = Desk()
    desk.park()
    desk.waiting()
    assert desk.broker.called("ensure") == 0 and desk.waiting.answered == 0
    desk.answer()
    desk.waiting()
    ((_, (_, [call]), _),) = desk.broker.calls
    assert (call.session_id, call.ready_class) == (F.session_id, ReadyClass.RESUME)
    assert (desk.hints, desk.waiting.answered) == (1, 1)


def test_it_is_called_again_until_it_is_claimed() -> None:
    desk = Desk()
    desk.park()
    desk.answer()
    desk.broker.answers["ensure"] = [EpochMismatch("flushed"), []]
    desk.waiting()
    assert desk.waiting.answered == 0, "another epoch: nobody was called"
    desk.waiting()
    desk.waiting()
    assert desk.broker.called("ensure") == 2, "not more often than once a second"
    desk.clock.seconds += 1.5
    desk.waiting()
    assert desk.broker.called("ensure") == 3
    desk.waiting.take(F.session_id)
    desk.waiting()
    assert desk.broker.called("ensure") == 3


@pytest.mark.parametrize("why", ["cancelled", "dead", "lost"])
def test_what_is_to_end_ends_in_a_thread_of_its_own_and_once(why: str) -> None:
    desk = Desk()
    desk.park()
    desk.entry.cancel_requested = why == "cancelled"
    desk.agent.lives = why != "dead"
    desk.assignment.lost = why == "lost"
    desk.waiting()
    desk.waiting()
    eventually(lambda: desk.finished == [desk.assignment], within=5, what="ended")
    eventually(lambda: len(desk.waiting) == 0, within=5, what="nobody waits")
    assert desk.waiting.take(F.session_id) is None


def test_a_question_that_has_left_the_screen_is_answered() -> None:
    desk = Desk(answer_question=[WorkerId("w.1")])
    desk.park()
    desk.agent.shown = False
    desk.waiting()
    assert desk.store.called("answer_question") == 0, "once may be the middle of a repaint"
    desk.agent.shown = True
    desk.waiting()
    desk.agent.shown = False
    desk.waiting()
    assert desk.store.called("answer_question") == 0
    desk.waiting()
    ((inside, number, text),) = [args for name, args, _ in desk.store.calls if name == "answer_question"]
    assert (inside.fence, inside.by, number, text) == (desk.fence, "terminal", 1, "")
    assert desk.broker.called("ensure") == 0
    desk.answer()
    desk.waiting()
    assert desk.broker.called("ensure") == 1, "it takes a slot like any other"


def test_whoever_answers_first_is_heard() -> None:
    desk = Desk(answer_question=[Conflict("answered", code="already_answered")])
    desk.park()
    desk.agent.shown = False
    desk.waiting()
    desk.waiting()
    desk.answer()
    desk.waiting()
    assert desk.broker.called("ensure") == 1 and desk.waiting.answered == 1
    calls = desk.store.called("answer_question")
    desk.waiting()
    desk.waiting()
    assert desk.store.called("answer_question") == calls, "it is called already"


def test_a_run_that_was_answered_at_the_terminal_goes_on_without_an_answer() -> None:
    desk = Desk(resume_answered=[[Resumed("", "terminal", 7)]])
    desk.park()
    desk.claimer.hint()
    desk.claimer.step()
    assert desk.assigned == [desk.assignment] and desk.assignment.answer is None
    assert desk.entry.phase is Phase.RUNNING


def test_a_run_that_waits_is_no_warm_agent_and_its_fence_stays() -> None:
    desk = Desk()
    desk.park()
    assert desk.entry.phase is Phase.WAITING and desk.entry.phase.parked
    assert not desk.table.unpark(F.session_id, F.token), "nobody ends it for want of room"
    assert desk.table.by_run(desk.fence) is desk.entry


def test_an_answered_run_goes_on_in_a_slot_with_its_agent() -> None:
    desk = Desk(resume_answered=[[Resumed("1", "ann", 7)]])
    desk.park()
    desk.claimer.hint()
    desk.claimer.step()
    assert desk.assigned == [desk.assignment] and desk.assignment.answer == "1"
    assert desk.entry.phase is Phase.RUNNING
    assert desk.store.calls[-1][1] == (WorkerId("w.1"), [(desk.fence, 1)])
    assert desk.broker.called("free") == 0, "and no start was asked for"


def test_one_that_was_called_for_another_run_is_parked_again() -> None:
    desk = Desk(resume_answered=[[None]])
    desk.park()
    desk.claimer.hint()
    desk.claimer.step()
    assert desk.assigned == [] and desk.entry.phase is Phase.RESUMING and desk.claimer.busy
    desk.claimer.stopped = True
    desk.claimer.step()
    (free,) = next(args[1] for name, args, _ in desk.broker.calls if name == "free")
    assert (free.target, free.ready_class) == (Target.PARKED, None)
    assert desk.entry.phase is Phase.WAITING and desk.waiting.question(F.session_id) == 1


def test_a_store_that_is_away_leaves_it_called() -> None:
    desk = Desk(resume_answered=[Unavailable("gone")])
    desk.park()
    desk.claimer.hint()
    desk.claimer.step()
    desk.claimer.stopped = True
    desk.claimer.step()
    (free,) = next(args[1] for name, args, _ in desk.broker.calls if name == "free")
    assert (free.target, free.ready_class) == (Target.PARKED, ReadyClass.RESUME)
    assert desk.waiting.question(F.session_id) == 1


@pytest.mark.parametrize("why", ["cordoned", "draining"])
def test_a_worker_that_takes_no_new_runs_claims_those_that_were_answered(why: str) -> None:
    desk = Desk(resume_answered=[[Resumed("1", "ann", 7)]])
    setattr(desk.claimer, why, True)
    desk.park()
    assert desk.claimer.room() == 0
    desk.answer()
    desk.waiting()
    assert desk.claimer.room() == 1 and desk.claimer.wanted() == 0
    desk.claimer.hint()
    desk.claimer.step()
    assert desk.request.resumes_only and desk.request.order == ()
    assert desk.assigned == [desk.assignment]


def test_beyond_their_limit_they_take_the_place_of_new_runs() -> None:
    desk = Desk()
    assert desk.claimer.wanted() == 2
    object.__setattr__(desk.context.rules, "waiting", 0)
    desk.park()
    assert desk.claimer.wanted() == 1


def service(desk: Desk) -> SettleRuns:
    part: Any = desk.context
    return SettleRuns(part.store, part.broker, part.epochs, part.telemetry)


def test_a_question_that_the_fence_refuses_ends_its_agent() -> None:
    desk = Desk(ask=[[AskReply(refused())]])
    ended: list[Any] = []
    asking = Asking(desk.context, desk.table, desk.waiting, service(desk))
    asks = Asks(desk.assignment, desk.assignment.waited)  # type: ignore[arg-type]
    assert asking.ask([asks], lambda fence, agent: ended.append(agent)) == []
    assert ended == [desk.agent] and len(desk.waiting) == 0


def test_a_question_that_is_written_down_parks_its_session() -> None:
    desk = Desk(ask=[[AskReply(settled(), 4)]])
    asking = Asking(desk.context, desk.table, desk.waiting, service(desk))
    asks = Asks(desk.assignment, desk.assignment.waited)  # type: ignore[arg-type]
    (ended,) = asking.ask([asks], lambda fence, agent: None)
    assert ended.parked and ended.waits and desk.waiting.question(F.session_id) == 4
    (asked,) = desk.store.calls[-1][1][0]
    assert (asked.fence, asked.key, asked.reason) == (desk.fence, "key", "permission: may I?")
    assert asked.timeout == timedelta(days=1) and desk.entry.phase is Phase.WAITING


def test_a_rule_answers_in_the_middle_of_the_turn_and_tells() -> None:
    desk = Desk()
    told: list[Any] = []
    settler: Any = SimpleNamespace(answered=told.append)
    rule = answers.Rule(answers.Action.ALLOW, "yes", kinds=(DialogKind.PERMISSION,))

    def control(policy: answers.Rules) -> Control:
        return Control(desk.entry, desk.assignment, settler, 100, lambda: 0.0, lambda: None, policy)

    assert control(answers.ASK_ALWAYS).answer(QUESTION) is None and told == []
    assert control(answers.Rules(profile=(rule,))).answer(QUESTION) == "1"
    assert (told[0].fence, told[0].rule, told[0].how) == (desk.fence, "yes", "allowed")
