"""What ends by time alone: queued runs, steps. And what a run says of itself, behind the fence of its attempt."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oah.core.model.ids import ClaimToken, RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.run import RunStatus, StopReason
from oah.core.model.session import SessionState
from oah.core.model.timeout import TimeoutReason
from oah.errors import Conflict, LimitReached, NotFound
from oah.ports import steps
from oah.ports.commands import Delivery
from oah.ports.steps import Inside, NewStep, StepKind, StepOutcome
from tests.support import eventually
from tests.support.store_clerk import Clerk, fence_of

SHORT, HOUR = timedelta(milliseconds=1), timedelta(hours=1)
S1 = SessionId("s1")


def past() -> datetime:
    return datetime.now(UTC) - HOUR


def expired(clerk: Clerk, limit: int = 100) -> dict[str, str]:
    return {each.run.id: each.reason.value for each in clerk.store.expire_queued(limit=limit)}


def test_queued_runs_end_by_their_start_time_out_and_their_deadline(clerk: Clerk) -> None:
    clerk.submit(run_id="waits", start_timeout=HOUR, deadline_at=datetime.now(UTC) + HOUR)
    clerk.submit(run_id="late", start_timeout=SHORT)
    clerk.submit(run_id="over", deadline_at=past())
    clerk.submit(run_id="both", start_timeout=SHORT, deadline_at=past())
    clerk.submit(run_id="delayed", start_timeout=SHORT, delay=HOUR)
    clerk.submit(run_id="delayed-over", delay=HOUR, deadline_at=past())
    found: dict[str, str] = {}
    eventually(lambda: found.update(expired(clerk)) or len(found) >= 4)
    assert found == {
        "late": "start_timeout",
        "over": "deadline_exceeded",
        "both": "deadline_exceeded",
        "delayed-over": "deadline_exceeded",
    }
    late = clerk.run("late")
    assert (late.status, late.error) == (RunStatus.TIMED_OUT, TimeoutReason.START.error)
    event = clerk.store.events(S1, after=0, limit=100, run_id=RunId("late"))[-1]
    assert (event.type, event.data["error"]["code"]) == ("run.timed_out", "start_timeout")
    assert expired(clerk) == {}
    assert clerk.start().run.id == "waits", "the session goes on"
    clerk.audit()


def test_a_batch_is_bounded_and_says_what_the_session_looks_like_afterwards(clerk: Clerk) -> None:
    for number in range(5):
        clerk.submit(run_id=f"r{number}", deadline_at=past())
    first = clerk.store.expire_queued(limit=2)
    assert len(first) == 2
    assert first[-1].after.waiting is not None
    rest = [*clerk.store.expire_queued(limit=2), *clerk.store.expire_queued(limit=2)]
    assert len(rest) == 3
    assert rest[-1].after.waiting is None
    clerk.audit()


def test_the_start_time_out_is_for_the_first_start_only(clerk: Clerk) -> None:
    clerk.submit(run_id="a", start_timeout=timedelta(seconds=0.3))
    clerk.store.release([fence_of(clerk.start())])

    def walked() -> bool:
        assert expired(clerk) == {}
        return clerk.run("a").start_by is None

    eventually(walked, what="the pass has seen that it had begun before")
    assert clerk.run("a").status is RunStatus.QUEUED


def test_a_deadline_holds_for_every_start(clerk: Clerk) -> None:
    clerk.submit(run_id="a", deadline_at=datetime.now(UTC) + timedelta(seconds=0.4))
    clerk.store.release([fence_of(clerk.start())])
    eventually(lambda: expired(clerk) == {"a": "deadline_exceeded"})


def test_an_active_run_is_not_the_passes_business(clerk: Clerk) -> None:
    clerk.submit(run_id="a", deadline_at=past(), start_timeout=SHORT)
    clerk.start()
    assert expired(clerk) == {}


def test_the_last_run_of_a_closing_session_closes_it(clerk: Clerk) -> None:
    clerk.submit(run_id="a", deadline_at=past())
    clerk.store.close_session(S1, None)
    assert expired(clerk) == {"a": "deadline_exceeded"}
    assert clerk.store.session(S1, None).state is SessionState.CLOSED


# --- inside a run ----------------------------------------------------------------------------------------------------


@pytest.fixture
def inside(clerk: Clerk) -> Inside:
    """The agent of an attempt that is under way."""
    clerk.submit(run_id="a", step_timeout=HOUR)
    return Inside(RunId("a"), fence=fence_of(clerk.start()), by="agent")


def acts(clerk: Clerk, inside: Inside) -> dict[str, Any]:
    """Everything that a run may say of itself."""
    store = clerk.store
    return {
        "begin": lambda: store.begin_step(inside, NewStep(StepKind.TOOL, "bash")),
        "end": lambda: store.end_step(inside, 1, StepOutcome.COMPLETED, {}),
        "progress": lambda: store.note_progress(inside, {"percent": 5}),
        "wait": lambda: store.wait_run(inside, "a person", timeout=None),
        "resume": lambda: store.resume_run(inside),
    }


ALL = ("begin", "end", "progress", "wait", "resume")


def test_a_step_begins_and_ends_once(clerk: Clerk, inside: Inside) -> None:
    step = clerk.store.begin_step(inside, NewStep(StepKind.TOOL, "bash", data={"command": "make"}))
    assert (step.number, step.attempt, step.kind, step.name, step.ended_at) == (1, 1, "tool", "bash", None)
    assert step.deadline_at is not None and step.deadline_at - step.at >= HOUR - timedelta(seconds=1)
    ended = clerk.store.end_step(inside, 1, StepOutcome.FAILED, {"exit_code": 2})
    assert (ended.outcome, ended.data) == ("failed", {"command": "make", "exit_code": 2})
    assert clerk.store.end_step(inside, 1, StepOutcome.COMPLETED, {"exit_code": 0}) == ended, "the first end stays"
    assert clerk.store.steps(RunId("a")) == [ended]
    own = clerk.store.begin_step(inside, NewStep(StepKind.MODEL, "call", timeout=timedelta(seconds=5)))
    assert own.deadline_at is not None and own.deadline_at - own.at <= timedelta(seconds=5.5)
    with pytest.raises(NotFound):
        clerk.store.end_step(inside, 3, StepOutcome.COMPLETED, {})


@pytest.mark.parametrize("act", ALL)
@pytest.mark.parametrize("end", ["settle", "release", "recover"])
def test_nothing_passes_once_the_attempt_is_over(clerk: Clerk, inside: Inside, act: str, end: str) -> None:
    assert inside.fence is not None
    clerk.store.begin_step(inside, NewStep(StepKind.TOOL, "bash"))
    assert clerk.store.active_fences([RunId("a"), RunId("none")]) == {RunId("a"): inside.fence}
    if end == "settle":
        clerk.settle(inside.fence)
    elif end == "release":
        clerk.store.release([inside.fence])
    else:
        clerk.recover(clerk.owner())
    assert clerk.store.active_fence(RunId("a")) is None
    assert clerk.store.active_fences([RunId("a"), RunId("none")]) == clerk.store.active_fences([]) == {}
    before = clerk.events(), clerk.store.steps(RunId("a"))
    with pytest.raises(Conflict) as over:
        acts(clerk, inside)[act]()
    assert over.value.code == "run_not_active"
    if end != "settle":
        again = clerk.start(worker="w.2")
        assert clerk.store.active_fence(RunId("a")) == fence_of(again) != inside.fence
        with pytest.raises(Conflict) as late:
            acts(clerk, inside)[act]()
        assert late.value.code == "attempt_over"
        before = ([*before[0], "run.started"], before[1])
    assert (clerk.events(), clerk.store.steps(RunId("a"))) == before
    clerk.audit()


@pytest.mark.parametrize("act", ALL)
def test_nobody_speaks_for_a_run_that_is_not_theirs(clerk: Clerk, inside: Inside, act: str) -> None:
    clerk.store.begin_step(inside, NewStep(StepKind.TOOL, "bash"))
    assert inside.fence is not None
    for fence in (replace(inside.fence, token=ClaimToken("other")), replace(inside.fence, attempt=2)):
        with pytest.raises(Conflict):
            acts(clerk, replace(inside, fence=fence))[act]()
    with pytest.raises(NotFound):
        acts(clerk, Inside(RunId("a"), WorkspaceId("other")))[act]()
    with pytest.raises(NotFound):
        acts(clerk, Inside(RunId("nonesuch")))[act]()
    acts(clerk, Inside(RunId("a")))[act]()


def test_a_run_waits_and_goes_on(clerk: Clerk, inside: Inside) -> None:
    waiting = clerk.store.wait_run(inside, "approval", timeout=None)
    assert (waiting.run.status, clerk.run("a").status) == (RunStatus.WAITING_TOOL, RunStatus.WAITING_TOOL)
    assert clerk.store.wait_run(inside, "again", timeout=None).event_number == 0
    (step,) = clerk.store.steps(RunId("a"))
    assert (step.kind, step.name, step.ended_at, step.deadline_at) == ("wait", "approval", None, None)
    clerk.audit()
    going = clerk.store.resume_run(replace(inside, by="key:1"))
    assert going.run.status is RunStatus.RUNNING
    assert clerk.store.resume_run(inside).event_number == 0
    assert clerk.store.steps(RunId("a"))[0].outcome == "completed"
    assert clerk.events()[-2:] == ["run.waiting_tool", "run.resumed"]
    assert inside.fence is not None and clerk.settle(inside.fence).applied
    clerk.audit()


def test_an_input_that_came_second_does_not_undo_the_first(clerk: Clerk, inside: Inside) -> None:
    clerk.store.wait_run(inside, "approval", timeout=None)
    asked = replace(inside, fence=None, by="key:1")
    for request in ("first", "second"):
        clerk.store.ask_input(asked, request, request_id=RunId(request))
    first, second = clerk.store.take_commands(WorkerId("w.1"))
    assert clerk.store.resume_run(inside).event_number
    assert clerk.store.resume_run(inside).event_number == 0, "the first one's answer is what it waited for"
    clerk.store.input_given(inside, first.id, Delivery.DELIVERED, resumed=True)
    told = clerk.store.input_given(inside, second.id, Delivery.MISSED, resumed=False)
    assert (told.run.status, told.event_number) == (RunStatus.RUNNING, 0)
    assert clerk.store.steps(RunId("a"))[0].outcome == "completed"
    answers = [clerk.store.spoken(RunId(request)) for request in ("first", "second")]
    assert [each and each.answer for each in answers] == [Delivery.DELIVERED, Delivery.MISSED]
    clerk.audit()


@pytest.mark.parametrize("how", ["settle", "cancel", "release", "recover"])
def test_a_waiting_run_ends_like_any_other(clerk: Clerk, inside: Inside, how: str) -> None:
    assert inside.fence is not None
    clerk.store.wait_run(inside, "approval", timeout=None)
    if how == "cancel":
        clerk.store.cancel(RunId("a"), None, by="somebody")
        (stop,) = clerk.store.mark(WorkerId("w.1"), [(S1, inside.fence.token)], timeout=timedelta(5)).stops
        assert (stop.fence, stop.reason, stop.by) == (inside.fence, StopReason.CANCEL, "somebody")
        assert clerk.settle(inside.fence, RunStatus.CANCELLED).applied
    elif how == "recover":
        assert clerk.recover(clerk.owner()).applied
    elif how == "release":
        assert clerk.store.release([inside.fence])[0].applied
    else:
        assert clerk.settle(inside.fence).applied
    assert clerk.run("a").status is not RunStatus.WAITING_TOOL
    clerk.audit()


def test_progress_is_a_sign_of_life_and_seldom_an_event(clerk: Clerk, inside: Inside) -> None:
    assert inside.fence is not None
    view = [(S1, inside.fence.token)]
    assert clerk.store.mark(WorkerId("w.1"), view, timeout=timedelta(5)).heard == {}
    assert clerk.store.note_progress(inside, {"text": "half"}).event_number > 0
    said = [clerk.store.note_progress(inside, {"text": str(n)}).event_number for n in range(3)]
    assert 0 in said, "too soon after the last"
    eventually(lambda: clerk.store.note_progress(inside, {"percent": 50}).event_number)
    heard = clerk.store.mark(WorkerId("w.1"), view, timeout=timedelta(5)).heard
    assert timedelta(0) <= heard[S1] < timedelta(seconds=20)
    clerk.store.wait_run(inside, "x", timeout=None)
    assert clerk.store.mark(WorkerId("w.1"), view, timeout=timedelta(5)).heard == {S1: timedelta(0)}
    assert clerk.store.mark(WorkerId("w.1"), view, timeout=timedelta(5)).stops == ()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (StepKind.TOOL, StopReason.STEP_TIMEOUT),
        (StepKind.STEP, StopReason.STEP_TIMEOUT),
        (StepKind.MODEL, StopReason.MODEL_TIMEOUT),
        (StepKind.WAIT, StopReason.WAIT_TIMEOUT),
    ],
)
def test_a_step_past_its_limit_stops_its_run(clerk: Clerk, inside: Inside, kind: StepKind, reason: StopReason) -> None:
    assert inside.fence is not None
    clerk.store.begin_step(inside, NewStep(kind, "slow", timeout=SHORT))
    clerk.store.begin_step(inside, NewStep(kind, "fast", timeout=HOUR))
    found: list[steps.Overdue] = []
    eventually(lambda: found.extend(clerk.store.stop_overdue(limit=10)) or found)
    (overdue,) = found
    assert (overdue.run_id, overdue.step, overdue.reason, overdue.owner) == ("a", 1, reason, "w.1")
    assert clerk.store.stop_overdue(limit=10) == []
    assert [step.outcome for step in clerk.store.steps(RunId("a"))] == ["timed_out", None]
    (stop,) = clerk.store.mark(WorkerId("w.1"), [(S1, inside.fence.token)], timeout=timedelta(5)).stops
    assert (stop.fence, stop.reason) == (inside.fence, reason)
    assert clerk.run("a").stop_reason is reason
    clerk.audit()


def test_a_run_that_a_limit_has_stopped_goes_again_when_it_is_released(clerk: Clerk, inside: Inside) -> None:
    """The limit was the attempt's; a cancel that somebody asked for is the run's."""
    assert inside.fence is not None
    clerk.store.begin_step(inside, NewStep(StepKind.TOOL, "slow", timeout=SHORT))
    eventually(lambda: clerk.store.stop_overdue(limit=10))
    assert clerk.store.release([inside.fence])[0].status is RunStatus.QUEUED
    run = clerk.run("a")
    assert (run.cancel_requested_at, run.cancel_requested_by, run.stop_reason) == (None, None, None)
    again = fence_of(clerk.start())
    assert clerk.store.mark(WorkerId("w.1"), [(S1, again.token)], timeout=timedelta(5)).stops == ()
    clerk.store.cancel(RunId("a"), None, by="somebody")
    assert clerk.store.release([again])[0].status is RunStatus.CANCELLED
    assert clerk.run("a").stop_reason is StopReason.CANCEL
    clerk.audit()


def test_a_wait_may_have_a_limit_too(clerk: Clerk, inside: Inside) -> None:
    clerk.store.wait_run(inside, "approval", timeout=SHORT)
    (stopped,) = eventually(lambda: clerk.store.stop_overdue(limit=10))
    assert stopped.reason is StopReason.WAIT_TIMEOUT


def test_a_step_of_an_attempt_that_is_over_stops_nobody(clerk: Clerk, inside: Inside) -> None:
    assert inside.fence is not None
    clerk.store.begin_step(inside, NewStep(StepKind.TOOL, "slow", timeout=SHORT))
    clerk.store.release([inside.fence])
    clerk.start(worker="w.2")

    def closed() -> bool:
        assert clerk.store.stop_overdue(limit=10) == []
        return clerk.store.steps(RunId("a"))[0].outcome == "abandoned"

    eventually(closed)
    assert clerk.run("a").cancel_requested_at is None


def test_a_cancel_that_came_first_stays_the_reason(clerk: Clerk, inside: Inside) -> None:
    clerk.store.begin_step(inside, NewStep(StepKind.TOOL, "slow", timeout=SHORT))
    clerk.store.cancel(RunId("a"), None, by="somebody")
    eventually(lambda: clerk.store.stop_overdue(limit=10) == [] and clerk.store.steps(RunId("a"))[0].outcome)
    assert (clerk.run("a").stop_reason, clerk.run("a").cancel_requested_by) == (StopReason.CANCEL, "somebody")


def test_the_steps_of_a_run_are_bounded(clerk: Clerk, inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oah.adapters.sql.steps.MOST_STEPS", 2)
    for _ in range(2):
        clerk.store.begin_step(inside, NewStep(StepKind.TOOL, "x"))
    with pytest.raises(LimitReached):
        clerk.store.begin_step(inside, NewStep(StepKind.TOOL, "x"))


def test_a_notice_needs_no_fence(clerk: Clerk, inside: Inside) -> None:
    assert inside.fence is not None
    clerk.settle(inside.fence)
    number = clerk.store.notice(S1, RunId("a"), 1, {"hook": "h", "reason": "timeout"})
    event = clerk.store.events(S1, after=number - 1, limit=1)[0]
    assert (event.type, event.run_id, event.data["hook"]) == ("hook.notice", "a", "h")
    assert clerk.store.notice(SessionId("gone"), RunId("a"), 1, {}) == 0
    clerk.audit()
