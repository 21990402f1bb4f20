"""A settle that is a retry: end of the attempt and place in the queue in one transaction, behind the fence."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oah.core.model.ids import ClaimToken, RunId, SessionId, WorkerId
from oah.core.model.run import (
    OrderMode,
    Outcome,
    ReadyClass,
    RunClass,
    RunError,
    RunStatus,
    StartReason,
    StopReason,
)
from oah.core.model.session import HoldReason, SessionState
from oah.ports.store import AfterRun, IsHeld, RetryPlan, RunFence, Settlement, Started
from tests.support.store_clerk import EPOCH, Clerk, fence_of, started

S1 = SessionId("s1")
MINUTE = timedelta(minutes=1)
PLAN = RetryPlan(MINUTE, max_retries=3)


def failed(
    fence: RunFence,
    plan: RetryPlan | None = PLAN,
    *,
    status: RunStatus = RunStatus.FAILED,
    code: str = "exit_nonzero",
    **more: Any,
) -> Settlement:
    outcome = Outcome(status, "said", exit_code=3, error=RunError(code, "exit status 3"), recording_blob="rec")
    return Settlement(fence, outcome, retry=plan, **more)


def fail(clerk: Clerk, start: Started, plan: RetryPlan | None = PLAN, **more: Any) -> AfterRun:
    return clerk.store.settle([failed(fence_of(start), plan, **more)])[0]


def pass_time(clerk: Clerk) -> None:
    """The broker says that the hold is over; SQL's clock agrees."""
    clerk.store.hold_session(S1, None, HoldReason.BACKOFF, until_in=timedelta(0))
    clerk.store.promote([], [S1], EPOCH)


def test_b22_strict_the_session_waits_for_its_retry(clerk: Clerk) -> None:
    for run_id in ("a", "b", "c"):
        clerk.submit(run_id=run_id)
    after = fail(clerk, clerk.start())
    assert (after.applied, after.status, after.held) == (True, RunStatus.QUEUED, (HoldReason.BACKOFF,))
    assert after.until_in is not None and timedelta(seconds=55) < after.until_in <= MINUTE
    assert after.due is None
    held = clerk.try_start(clerk.claim())[0]
    assert isinstance(held, IsHeld) and held.until_in is not None and held.until_in <= MINUTE
    pass_time(clerk)
    order = []
    for _ in range(3):
        start = clerk.start()
        order.append((start.run.id, start.run.attempt, start.reason))
        clerk.settle(start)
    assert order == [("a", 2, StartReason.RETRIED), ("b", 1, StartReason.FIRST), ("c", 1, StartReason.FIRST)]
    clerk.audit()


def test_b22_skip_failed_the_others_go_on(clerk: Clerk) -> None:
    clerk.submit(run_id="a", order_mode=OrderMode.SKIP_FAILED, run_class=RunClass.BACKGROUND)
    clerk.submit(run_id="b")
    after = fail(clerk, clerk.start())
    assert (after.held, after.waiting) == ((), ReadyClass.INTERACTIVE)
    assert after.due is not None
    assert (after.due.run_id, after.due.hear_session, after.due.ready_class) == ("a", S1, ReadyClass.BACKGROUND)
    assert timedelta(seconds=55) < after.due.due_in <= MINUTE
    assert [run.run_id for run in clerk.store.deferred(after=None, limit=9)] == ["a"]
    assert [each.run.id for each in clerk.store.unheard(EPOCH, older_than=timedelta(0), limit=9)] == ["a", "b"]
    clerk.submit(run_id="c")
    order = [clerk.start()]
    clerk.settle(order[0])
    clerk.store.promote([RunId("a")], [], EPOCH)
    for _ in range(2):
        order.append(clerk.start())
        clerk.settle(order[-1])
    assert [start.run.id for start in order] == ["b", "c", "a"], (
        "a new place, behind whatever was there when it was due"
    )
    clerk.audit()


