"""Questions: a run waits without a slot, is answered once, and goes on under its fence."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from oah.adapters.sql import steps
from oah.core.model.ids import ClaimToken, RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.question import Choice, DialogKind, Question, question_from
from oah.core.model.run import RunStatus, StopReason
from oah.errors import Conflict, NotFound
from oah.ports.questions import TERMINAL, Asked, AskReply
from oah.ports.steps import Inside
from oah.ports.store import RecoveryAction, RunFence
from tests.support import eventually
from tests.support.store_clerk import Clerk, fence_of

HOUR = timedelta(hours=1)
W = WorkerId("w.1")
QUESTION = Question(
    name="permission",
    kind=DialogKind.PERMISSION,
    text="Do you want to run rm -rf /?",
    choices=(Choice("1", "Yes"), Choice("2", "No, tell it what to do")),
)


def asked(fence: RunFence, key: str = "k1", timeout: timedelta | None = HOUR) -> Asked:
    return Asked(fence, key, "permission: rm -rf /", QUESTION.document(), timeout)


def inside(run_id: str = "a", by: str = "ann") -> Inside:
    return Inside(RunId(run_id), by=by)


def ask(clerk: Clerk, session: str = "s1", run_id: str = "a") -> tuple[RunFence, AskReply]:
    clerk.submit(session, run_id)
    fence = fence_of(clerk.start(session))
    return fence, clerk.store.ask([asked(fence)])[0]


def test_a_question_parks_the_run_and_says_what_is_asked(clerk: Clerk) -> None:
    fence, reply = ask(clerk)
    assert reply.after.applied and reply.number == 1
    assert clerk.run("a").status is RunStatus.WAITING_TOOL
    assert clerk.owner().parked and clerk.owner().run_id == "a"
    event = clerk.store.events(SessionId("s1"), after=0, limit=9)[-1]
    assert (event.type, event.number) == ("run.waiting_tool", reply.after.event_number)
    assert event.data["question"]["number"] == 1 and event.data["question"]["deadline"]
    assert question_from(event.data["question"]) == QUESTION
    again = clerk.store.ask([asked(fence)])[0]
    assert (again.number, again.after.event_number) == (1, 0), "a repetition is found by its key"
    clerk.audit()


def test_a_run_that_asks_can_be_released_and_asks_again(clerk: Clerk) -> None:
    """Its worker was drained, and told to requeue: nothing is counted against it."""
    fence, _ = ask(clerk)
    [after] = clerk.store.release([fence])
    assert after.applied and after.waiting is not None
    run = clerk.run("a")
    assert (run.status, run.attempt, run.recovery_attempts) == (RunStatus.QUEUED, 1, 0)
    again = fence_of(clerk.start("s1"))
    assert again.attempt == 2
    [reply] = clerk.store.ask([asked(again, "k9")])
    assert reply.number > 1 and clerk.store.waits_for([fence.run_id])[fence.run_id].number == reply.number


def test_a_run_that_has_taken_all_its_steps_may_still_ask(clerk: Clerk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps.begin, "__kwdefaults__", {"most": 0})
    _, reply = ask(clerk)
    assert reply.after.applied and reply.number == 1


@pytest.mark.parametrize("wrong", ["token", "attempt", "over"])
def test_the_fence_refuses_what_is_no_longer_ours(clerk: Clerk, wrong: str) -> None:
    clerk.submit(run_id="a")
    fence = fence_of(clerk.start())
    if wrong == "over":
        clerk.settle(fence)
    elif wrong == "token":
        fence = replace(fence, token=ClaimToken("f" * 32))
    else:
        fence = replace(fence, attempt=2)
    before = clerk.run("a").status
    reply = clerk.store.ask([asked(fence)])[0]
    assert not reply.after.applied and reply.number == 0
    assert clerk.run("a").status is before
    clerk.audit()


def test_a_question_that_has_left_the_screen_is_withdrawn(clerk: Clerk) -> None:
    fence, _ = ask(clerk)
    assert clerk.store.answer_question(inside(by=TERMINAL), 1, "") == W
    with pytest.raises(Conflict, match="has left the program's screen") as caught:
        clerk.store.answer_question(inside(), 1, "1")
    assert caught.value.code == "already_answered"
    resumed = clerk.store.resume_answered(W, [(fence, 1)])[0]
    assert resumed is not None and (resumed.answer, resumed.by) == ("", TERMINAL)
    with pytest.raises(Conflict) as caught:
        clerk.store.answer_question(inside(), 1, "1")
    assert caught.value.code == "run_not_waiting"


def test_an_answer_is_given_once_and_the_run_goes_on_when_its_owner_says_so(clerk: Clerk) -> None:
    fence, _ = ask(clerk)
    assert clerk.store.resume_answered(W, [(fence, 1)]) == [None], "nobody has answered"
    assert clerk.store.answer_question(inside(), 1, "2") == W
    with pytest.raises(Conflict) as caught:
        clerk.store.answer_question(inside(by="bob"), 1, "1")
    assert caught.value.code == "already_answered"
    assert clerk.run("a").status is RunStatus.WAITING_TOOL, "it waits for a slot"
    step = clerk.store.waits_for([RunId("a")])[RunId("a")]
    assert step.deadline_at is None, "an answered question stands no longer than to its answer"
    resumed = clerk.store.resume_answered(W, [(fence, 1)])[0]
    assert resumed is not None and (resumed.answer, resumed.by) == ("2", "ann") and resumed.event_number
    assert clerk.run("a").status is RunStatus.RUNNING and not clerk.owner().parked
    event = clerk.store.events(SessionId("s1"), after=0, limit=9)[-1]
    assert (event.type, event.data) == ("run.resumed", {"by": "ann", "question": 1, "choice": "2"})
    repeated = clerk.store.resume_answered(W, [(fence, 1)])[0]
    assert repeated is not None and (repeated.answer, repeated.event_number) == ("2", 0)
    clerk.audit()
    clerk.settle(fence)
    clerk.audit()


def test_only_the_owner_lets_it_go_on(clerk: Clerk) -> None:
    fence, _ = ask(clerk)
    clerk.store.answer_question(inside(), 1, "1")
    assert clerk.store.resume_answered(WorkerId("w.2"), [(fence, 1)]) == [None]
    assert clerk.store.resume_answered(W, [(replace(fence, attempt=2), 1)]) == [None]
    assert clerk.run("a").status is RunStatus.WAITING_TOOL


def test_an_answer_is_for_one_question(clerk: Clerk) -> None:
    fence, _ = ask(clerk)
    clerk.store.answer_question(inside(), 1, "1")
    clerk.store.resume_answered(W, [(fence, 1)])
    with pytest.raises(Conflict) as caught:
        clerk.store.answer_question(inside(), 1, "1")
    assert caught.value.code == "run_not_waiting"
    assert clerk.store.ask([asked(fence, "k2")])[0].number == 2
    with pytest.raises(Conflict) as caught:
        clerk.store.answer_question(inside(), 1, "1")
    assert caught.value.code == "question_over"
    assert clerk.store.answer_question(inside(), 2, "words of its own") == W
    assert clerk.store.resume_answered(W, [(fence, 2)])[0] is not None
    assert "words" not in str(clerk.store.events(SessionId("s1"), after=0, limit=20)[-1].data)


def test_a_question_is_found_by_who_may_see_it(clerk: Clerk) -> None:
    ask(clerk)
    step = clerk.store.question_of(inside())
    assert step is not None and question_from(step.data["question"]) == QUESTION
    with pytest.raises(NotFound):
        clerk.store.question_of(Inside(RunId("a"), workspace_id=WorkspaceId("other")))
    with pytest.raises(NotFound):
        clerk.store.answer_question(Inside(RunId("none")), 1, "1")


def test_nothing_else_makes_it_go_on(clerk: Clerk) -> None:
    fence, _ = ask(clerk)
    for act in (
        lambda: clerk.store.resume_run(inside()),
        lambda: clerk.store.resume_run(Inside(RunId("a"), fence=fence)),
        lambda: clerk.store.ask_input(inside(), "hello", request_id=RunId("q")),
    ):
        with pytest.raises(Conflict) as caught:
            act()
        assert caught.value.code == "question_open"
    assert clerk.owner().parked
    clerk.audit()


def test_a_queued_run_stays_behind_one_that_waits(clerk: Clerk) -> None:
    ask(clerk)
    clerk.submit(run_id="b")
    assert not hasattr(clerk.try_start(clerk.claim())[0], "run"), "the session is active"
    assert clerk.run("b").status is RunStatus.QUEUED


def test_a_question_that_nobody_answers_stops_the_run(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    fence = fence_of(clerk.start())
    clerk.store.ask([asked(fence, timeout=timedelta(milliseconds=1))])
    eventually(lambda: [each.reason for each in clerk.store.stop_overdue(limit=9)] == [StopReason.WAIT_TIMEOUT])
    assert clerk.run("a").stop_reason is StopReason.WAIT_TIMEOUT
    clerk.settle(fence, RunStatus.TIMED_OUT)
    clerk.audit()


@pytest.mark.parametrize("end", [RunStatus.CANCELLED, RunStatus.TIMED_OUT, RunStatus.FAILED])
def test_a_run_may_end_while_it_waits(clerk: Clerk, end: RunStatus) -> None:
    fence, _ = ask(clerk)
    assert clerk.settle(fence, end).applied
    assert clerk.store.resume_answered(W, [(fence, 1)]) == [None]
    with pytest.raises(Conflict):
        clerk.store.answer_question(inside(), 1, "1")
    clerk.audit()


@pytest.mark.parametrize("action", [RecoveryAction.REQUEUE, RecoveryAction.QUARANTINE])
def test_recovery_takes_a_run_that_waits(clerk: Clerk, action: RecoveryAction) -> None:
    fence, _ = ask(clerk)
    assert clerk.recover(clerk.owner(), action).applied
    assert clerk.store.resume_answered(W, [(fence, 1)]) == [None], "its answer comes too late"
    clerk.audit()


def test_one_members_refusal_leaves_the_others(clerk: Clerk) -> None:
    clerk.session("s2")
    clerk.submit("s1", "a")
    clerk.submit("s2", "b")
    one, two = fence_of(clerk.start("s1")), fence_of(clerk.start("s2"))
    clerk.settle(one)
    replies = clerk.store.ask([asked(one), asked(two)])
    assert [reply.after.applied for reply in replies] == [False, True]
    assert clerk.store.ask([]) == [] and clerk.store.resume_answered(W, []) == []
    clerk.audit()


def test_what_a_policy_answers_is_told_behind_the_fence(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    fence = fence_of(clerk.start())
    number = clerk.store.note_answer(fence, {"by": "policy", "rule": "ls", "choice": "1"})
    event = clerk.store.events(SessionId("s1"), after=0, limit=9)[-1]
    assert (event.number, event.type, event.data["rule"]) == (number, "run.answered", "ls")
    clerk.settle(fence)
    assert clerk.store.note_answer(fence, {}) == 0
