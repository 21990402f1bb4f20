"""Who asked a run to stop, why, and what goes with it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from oah.core.model.ids import RunId, SessionId
from oah.core.model.run import OnBusy, RunStatus, StopReason
from oah.core.model.session import HoldReason
from oah.ports.store import CancelResult, RecoveryAction, RetryPlan
from tests.support.store_clerk import Clerk, fence_of

S1 = SessionId("s1")


def last_event(clerk: Clerk) -> dict[str, Any]:
    """Its type and what it says."""
    event = clerk.store.events(S1, after=0, limit=1_000)[-1]
    return {"type": event.type, **event.data}


def test_a_queued_run_says_who_and_why(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    found = clerk.store.cancel(RunId("a"), None, by="me", reason=StopReason.PARENT)
    assert (found.result, found.run.stop_reason) == (CancelResult.REMOVED, StopReason.PARENT)
    assert last_event(clerk) == {"type": "run.cancelled", "by": "me", "reason": "parent"}
    clerk.audit()


@pytest.mark.parametrize("end", ["settle", "release"])
def test_an_active_run_says_it_when_it_ends(clerk: Clerk, end: str) -> None:
    clerk.submit(run_id="a")
    start = clerk.start()
    clerk.store.cancel(RunId("a"), None, by="me")
    clerk.store.cancel(RunId("a"), None, by="another", reason=StopReason.PARENT)
    if end == "settle":
        clerk.settle(start, RunStatus.CANCELLED)
    else:
        clerk.store.release([fence_of(start)])
    run = clerk.run("a")
    assert (run.status, run.stop_reason, run.cancel_requested_by) == (RunStatus.CANCELLED, StopReason.CANCEL, "me")
    assert last_event(clerk) == {"type": "run.cancelled", "by": "me", "reason": "cancel"}
    clerk.audit()


def test_a_run_that_was_faster_than_its_cancel_is_no_cancelled_run(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    start = clerk.start()
    assert clerk.store.cancel(RunId("a"), None, by="me").result is CancelResult.SIGNALLED
    clerk.settle(start)
    assert last_event(clerk) == {"type": "run.completed"}
    assert clerk.store.cancel(RunId("a"), None, by="me").result is CancelResult.TOO_LATE
    clerk.audit()


@pytest.mark.parametrize("how", ["cancel", "interrupt", "rollback"])
def test_a_limit_of_one_attempt_gives_way_to_somebody_who_does_not_want_the_run(clerk: Clerk, how: str) -> None:
    """A cancel that was answered `signalled` is not followed by another attempt."""
    clerk.submit(run_id="a")
    start = clerk.start()
    clerk.store.cancel(RunId("a"), None, by="leader", reason=StopReason.STEP_TIMEOUT)
    clerk.store.cancel(RunId("a"), None, by="leader", reason=StopReason.MODEL_TIMEOUT)
    assert clerk.run("a").stop_reason is StopReason.STEP_TIMEOUT
    if how == "cancel":
        clerk.store.cancel(RunId("a"), None, by="me")
    else:
        clerk.submit(run_id="x", on_busy=OnBusy(how), by="me")
    run = clerk.run("a")
    assert (run.stop_reason, run.cancel_requested_by) == (StopReason(how), "me")
    clerk.store.cancel(RunId("a"), None, by="leader", reason=StopReason.STEP_TIMEOUT)
    assert clerk.run("a").stop_reason is StopReason(how)
    plan = RetryPlan(delay=timedelta(hours=1), max_retries=3)
    assert clerk.settle(start, RunStatus.TIMED_OUT, retry=plan).status is RunStatus.TIMED_OUT
    clerk.audit()


def test_a_manual_requeue_wants_it_to_run(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.store.cancel(RunId("a"), None, by="me")
    clerk.store.requeue(RunId("a"), None, by="operator")
    run = clerk.run("a")
    assert (run.status, run.stop_reason, run.cancel_requested_at, run.voided) == (RunStatus.QUEUED, None, None, False)
    clerk.audit()


def test_the_hold_of_a_retry_ends_with_its_run(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.submit(run_id="b")
    clerk.settle(clerk.start(), RunStatus.FAILED, retry=RetryPlan(delay=timedelta(hours=1), max_retries=3))
    assert HoldReason.BACKOFF in clerk.store.session(S1, None).holds
    assert not clerk.store.cancel(RunId("b"), None, by="me").unheld
    found = clerk.store.cancel(RunId("a"), None, by="me")
    assert (found.result, found.unheld) == (CancelResult.REMOVED, True)
    assert clerk.store.session(S1, None).holds == {}
    clerk.audit()


# --- children -------------------------------------------------------------------------------------------------------


def family(clerk: Clerk) -> None:
    """``p`` runs in s1; its children wait and run in s2 and s3, a grandchild waits in s3."""
    clerk.submit(run_id="p")
    clerk.start("s1")
    for session in ("s2", "s3"):
        clerk.session(session)
    clerk.submit("s2", "active", parent_run_id=RunId("p"))
    clerk.start("s2")
    clerk.submit("s2", "queued", parent_run_id=RunId("p"))
    clerk.submit("s3", "grand", parent_run_id=RunId("queued"))
    clerk.submit("s3", "stranger")


def to_cancel(clerk: Clerk) -> set[str]:
    """What a leader's walk would find."""
    parents = clerk.store.parents_of_live(after=None, limit=100)
    return {child.run_id for child in clerk.store.children_to_cancel(parents, limit=100)}


