"""What a start promises: the first eligible run, one reason per session, and never a second active run."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

import pytest

from oah.adapters.sql.store import open_store
from oah.core.model.ids import ClaimToken, RunId, SessionId, WorkerId
from oah.core.model.run import RunStatus, StartReason
from oah.core.model.session import HoldReason
from oah.ports.store import (
    AlreadyActive,
    CancelResult,
    IsHeld,
    IsSuspect,
    NothingEligible,
    RecoveryAction,
    StartClaim,
    Started,
)
from tests.support.store_clerk import EPOCH, Clerk, fence_of, started


def test_start_takes_the_first_eligible_run_and_writes_who_has_it(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.submit(run_id="b")
    reply = clerk.start(token="f" * 32)
    assert (reply.run.id, reply.run.status, reply.run.attempt) == ("a", RunStatus.RUNNING, 1)
    assert (reply.run.worker_id, reply.run.claim_token) == ("w.1", "f" * 32)
    assert (reply.reason, reply.event_number) == (StartReason.FIRST, 3)
    assert (reply.session.queued_count, reply.session.event_seq) == (1, 3)
    owner = clerk.owner()
    assert (owner.worker_id, owner.token, owner.parked, owner.run_id) == ("w.1", "f" * 32, False, "a")
    assert clerk.run("a").heartbeat_at is not None
    assert clerk.behind.query("SELECT dispatched_epoch FROM runs WHERE id = 'a'") == [(EPOCH,)]
    (attempt,) = clerk.store.attempts(RunId("a"))
    assert (attempt.attempt, attempt.reason, attempt.ended_at) == (1, StartReason.FIRST, None)
    clerk.audit()


def test_every_session_of_a_batch_gets_its_own_answer(clerk: Clerk) -> None:
    for name in ("active", "held", "suspect", "empty", "parked", "good"):
        clerk.session(name)
        if name != "empty":
            clerk.submit(name, f"{name}-1")
            clerk.submit(name, f"{name}-2")
    running = clerk.start("active")
    clerk.settle(clerk.start("parked", worker="w.2"), keep=True)
    clerk.start("suspect")
    clerk.recover(clerk.owner("suspect"))
    clerk.store.hold_session(SessionId("held"), None, HoldReason.BACKOFF, until_in=timedelta(seconds=30))
    names = ["good", "held", "active", "nowhere", "suspect", "empty", "parked"]
    replies = clerk.try_start(*(clerk.claim(name, suspect=False) for name in names), worker="w.3")
    good, held, active, nowhere, suspect, empty, parked = replies
    assert started(good).run.id == "good-1"
    assert isinstance(held, IsHeld) and held.reasons == (HoldReason.BACKOFF,)
    assert held.until_in is not None and timedelta(seconds=25) < held.until_in <= timedelta(seconds=30)
    assert isinstance(active, AlreadyActive)
    assert (active.worker_id, active.token, active.parked) == ("w.1", running.run.claim_token, False)
    assert timedelta(0) <= active.age < timedelta(seconds=20)
    assert nowhere == NothingEligible(SessionId("nowhere"))
    assert suspect == IsSuspect(SessionId("suspect"))
    assert empty == NothingEligible(SessionId("empty"))
    assert isinstance(parked, AlreadyActive) and (parked.worker_id, parked.parked) == ("w.2", True)
    clerk.audit()


def test_a_suspect_starts_where_there_is_a_place(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.start()
    clerk.recover(clerk.owner())
    reply = clerk.start()
    assert (reply.run.attempt, reply.reason, reply.run.recovery_attempts) == (2, StartReason.RECOVERED, 1)
    clerk.audit()


def test_a_held_session_with_an_owner_goes_back_to_it(clerk: Clerk) -> None:
    clerk.submit()
    clerk.start()
    clerk.store.hold_session(SessionId("s1"), None, HoldReason.PAUSED, until_in=None)
    assert isinstance(clerk.try_start(clerk.claim(), worker="w.2")[0], AlreadyActive)


def test_a_parked_sessions_owner_starts_its_next_run_under_its_own_token(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.submit(run_id="b")
    token = clerk.token()
    clerk.settle(clerk.start(token=token), keep=True)
    assert clerk.owner().parked
    assert clerk.start(token=token).run.id == "b"
    assert not clerk.owner().parked
    clerk.audit()


def test_hb7_a_deferred_run_neither_blocks_nor_is_started(clerk: Clerk) -> None:
    clerk.submit(run_id="later", delay=timedelta(hours=1))
    clerk.submit(run_id="now")
    clerk.settle(clerk.start())
    assert clerk.run("now").status is RunStatus.COMPLETED
    assert clerk.try_start(clerk.claim())[0] == NothingEligible(SessionId("s1"))
    assert clerk.run("later").status is RunStatus.QUEUED


def test_hb7_eligibility_is_a_column_not_a_comparison_of_clocks(clerk: Clerk) -> None:
    """A run whose due time has passed by SQL's clock stays deferred until it is promoted."""
    clerk.submit(run_id="a", delay=timedelta(hours=1))
    clerk.behind.query("UPDATE runs SET due_at = created_at")
    assert clerk.try_start(clerk.claim())[0] == NothingEligible(SessionId("s1"))