def test_what_is_kept_of_the_attempt(clerk: Clerk) -> None:
    clerk.submit(run_id="a", start_timeout=timedelta(hours=1))
    after = fail(clerk, clerk.start())
    run = clerk.run("a")
    assert (run.status, run.failed_attempts, run.recovery_attempts, run.attempt) == (RunStatus.QUEUED, 1, 0, 1)
    assert (run.worker_id, run.claim_token, run.started_at, run.ended_at) == (None, None, None, None)
    assert (run.error, run.exit_code) == (RunError("exit_nonzero", "exit status 3"), 3)
    assert (run.max_retries, run.position, run.start_by) == (3, 1, None)
    assert run.due_at is not None and timedelta(seconds=50) < run.due_at - datetime.now(UTC) < 2 * MINUTE
    (attempt,) = clerk.store.attempts(RunId("a"))
    assert (attempt.outcome, attempt.recording_blob) == ("failed", "rec") and attempt.ended_at is not None
    assert clerk.store.owners_of([S1]) == []
    events = clerk.store.events(S1, after=2, limit=9)
    assert [event.type for event in events] == ["run.retrying", "run.queued"]
    assert after.event_number == events[-1].number
    assert events[0].data == {
        "error": {"code": "exit_nonzero", "message": "exit status 3"},
        "exit_code": 3,
        "failed_attempts": 1,
        "max_retries": 3,
        "delay_seconds": 60.0,
        "order": "strict",
    }
    assert events[1].data == {"position": 1, "retried": True}
    assert clerk.store.session(S1, None).holds.keys() == {HoldReason.BACKOFF}
    clerk.audit()


