"""What settle, release and output promise: nothing passes a fence that is shut, and the session says what waits."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from oah.core.model.ids import ClaimToken, RunId, SessionId, WorkerId
from oah.core.model.run import Outcome, ReadyClass, RunClass, RunError, RunStatus
from oah.core.model.session import HoldReason, SessionState
from oah.errors import InvalidRequest
from oah.ports.store import OutputChunk, RecoveryAction, RunFence, Settlement
from tests.support.store_clerk import Clerk, fence_of


def test_an_outcome_is_kept_whole(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    start = clerk.start()
    outcome = Outcome(
        RunStatus.FAILED,
        "said \0 this \udcff",
        result_blob="blob-1",
        exit_code=3,
        error=RunError("agent_failed", "because \0"),
        recording_blob="rec-1",
        agent="warm",
    )
    after = clerk.store.settle([Settlement(fence_of(start), outcome)])[0]
    assert (after.applied, after.status, after.waiting, after.event_number) == (True, RunStatus.FAILED, None, 3)
    run = clerk.run("a")
    assert run.result is not None and run.result.startswith("said \ufffd this ") and "\ufffd" in run.result[-3:]
    assert (run.result_blob, run.exit_code, run.error) == ("blob-1", 3, RunError("agent_failed", "because \ufffd"))
    assert (run.failed_attempts, run.worker_id, run.claim_token) == (1, None, None)
    assert run.ended_at is not None and run.heartbeat_at is None
    (attempt,) = clerk.store.attempts(RunId("a"))
    assert (attempt.agent, attempt.recording_blob, attempt.outcome) == ("warm", "rec-1", "failed")
    assert clerk.events()[-1] == "run.failed"
    assert clerk.store.owners_of([SessionId("s1")]) == []
    clerk.audit()


def test_an_answer_that_a_screen_has_cut_says_so_in_its_event(clerk: Clerk) -> None:
    said = []
    for cut in (True, False):
        clerk.submit()
        fence = fence_of(clerk.start())
        clerk.store.settle([Settlement(fence, Outcome(RunStatus.COMPLETED, "the end", output_cut=cut))])
        said.append(clerk.store.events(fence.session_id, after=0, limit=100)[-1].data)
    assert said == [{"output_cut": True}, {}]


@pytest.mark.parametrize(
    "wrong",
    [{"attempt": 2}, {"attempt": 0}, {"token": ClaimToken("other")}, {"run_id": RunId("b")}, {"session_id": "s2"}],
)
def test_a_wrong_fence_changes_nothing(clerk: Clerk, wrong: dict[str, object]) -> None:
    clerk.session("s2")
    clerk.submit(run_id="a")
    clerk.submit(run_id="b")
    start = clerk.start()
    fence = replace(fence_of(start), **wrong)  # type: ignore[arg-type]
    rows = "SELECT * FROM runs ORDER BY id"
    before = clerk.behind.query(rows)
    assert not clerk.settle(fence).applied
    assert not clerk.store.release([fence])[0].applied
    assert clerk.store.output([OutputChunk(fence, "x")]) == [None]
    assert clerk.behind.query(rows) == before
    assert clerk.events() == ["run.queued", "run.queued", "run.started"]
    clerk.audit()


def test_hb10_the_fence_is_shut_between_two_attempts(clerk: Clerk) -> None:
    """A worker that wakes after its run was recovered, and before it runs again, writes nothing."""
    clerk.submit(run_id="a")
    late = fence_of(clerk.start())
    clerk.recover(clerk.owner())
    assert clerk.run("a").attempt == late.attempt, "the attempt alone would let it pass"
    for _ in range(2):
        assert not clerk.settle(late).applied
        assert not clerk.store.release([late])[0].applied
        assert clerk.store.output([OutputChunk(late, "late")]) == [None]
        assert (
            clerk.store.mark(WorkerId("w.1"), [(SessionId("s1"), late.token)], timeout=timedelta(5)).confirmed == set()
        )
        if clerk.run("a").status is RunStatus.QUEUED:
            clerk.start(worker="w.2")
    assert "run.output" not in clerk.events()
    clerk.audit()


@pytest.mark.parametrize("end", ["settle", "release", "requeue"])
def test_hb10_an_ended_attempt_writes_nothing_more(clerk: Clerk, end: str) -> None:
    clerk.submit(run_id="a")
    fence = fence_of(clerk.start())
    if end == "release":
        clerk.store.release([fence])
    else:
        clerk.settle(fence)
    if end == "requeue":
        clerk.store.requeue(RunId("a"), None, by="operator")
    assert not clerk.settle(fence).applied
    assert not clerk.store.release([fence])[0].applied
    assert clerk.store.output([OutputChunk(fence, "late")]) == [None]
    clerk.audit()


def test_settle_returns_the_highest_waiting_class(clerk: Clerk) -> None:
    clerk.submit(run_id="first")
    start = clerk.start()
    clerk.submit(run_class=RunClass.BACKGROUND)
    clerk.submit(run_class=RunClass.INTERACTIVE, delay=timedelta(hours=1))
    assert clerk.settle(start).waiting is ReadyClass.BACKGROUND
    background = clerk.start()
    clerk.submit(run_class=RunClass.BACKGROUND)
    clerk.submit(run_class=RunClass.SUBAGENT)
    assert clerk.settle(background).waiting is ReadyClass.SUBAGENT
    second = clerk.start()
    clerk.submit(run_class=RunClass.INTERACTIVE)
    assert clerk.settle(second).waiting is ReadyClass.INTERACTIVE


def test_a_session_is_suspect_only_by_its_first_eligible_run(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.submit(run_id="b")
    clerk.start()
    after = clerk.recover(clerk.owner())
    assert after.waiting is ReadyClass.SUSPECT
    poisoned = clerk.start()
    assert clerk.settle(poisoned).waiting is ReadyClass.INTERACTIVE


def test_a_kept_owner_is_parked_and_goes_when_its_tree_is_empty(clerk: Clerk) -> None:
    clerk.submit()
    start = clerk.start()
    clerk.settle(start, keep=True)
    owner = clerk.owner()
    assert owner.parked and owner.run_id is None
    other = (SessionId("s1"), ClaimToken("other"))
    ours = (SessionId("s1"), owner.token)
    assert [a.applied for a in clerk.store.drop_owner(WorkerId("w.1"), [other])] == [False]
    assert [a.applied for a in clerk.store.drop_owner(WorkerId("w.2"), [ours])] == [False]
    clerk.submit()
    assert [(a.applied, a.waiting) for a in clerk.store.drop_owner(WorkerId("w.1"), [ours])] == [
        (True, ReadyClass.INTERACTIVE)
    ]
    assert clerk.store.owners_of([SessionId("s1")]) == []
    clerk.audit()


def test_an_owner_row_with_an_active_run_does_not_go(clerk: Clerk) -> None:
    clerk.submit()
    start = clerk.start()
    ours = (SessionId("s1"), fence_of(start).token)
    assert not clerk.store.drop_owner(WorkerId("w.1"), [ours])[0].applied
    clerk.audit()


def test_release_keeps_the_place_and_counts_nothing(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.submit(run_id="b")
    start = clerk.start()
    after = clerk.store.release([fence_of(start)])[0]
    assert (after.applied, after.status, after.waiting) == (True, RunStatus.QUEUED, ReadyClass.INTERACTIVE)
    run = clerk.run("a")
    assert (run.position, run.recovery_attempts, run.failed_attempts, run.started_at) == (1, 0, 0, None)
    assert clerk.events()[-1] == "run.released"
    assert clerk.start().run.id == "a"
    clerk.audit()


def test_a_released_run_whose_cancel_was_asked_for_ends(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    start = clerk.start()
    clerk.store.cancel(RunId("a"), None, by="someone")
    after = clerk.store.release([fence_of(start)])[0]
    assert (after.status, after.waiting) == (RunStatus.CANCELLED, None)
    assert clerk.run("a").status is RunStatus.CANCELLED
    assert clerk.events()[-1] == "run.cancelled"
    clerk.audit()


def test_one_of_a_batch_may_be_refused(clerk: Clerk) -> None:
    for name in ("s2", "s3"):
        clerk.session(name)
        clerk.submit(name)
    clerk.submit()
    fences = [fence_of(clerk.start(name)) for name in ("s3", "s1", "s2")]
    fences[1] = replace(fences[1], token=ClaimToken("other"))
    done = clerk.store.settle([Settlement(fence, Outcome(RunStatus.COMPLETED)) for fence in fences])
    assert [after.applied for after in done] == [True, False, True]
    clerk.audit()


def test_a_settle_may_hold_the_session(clerk: Clerk) -> None:
    clerk.submit()
    clerk.submit()
    after = clerk.settle(clerk.start(), RunStatus.FAILED, hold=HoldReason.UNKILLABLE)
    assert after.held == (HoldReason.UNKILLABLE,) and after.until_in is None
    assert after.waiting is ReadyClass.INTERACTIVE
    session = clerk.store.session(SessionId("s1"), None)
    assert session.holds == {HoldReason.UNKILLABLE: None}


def test_an_impossible_exit_code_costs_nobody_the_outcome(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    outcome = Outcome(RunStatus.FAILED, "x", exit_code=2**40)
    assert clerk.store.settle([Settlement(fence_of(clerk.start()), outcome)])[0].applied
    assert clerk.run("a").exit_code is None


def test_a_run_ends_only_in_a_terminal_state(clerk: Clerk) -> None:
    clerk.submit()
    with pytest.raises(InvalidRequest):
        clerk.settle(clerk.start(), RunStatus.QUEUED)


def test_output_is_numbered_in_order_without_gaps(clerk: Clerk) -> None:
    clerk.session("s2")
    clerk.submit()
    clerk.submit("s2")
    one, two = fence_of(clerk.start()), fence_of(clerk.start("s2"))
    wrong = replace(one, attempt=9)
    chunks = [OutputChunk(f, t) for f, t in ((one, "a"), (two, "b\0"), (wrong, "x"), (one, "c"), (two, "d"))]
    assert clerk.store.output(chunks) == [3, 3, None, 4, 4]
    texts = [event.data["text"] for event in clerk.store.events(SessionId("s2"), after=2, limit=9)]
    assert texts == ["b\ufffd", "d"]
    assert clerk.store.output([]) == []
    clerk.audit()


def test_a_closing_session_closes_with_its_last_run(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.submit(run_id="b")
    assert clerk.store.close_session(SessionId("s1"), None).state is SessionState.CLOSING
    clerk.settle(clerk.start())
    assert clerk.store.session(SessionId("s1"), None).state is SessionState.CLOSING
    clerk.settle(clerk.start())
    closed = clerk.store.session(SessionId("s1"), None)
    assert closed.state is SessionState.CLOSED and closed.closed_at is not None


def test_settle_outcome_tells_what_is_true(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    fence = fence_of(clerk.start())
    asked = Settlement(fence, Outcome(RunStatus.COMPLETED))
    before = clerk.store.settle_outcome([asked])[0]
    assert (before.applied, before.status) == (False, RunStatus.RUNNING)
    clerk.store.settle([asked])
    assert clerk.store.settle_outcome([asked])[0].applied
    other = Settlement(fence, Outcome(RunStatus.FAILED))
    assert not clerk.store.settle_outcome([other])[0].applied
    nothing = Settlement(RunFence(SessionId("s1"), RunId("x"), 1, fence.token), Outcome(RunStatus.FAILED))
    assert not clerk.store.settle_outcome([nothing])[0].applied
    assert clerk.store.settle_outcome([]) == []


def test_settle_outcome_of_a_run_that_somebody_else_ended(clerk: Clerk) -> None:
    """The recoverer failed it; the worker that asked for "failed" did not."""
    clerk.submit(run_id="a")
    fence = fence_of(clerk.start())
    clerk.recover(clerk.owner(), RecoveryAction.FAIL)
    asked = Settlement(fence, Outcome(RunStatus.FAILED))
    assert not clerk.store.settle_outcome([asked])[0].applied