def test_children_of_a_stopping_run_are_to_be_cancelled(clerk: Clerk) -> None:
    family(clerk)
    assert to_cancel(clerk) == set()
    clerk.store.cancel(RunId("p"), None, by="me")
    assert to_cancel(clerk) == {"active", "queued"}
    clerk.store.cancel(RunId("queued"), None, by="me", reason=StopReason.PARENT)
    assert to_cancel(clerk) == {"active", "grand"}
    clerk.store.cancel(RunId("active"), None, by="me", reason=StopReason.PARENT)
    clerk.store.cancel(RunId("grand"), None, by="me", reason=StopReason.PARENT)
    assert to_cancel(clerk) == set() == set(clerk.store.parents_of_live(after=None, limit=9))
    clerk.audit()


@pytest.mark.parametrize(
    ("reason", "status", "go"),
    [
        (StopReason.CANCEL, RunStatus.CANCELLED, True),
        (StopReason.INTERRUPT, RunStatus.CANCELLED, True),
        (StopReason.ROLLBACK, RunStatus.CANCELLED, True),
        (StopReason.CANCEL, RunStatus.COMPLETED, False),
        (StopReason.STEP_TIMEOUT, RunStatus.TIMED_OUT, False),
    ],
)
def test_children_of_an_ended_run(clerk: Clerk, reason: StopReason, status: RunStatus, go: bool) -> None:
    clerk.submit(run_id="p")
    start = clerk.start("s1")
    clerk.session("s2")
    clerk.submit("s2", "child", parent_run_id=RunId("p"))
    clerk.store.cancel(RunId("p"), None, by="me", reason=reason)
    clerk.settle(start, status)
    assert to_cancel(clerk) == ({"child"} if go else set())


def test_children_of_a_run_that_recovery_ended_as_cancelled(clerk: Clerk) -> None:
    family(clerk)
    clerk.store.cancel(RunId("p"), None, by="me")
    clerk.recover(clerk.owner("s1"), RecoveryAction.REQUEUE)
    assert clerk.run("p").status is RunStatus.CANCELLED
    assert to_cancel(clerk) == {"active", "queued"}
    clerk.audit()


def test_a_child_that_came_after_the_end_or_was_put_back_by_hand_stays(clerk: Clerk) -> None:
    clerk.submit(run_id="p")
    clerk.session("s2")
    clerk.submit("s2", "child", parent_run_id=RunId("p"))
    clerk.store.cancel(RunId("p"), None, by="me")
    clerk.submit("s2", "late", parent_run_id=RunId("p"))
    assert to_cancel(clerk) == {"child"}
    clerk.store.cancel(RunId("child"), None, by="me", reason=StopReason.PARENT)
    clerk.store.requeue(RunId("child"), None, by="operator")
    assert to_cancel(clerk) == set()


@pytest.mark.parametrize("then", ["released", "recovered", "retried"])
def test_what_was_put_back_by_hand_stays_whatever_becomes_of_it(clerk: Clerk, then: str) -> None:
    clerk.submit(run_id="p")
    clerk.session("s2")
    clerk.submit("s2", "child", parent_run_id=RunId("p"))
    clerk.store.cancel(RunId("p"), None, by="me")
    clerk.store.cancel(RunId("child"), None, by="me", reason=StopReason.PARENT)
    clerk.store.requeue(RunId("child"), None, by="operator")
    start = clerk.start("s2")
    if then == "released":
        assert clerk.store.release([fence_of(start)])[0].applied
    elif then == "recovered":
        assert clerk.recover(clerk.owner("s2")).applied
    else:
        assert clerk.settle(start, RunStatus.FAILED, retry=RetryPlan(timedelta(0), max_retries=1)).applied
    assert (clerk.run("child").status, to_cancel(clerk)) == (RunStatus.QUEUED, set())


def test_what_was_put_back_before_its_parent_was_cancelled_goes_with_it(clerk: Clerk) -> None:
    clerk.submit(run_id="p")
    clerk.session("s2")
    clerk.submit("s2", "child", parent_run_id=RunId("p"))
    clerk.store.cancel(RunId("child"), None, by="me")
    clerk.store.requeue(RunId("child"), None, by="operator")
    clerk.store.cancel(RunId("p"), None, by="me")
    assert to_cancel(clerk) == {"child"}


def test_parents_come_in_pages(clerk: Clerk) -> None:
    clerk.session("s2")
    for n in range(5):
        clerk.submit(run_id=f"p{n}")
        clerk.submit("s2", f"c{n}", parent_run_id=RunId(f"p{n}"))
        clerk.submit("s2", f"d{n}", parent_run_id=RunId(f"p{n}"))
    first = clerk.store.parents_of_live(after=None, limit=3)
    assert first == ["p0", "p1", "p2"]
    assert clerk.store.parents_of_live(after=first[-1], limit=3) == ["p3", "p4"]
    assert clerk.store.children_to_cancel([], limit=3) == []