def test_hb8_order_is_that_of_acceptance_whatever_is_claimed(clerk: Clerk) -> None:
    for n in range(4):
        clerk.submit(run_id=f"r{n}")
    order = []
    for _ in range(4):
        reply = clerk.start()
        order.append(reply.run.id)
        clerk.settle(reply)
    assert order == ["r0", "r1", "r2", "r3"]


def test_hn5_an_active_session_answers_its_owner_again_and_again(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.submit(run_id="b")
    token = clerk.start().run.claim_token
    for _ in range(3):
        reply = clerk.try_start(clerk.claim(), worker="w.2")[0]
        assert isinstance(reply, AlreadyActive) and reply.token == token
    same = clerk.try_start(clerk.claim(token=token))[0]
    assert isinstance(same, AlreadyActive), "a repeated start under the same token starts nothing"
    clerk.audit()


def test_hn2_a_run_cancelled_while_a_start_waits_is_not_started_and_the_next_one_is(clerk: Clerk) -> None:
    """The start waits for the session's lock; what it chose before would be the cancelled run."""
    clerk.session("s2")
    for session in ("s1", "s2"):
        clerk.submit(session, f"{session}-a")
        clerk.submit(session, f"{session}-b")
    other = open_store(clerk.url)
    go, cancelled = threading.Event(), threading.Event()

    def cancel() -> None:
        with other._transaction([SessionId("s1")]):  # type: ignore[attr-defined]
            go.set()
            cancelled.wait(60)

    with ThreadPoolExecutor(3) as pool:
        # A transaction holds the lock of s1; a cancel queues behind it, and the start behind the cancel.
        holding = pool.submit(cancel)
        assert go.wait(60)
        cancelling = pool.submit(other.cancel, RunId("s1-a"), None, by="test")
        starting = pool.submit(clerk.try_start, clerk.claim("s1"), clerk.claim("s2"))
        with suppress(TimeoutError):
            starting.result(0.3)
        assert not starting.done()
        cancelled.set()
        holding.result(60)
        outcome, replies = cancelling.result(60), starting.result(10)
    other.close()
    assert started(replies[1]).run.id == "s2-a"
    first = started(replies[0]).run.id
    if outcome.result is CancelResult.REMOVED:
        assert first == "s1-b", "the cancelled run is skipped, the next eligible one is started"
        assert clerk.run("s1-a").status is RunStatus.CANCELLED
    else:
        assert (outcome.result, first) == (CancelResult.SIGNALLED, "s1-a")
        assert clerk.run("s1-a").cancel_requested_at is not None
    clerk.audit()


def test_hn2_cancels_and_starts_in_a_race_never_start_a_cancelled_run(clerk: Clerk) -> None:
    other = open_store(clerk.url)
    for n in range(12):
        clerk.session(f"t{n}")
        clerk.submit(f"t{n}", f"t{n}-a")
        clerk.submit(f"t{n}", f"t{n}-b")
    barrier = threading.Barrier(2)

    def cancels() -> list[CancelResult]:
        barrier.wait()
        return [other.cancel(RunId(f"t{n}-a"), None, by="test").result for n in range(12)]

    def starts() -> list[str]:
        barrier.wait()
        batches = [clerk.try_start(*(clerk.claim(f"t{n + k}") for k in range(3))) for n in range(0, 12, 3)]
        return [started(reply).run.id for batch in batches for reply in batch]

    with ThreadPoolExecutor(2) as pool:
        results, ids = pool.submit(cancels), pool.submit(starts)
        for n, (result, run_id) in enumerate(zip(results.result(), ids.result(), strict=True)):
            assert run_id == f"t{n}-{'b' if result is CancelResult.REMOVED else 'a'}"
    other.close()
    clerk.audit()


def test_two_workers_start_one_session_and_one_wins(clerk: Clerk) -> None:
    other = open_store(clerk.url)
    names = [SessionId(f"t{n}") for n in range(10)]
    for name in names:
        clerk.session(name)
        clerk.submit(name)
        clerk.submit(name)
    barrier = threading.Barrier(2)

    def start(store: object, worker: str, order: list[SessionId]) -> dict[str, object]:
        claims = [StartClaim(name, ClaimToken(f"{worker}-{name}")) for name in order]
        barrier.wait()
        return dict(zip(order, store.start(WorkerId(worker), EPOCH, claims), strict=True))  # type: ignore[attr-defined]

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(start, clerk.store, "w.1", names)
        two = pool.submit(start, other, "w.2", names[::-1])
        answers = [one.result(), two.result()]
    for name in names:
        kinds = sorted(type(answer[name]).__name__ for answer in answers)
        assert kinds == ["AlreadyActive", "Started"]
    other.close()
    clerk.audit()


@pytest.mark.parametrize("action", [RecoveryAction.REQUEUE, RecoveryAction.FAIL])
def test_an_attempt_number_only_grows_and_names_its_reason(clerk: Clerk, action: RecoveryAction) -> None:
    clerk.submit(run_id="a")
    clerk.store.release([fence_of(clerk.start())])
    second = clerk.start()
    assert (second.run.attempt, second.reason) == (2, StartReason.RELEASED)
    clerk.recover(clerk.owner(), action)
    if action is RecoveryAction.FAIL:
        clerk.store.requeue(RunId("a"), None, by="operator")
    third = clerk.start()
    expected = StartReason.RECOVERED if action is RecoveryAction.REQUEUE else StartReason.REQUEUED
    assert (third.run.attempt, third.reason) == (3, expected)
    reasons = [attempt.reason for attempt in clerk.store.attempts(RunId("a"))]
    assert reasons == [StartReason.FIRST, StartReason.RELEASED, expected]
    clerk.audit()


def test_start_outcome_tells_what_is_true(clerk: Clerk) -> None:
    clerk.session("s2")
    clerk.submit(run_id="a")
    clerk.submit("s2")
    claims = [clerk.claim(), clerk.claim("s2")]
    reply = clerk.try_start(claims[0])[0]
    assert isinstance(reply, Started)
    outcome = clerk.store.start_outcome(WorkerId("w.1"), claims)
    assert outcome == [reply, NothingEligible(SessionId("s2"))]
    assert clerk.store.start_outcome(WorkerId("w.1"), [clerk.claim()]) == [NothingEligible(SessionId("s1"))]
    clerk.settle(reply)
    assert clerk.store.start_outcome(WorkerId("w.1"), claims[:1]) == [NothingEligible(SessionId("s1"))]
    assert clerk.store.start_outcome(WorkerId("w.1"), []) == []