def test_a_completed_retry_leaves_no_error(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    fail(clerk, clerk.start())
    pass_time(clerk)
    clerk.settle(clerk.start())
    run = clerk.run("a")
    assert (run.status, run.error, run.exit_code, run.failed_attempts) == (RunStatus.COMPLETED, None, None, 1)


@pytest.mark.parametrize("order", OrderMode)
def test_never_more_attempts_than_the_rules_allow(clerk: Clerk, order: OrderMode) -> None:
    """Whatever a worker asks for: SQL counts."""
    clerk.submit(run_id="a", order_mode=order)
    statuses = []
    for _ in range(4):
        statuses.append(fail(clerk, clerk.start(), RetryPlan(MINUTE, max_retries=3)).status)
        pass_time(clerk)
        clerk.store.promote([RunId("a")], [], EPOCH)
    assert statuses == [RunStatus.QUEUED] * 3 + [RunStatus.FAILED]
    assert clerk.run("a").failed_attempts == 4
    assert clerk.events()[-1] == "run.failed"
    clerk.audit()


def test_a_warm_agent_keeps_its_session_across_the_backoff(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    start = clerk.start()
    after = fail(clerk, start, keep_owner=True)
    assert after.held == (HoldReason.BACKOFF,)
    owner = clerk.owner()
    assert (owner.parked, owner.token, owner.run_id) == (True, fence_of(start).token, None)
    assert isinstance(clerk.try_start(clerk.claim("s1", owner.token))[0], IsHeld)
    pass_time(clerk)
    again = started(clerk.try_start(clerk.claim("s1", owner.token))[0])
    assert (again.run.id, again.run.attempt) == ("a", 2)
    clerk.settle(again)
    clerk.audit()


@pytest.mark.parametrize("wrong", [{"attempt": 2}, {"token": ClaimToken("other")}, {"run_id": RunId("b")}])
def test_the_fence_refuses_a_retry_as_it_refuses_an_end(clerk: Clerk, wrong: dict[str, Any]) -> None:
    clerk.submit(run_id="a")
    clerk.submit(run_id="b")
    fence = replace(fence_of(clerk.start()), **wrong)
    before = clerk.behind.query("SELECT * FROM runs ORDER BY id")
    assert not clerk.store.settle([failed(fence)])[0].applied
    assert clerk.behind.query("SELECT * FROM runs ORDER BY id") == before
    clerk.audit()


def test_a_retry_is_written_once(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    settlement = failed(fence_of(clerk.start()))
    assert clerk.store.settle([settlement])[0].applied
    assert not clerk.store.settle([settlement])[0].applied
    assert clerk.run("a").failed_attempts == 1
    assert clerk.events().count("run.retrying") == 1


@pytest.mark.parametrize("order", OrderMode)
def test_in_doubt_the_attempt_says_what_happened(clerk: Clerk, order: OrderMode) -> None:
    clerk.submit(run_id="a", order_mode=order)
    settlement = failed(fence_of(clerk.start()))
    before = clerk.store.settle_outcome([settlement])[0]
    assert (before.applied, before.status) == (False, RunStatus.RUNNING)
    told = clerk.store.settle([settlement])[0]
    found = clerk.store.settle_outcome([settlement])[0]
    assert (found.applied, found.status, found.held) == (True, RunStatus.QUEUED, told.held)
    assert (found.due is None) is (order is OrderMode.STRICT)
    clerk.store.cancel(RunId("a"), None, by="somebody")
    later = clerk.store.settle_outcome([settlement])[0]
    assert (later.applied, later.due, later.held) == (True, None, ()), "ours was written before the cancel"


def test_somebody_who_wants_it_cancelled_wins(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    start = clerk.start()
    clerk.store.cancel(RunId("a"), None, by="somebody")
    after = fail(clerk, start)
    assert (after.status, after.held) == (RunStatus.FAILED, ())
    assert clerk.store.session(S1, None).holds == {}
    clerk.audit()


@pytest.mark.parametrize("reason", [each for each in StopReason if each.of_one_attempt])
def test_b36_a_limit_of_one_attempt_is_no_wish_against_the_next(clerk: Clerk, reason: StopReason) -> None:
    clerk.submit(run_id="a")
    start = clerk.start()
    clerk.store.cancel(RunId("a"), None, by="leader", reason=reason)
    after = fail(clerk, start, status=RunStatus.TIMED_OUT, code=reason.value)
    assert after.status is RunStatus.QUEUED
    run = clerk.run("a")
    assert (run.cancel_requested_at, run.stop_reason) == (None, None)
    pass_time(clerk)
    assert clerk.start().run.cancel_requested_at is None
    clerk.audit()


def test_no_retry_beyond_the_deadline(clerk: Clerk) -> None:
    """By the database's clock, whatever the worker believed."""
    now = datetime.fromtimestamp(clerk.store.now(), UTC)
    clerk.submit(run_id="a", deadline_at=now + MINUTE)
    assert fail(clerk, clerk.start(), RetryPlan(MINUTE, 3)).status is RunStatus.FAILED
    clerk.submit(run_id="b", deadline_at=now + 2 * MINUTE)
    assert fail(clerk, clerk.start(), RetryPlan(MINUTE, 3)).status is RunStatus.QUEUED


def test_a_batch_of_ends_and_retries_is_answered_in_order(clerk: Clerk) -> None:
    for name in ("s2", "s3", "s4"):
        clerk.session(name)
    for name in ("s3", "s1", "s4", "s2"):
        clerk.submit(name, f"of-{name}")
    fences = [fence_of(clerk.start(name)) for name in ("s3", "s1", "s4", "s2")]
    fences[2] = replace(fences[2], token=ClaimToken("other"))
    batch = [failed(fences[0]), failed(fences[1], None), failed(fences[2]), failed(fences[3])]
    done = clerk.store.settle(batch)
    assert [after.status for after in done] == [RunStatus.QUEUED, RunStatus.FAILED, None, RunStatus.QUEUED]
    assert [after.held for after in done] == [(HoldReason.BACKOFF,), (), (), (HoldReason.BACKOFF,)]
    clerk.audit()


def test_cancelling_the_run_that_is_waited_for_ends_the_hold(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.submit(run_id="b")
    fail(clerk, clerk.start())
    other = clerk.store.cancel(RunId("b"), None, by="somebody")
    assert not other.unheld and clerk.store.session(S1, None).holds, "that was not waited for"
    clerk.submit(run_id="c")
    assert clerk.store.cancel(RunId("a"), None, by="somebody").unheld
    assert clerk.store.session(S1, None).holds == {}
    assert clerk.start().run.id == "c"
    clerk.audit()


def test_another_hold_stays(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    start = clerk.start()
    clerk.store.hold_session(S1, None, HoldReason.PAUSED, until_in=None)
    after = fail(clerk, start)
    assert (set(after.held), after.until_in) == ({HoldReason.PAUSED, HoldReason.BACKOFF}, None)
    pass_time(clerk)
    assert clerk.store.session(S1, None).holds.keys() == {HoldReason.PAUSED}


def test_a_requeue_by_hand_waits_for_no_backoff(clerk: Clerk) -> None:
    clerk.submit(run_id="old")
    clerk.settle(clerk.start(), RunStatus.FAILED)
    clerk.submit(run_id="a")
    fail(clerk, clerk.start())
    clerk.store.requeue(RunId("old"), None, by="operator")
    assert clerk.store.session(S1, None).holds == {}
    assert clerk.start().run.id == "a", "the order stays"
    clerk.audit()


def test_a_requeue_by_hand_begins_anew(clerk: Clerk) -> None:
    clerk.submit(run_id="a", max_retries=1)
    fail(clerk, clerk.start(), RetryPlan(MINUTE, 1))
    pass_time(clerk)
    assert fail(clerk, clerk.start(), RetryPlan(MINUTE, 1)).status is RunStatus.FAILED
    clerk.store.requeue(RunId("a"), None, by="operator")
    run = clerk.run("a")
    assert (run.failed_attempts, run.max_retries) == (0, 1)
    assert run.recovery is not None and run.recovery["total"]["failed_attempts"] == 2
    assert fail(clerk, clerk.start(), RetryPlan(MINUTE, 1)).status is RunStatus.QUEUED


def test_recovery_is_counted_apart(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    fail(clerk, clerk.start())
    pass_time(clerk)
    clerk.start()
    clerk.recover(clerk.owner())
    run = clerk.run("a")
    assert (run.failed_attempts, run.recovery_attempts, run.attempt) == (1, 1, 2)
    assert fail(clerk, clerk.start(), RetryPlan(MINUTE, 2)).status is RunStatus.QUEUED
    assert (clerk.run("a").failed_attempts, clerk.run("a").recovery_attempts) == (2, 1)


def test_a_closing_session_waits_for_its_retry_and_one_that_cancels_does_not(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    fail(clerk, clerk.start())
    assert clerk.store.close_session(S1, None).state is SessionState.CLOSING
    assert clerk.store.session(S1, None).holds
    clerk.store.cancel(RunId("a"), None, by="closer")
    session = clerk.store.session(S1, None)
    assert (session.state, session.holds) == (SessionState.CLOSED, {})


def test_an_owner_row_of_a_dead_worker_does_not_keep_the_retry(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    fail(clerk, clerk.start(), keep_owner=True)
    clerk.recover(clerk.owner())
    assert clerk.store.session(S1, None).holds.keys() == {HoldReason.BACKOFF}
    pass_time(clerk)
    again = clerk.start(worker="w.2")
    assert (again.run.attempt, again.run.recovery_attempts, again.run.worker_id) == (2, 0, WorkerId("w.2"))


def test_a_run_without_a_word_about_retries_says_none(clerk: Clerk) -> None:
    assert clerk.submit(run_id="a").max_retries is None
    assert clerk.submit(run_id="b", max_retries=0).max_retries == 0
    assert (clerk.run("a").max_retries, clerk.run("b").max_retries) == (None, 0)
