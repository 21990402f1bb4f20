"""What marks and recovery promise: a row that was marked stays, an orphan moves once, and the record says all."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from oah.adapters.sql import recoveries
from oah.adapters.sql.store import open_store
from oah.core.model.ids import ClaimToken, EpochId, RunId, SessionId, WorkerId
from oah.core.model.run import ReadyClass, RecoveryState, Run, RunError, RunStatus, StopReason
from oah.core.model.session import SessionState
from oah.core.policy.recovery import Override, Strategy
from oah.ports.store import MarkReply, RecoveryAction, RecoveryWrite
from tests.support.store_clerk import Clerk, fence_of

S1, W1 = SessionId("s1"), WorkerId("w.1")
SECOND = timedelta(seconds=1)


def test_a_mark_confirms_exactly_what_is_still_ours(clerk: Clerk) -> None:
    table = []
    for name in ("a", "b", "parked", "gone"):
        clerk.session(name)
        clerk.submit(name)
        start = clerk.start(name)
        table.append((SessionId(name), fence_of(start).token))
        clerk.behind.age_owner(name, timedelta(seconds=20))
        if name == "parked":
            clerk.settle(start, keep=True)
        if name == "gone":
            clerk.settle(start)
    table[1] = (table[1][0], ClaimToken("other"))
    reply = clerk.store.mark(W1, [*table, (SessionId("nowhere"), ClaimToken("x"))], timeout=5 * SECOND)
    assert reply == MarkReply(frozenset({SessionId("a"), SessionId("parked")}))
    ages = {owner.session_id: owner.age for owner in clerk.store.owners()}
    assert ages[SessionId("a")] < 15 * SECOND < ages[SessionId("b")]
    assert ages[SessionId("parked")] < 15 * SECOND
    assert clerk.store.mark(WorkerId("w.2"), table, timeout=5 * SECOND).confirmed == frozenset()
    assert clerk.store.mark(W1, [], timeout=5 * SECOND) == MarkReply(frozenset())


def test_a_mark_tells_which_runs_are_to_be_cancelled(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    fence = fence_of(clerk.start())
    clerk.store.cancel(RunId("a"), None, by="someone")
    for _ in range(2):
        assert clerk.store.mark(W1, [(S1, fence.token)], timeout=5 * SECOND).cancels == (fence,)
    clerk.settle(fence, RunStatus.CANCELLED)
    assert clerk.store.mark(W1, [(S1, fence.token)], timeout=5 * SECOND) == MarkReply(frozenset())


def test_owner_rows_are_listed_with_what_recovery_needs(clerk: Clerk) -> None:
    for name, worker in (("a", "w.1"), ("b", "w.2"), ("c", "w.2")):
        clerk.session(name)
        clerk.submit(name)
        clerk.start(name, worker=worker)
    clerk.submit("c")
    clerk.settle(fence_of_active(clerk, "c"), keep=True)
    clerk.behind.age_owner("b", timedelta(minutes=1))
    owners = clerk.store.owners()
    assert [owner.session_id for owner in owners] == ["a", "b", "c"]
    assert [owner.session_id for owner in clerk.store.owners(limit=1, after=SessionId("a"))] == ["b"]
    assert [owner.session_id for owner in clerk.store.owners(stale_for=30 * SECOND)] == ["b"]
    assert [owner.session_id for owner in clerk.store.owners_by_worker([WorkerId("w.2")])] == ["b", "c"]
    for worker, host in (("w.1", "h1"), ("w.2", "h2"), ("w.3", "h3"), ("x.1", "h1")):
        clerk.store.record_worker(WorkerId(worker), worker.partition(".")[0], host)
    assert clerk.store.owning_names(["w", "x", "y"]) == {"w"}
    assert clerk.store.owning_names(["w"], host="h2") == {"w"} != clerk.store.owning_names(["w"], host="h3")
    assert owners[1].age >= 60 * SECOND
    assert (owners[0].run_status, owners[0].attempt, owners[0].ready_class) == (
        RunStatus.RUNNING,
        1,
        ReadyClass.INTERACTIVE,
    )
    assert (owners[2].parked, owners[2].run_id, owners[2].ready_class) == (True, None, ReadyClass.INTERACTIVE)


def fence_of_active(clerk: Clerk, session: str):  # type: ignore[no-untyped-def]
    """The fence of the session's active run, as its owner row names it."""
    from oah.ports.store import RunFence

    owner = clerk.owner(session)
    assert owner.run_id is not None
    return RunFence(owner.session_id, owner.run_id, owner.attempt, owner.token)


def test_requeue_keeps_the_place_and_writes_the_record(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.submit(run_id="b")
    clerk.start()
    after = clerk.recover(clerk.owner(), reason="worker_lost", by="controller-1")
    assert (after.applied, after.status, after.waiting) == (True, RunStatus.QUEUED, ReadyClass.SUSPECT)
    run = clerk.run("a")
    assert (run.position, run.attempt, run.recovery_attempts, run.failed_attempts) == (1, 1, 1, 0)
    assert (run.started_at, run.heartbeat_at, run.ended_at, run.error) == (None, None, None, None)
    assert run.recovery_state is RecoveryState.REQUEUED
    assert run.recovery is not None
    at = run.recovery["last_recovered_at"]
    assert run.recovery == {
        "state": "requeued",
        "strategy": "requeue_running",
        "attempts": 1,
        "max_attempts": 3,
        "reason": "worker_lost",
        "last_recovered_by": "controller-1",
        "last_recovered_at": at,
        "first_recovered_at": at,
        "manual_requeue_count": 0,
        "policy_from": {},
        "history": [{"attempt": 1, "worker": "w.1", "at": at, "decision": "requeued", "reason": "worker_lost"}],
    }
    assert at.startswith("20")
    assert clerk.events()[-2:] == ["run.recovered", "run.queued"]
    assert [(step.kind, step.name) for step in clerk.store.steps(RunId("a"))] == [("system", "run.requeued")]
    assert clerk.store.attempts(RunId("a"))[0].outcome == "worker_lost"
    assert clerk.store.owners_of([S1]) == []
    clerk.audit()


def test_the_record_tells_the_last_ten_one_by_one_and_counts_all(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    for _ in range(12):
        clerk.start()
        clerk.recover(clerk.owner())
    record = clerk.run("a").recovery
    assert record is not None
    assert [told["attempt"] for told in record["history"]] == list(range(3, 13))
    assert (record["attempts"], record["first_recovered_at"] < record["history"][0]["at"]) == (12, True)


def test_one_read_of_an_owner_brings_what_run_and_workspace_say_about_recovery(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.start()
    assert (clerk.owner().run_policy, clerk.owner().workspace_policy) == (Override(), Override())
    clerk.session("s2")
    clerk.submit("s2", recovery_strategy="requeue_all", recovery_max_attempts=0)
    clerk.start("s2")
    clerk.store.update_workspace("default", {"recovery_strategy": Strategy.FAIL, "recovery_max_attempts": 7})
    assert clerk.owner("s2").run_policy == Override(Strategy.REQUEUE_ALL, 0)
    assert {owner.workspace_policy for owner in clerk.store.owners()} == {Override(Strategy.FAIL, 7)}
    clerk.behind.query("UPDATE workspaces SET recovery_strategy = 'of_a_later_release'")
    assert clerk.owner().workspace_policy == Override(None, 7)
    assert clerk.store.workspace("default").recovery_strategy is None


@pytest.mark.parametrize(
    ("action", "state", "kinds"),
    [
        (RecoveryAction.FAIL, RecoveryState.FAILED, ["run.failed"]),
        (RecoveryAction.QUARANTINE, RecoveryState.QUARANTINED, ["run.quarantined", "dead_letter.added", "run.failed"]),
    ],
)
def test_a_run_that_is_given_up(clerk: Clerk, action: RecoveryAction, state: RecoveryState, kinds: list[str]) -> None:
    clerk.submit(run_id="a")
    clerk.submit(run_id="b")
    clerk.start()
    after = clerk.recover(clerk.owner(), action)
    assert (after.status, after.waiting) == (RunStatus.FAILED, ReadyClass.INTERACTIVE)
    run = clerk.run("a")
    assert (run.status, run.recovery_state, run.recovery_attempts) == (RunStatus.FAILED, state, 1)
    assert isinstance(run.error, RunError) and run.error.code == "worker_lost"
    assert clerk.events()[3:] == kinds
    clerk.audit()


@pytest.mark.parametrize("action", list(RecoveryAction))
def test_a_cancel_that_was_asked_for_wins(clerk: Clerk, action: RecoveryAction) -> None:
    clerk.submit(run_id="a")
    clerk.start()
    owner = clerk.owner()
    clerk.store.cancel(RunId("a"), None, by="someone")
    after = clerk.recover(owner, action)
    assert (after.applied, after.status) == (True, RunStatus.CANCELLED)
    assert clerk.run("a").status is RunStatus.CANCELLED
    clerk.audit()


@pytest.mark.parametrize("reason", [each for each in StopReason if each.of_one_attempt])
def test_the_limit_of_a_step_is_no_cancel_and_goes_with_its_attempt(clerk: Clerk, reason: StopReason) -> None:
    """The owner was told that a step took too long and died before it could act: the run is lost like any other."""
    clerk.submit(run_id="a")
    clerk.start()
    clerk.store.cancel(RunId("a"), None, by="leader", reason=reason)
    owner = clerk.owner()
    assert not owner.cancel_requested
    assert clerk.recover(owner).status is RunStatus.QUEUED
    run = clerk.run("a")
    assert (run.cancel_requested_at, run.cancel_requested_by, run.stop_reason) == (None, None, None)
    clerk.audit()


def test_a_cancel_says_who_asked_and_why_also_when_recovery_ends_the_run(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.start()
    clerk.store.cancel(RunId("a"), None, by="someone", reason=StopReason.INTERRUPT)
    clerk.recover(clerk.owner())
    event = clerk.store.events(S1, after=0, limit=100)[-1]
    assert (event.type, event.data["by"], event.data["reason"]) == ("run.cancelled", "someone", "interrupt")


def test_an_owner_without_a_run_goes_alone(clerk: Clerk) -> None:
    clerk.submit()
    clerk.settle(clerk.start(), keep=True)
    clerk.submit()
    after = clerk.recover(clerk.owner(), RecoveryAction.DROP_OWNER)
    assert (after.applied, after.status, after.waiting) == (True, None, ReadyClass.INTERACTIVE)
    assert clerk.store.owners_of([S1]) == []
    clerk.audit()


def test_hn1_a_parked_session_has_a_row_that_a_start_elsewhere_meets(clerk: Clerk) -> None:
    clerk.submit()
    clerk.settle(clerk.start(), keep=True)
    clerk.submit()
    assert type(clerk.try_start(clerk.claim(), worker="w.2")[0]).__name__ == "AlreadyActive"


def test_hn6_a_mark_between_the_look_and_the_write_refuses_the_write(clerk: Clerk) -> None:
    clerk.submit()
    fence = fence_of(clerk.start())
    clerk.behind.age_owner("s1", timedelta(minutes=1))
    stale = clerk.store.owners(stale_for=30 * SECOND)[0]
    clerk.store.mark(W1, [(S1, fence.token)], timeout=5 * SECOND)
    before = clerk.behind.query("SELECT * FROM runs")
    assert not clerk.recover(stale).applied
    assert clerk.behind.query("SELECT * FROM runs") == before
    assert clerk.settle(fence).applied
    clerk.audit()


@pytest.mark.parametrize("change", ["settled", "settled_kept", "released", "started_again", "next_run"])
def test_hn6_whatever_happened_since_the_look_refuses_the_write(clerk: Clerk, change: str) -> None:
    clerk.submit(run_id="a")
    clerk.submit(run_id="b")
    token = clerk.token()
    fence = fence_of(clerk.start(token=token))
    owner = clerk.owner()
    match change:
        case "settled":
            clerk.settle(fence)
        case "settled_kept":
            clerk.settle(fence, keep=True)
        case "released":
            clerk.store.release([fence])
        case "started_again":
            clerk.store.release([fence])
            clerk.start(token=token)
        case "next_run":
            clerk.settle(fence, keep=True)
            clerk.start(token=token)
    rows = clerk.behind.query("SELECT * FROM runs ORDER BY id"), clerk.behind.query("SELECT * FROM session_owners")
    assert not clerk.recover(owner).applied
    assert rows == (
        clerk.behind.query("SELECT * FROM runs ORDER BY id"),
        clerk.behind.query("SELECT * FROM session_owners"),
    )
    clerk.audit()


def test_a_run_under_an_owner_row_does_not_lose_it_alone(clerk: Clerk) -> None:
    clerk.submit()
    clerk.start()
    assert not clerk.recover(clerk.owner(), RecoveryAction.DROP_OWNER).applied
    clerk.audit()


def test_one_that_lost_its_race_leaves_the_others_alone(clerk: Clerk) -> None:
    for name in ("a", "b", "c"):
        clerk.session(name)
        clerk.submit(name)
        clerk.start(name)
    owners = [clerk.owner(name) for name in ("c", "a", "b")]
    owners[1] = replace(owners[1], seen_at="2020-01-01T00:00:00.000001+00:00")
    owners.append(replace(owners[0], session_id=SessionId("nowhere")))
    writes = [RecoveryWrite(o, RecoveryAction.REQUEUE, "requeue_running", 3, "worker_lost", "test") for o in owners]
    assert [after.applied for after in clerk.store.apply_recovery(writes)] == [True, False, True, False]
    assert clerk.store.apply_recovery([]) == []
    clerk.audit()


def test_one_that_the_database_refuses_leaves_the_others_alone(clerk: Clerk, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        clerk.session(name)
        clerk.submit(name)
        clerk.start(name)
    real = recoveries._change

    def poisoned(run: Run, *rest: Any) -> dict[str, Any]:
        return {**real(run, *rest), **({"session_id": "nowhere"} if run.session_id == "b" else {})}

    monkeypatch.setattr(recoveries, "_change", poisoned)
    writes = [RecoveryWrite(o, RecoveryAction.REQUEUE, "x", 3, "y", "z") for o in clerk.store.owners()]
    assert [after.applied for after in clerk.store.apply_recovery(writes)] == [True, False, True]
    assert clerk.owner("b").run_status is RunStatus.RUNNING
    clerk.audit()


def test_two_recoverers_and_one_wins(clerk: Clerk) -> None:
    names = [f"t{n}" for n in range(8)]
    for name in names:
        clerk.session(name)
        clerk.submit(name, f"{name}-a")
        clerk.start(name)
    owners = clerk.store.owners()
    other = open_store(clerk.url)
    barrier = threading.Barrier(2)

    def recover(store: object, order: int) -> list[bool]:
        writes = [
            RecoveryWrite(o, RecoveryAction.REQUEUE, "requeue_running", 3, "worker_lost", "test")
            for o in owners[::order]
        ]
        barrier.wait()
        return [after.applied for after in store.apply_recovery(writes)][::order]  # type: ignore[attr-defined]

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.submit(recover, clerk.store, 1), pool.submit(recover, other, -1)
        for ours, theirs in zip(one.result(), two.result(), strict=True):
            assert ours != theirs
    other.close()
    assert all(clerk.run(f"{name}-a").recovery_attempts == 1 for name in names)
    clerk.audit()


def test_marks_and_recoveries_in_a_race_agree(clerk: Clerk) -> None:
    """Either the mark confirms and nothing moves, or the run moves and the mark confirms nothing."""
    names = [f"t{n}" for n in range(20)]
    table = []
    for name in names:
        clerk.session(name)
        clerk.submit(name)
        table.append((SessionId(name), fence_of(clerk.start(name)).token))
    owners = clerk.store.owners()
    other = open_store(clerk.url)
    barrier = threading.Barrier(2)

    def marks() -> frozenset[SessionId]:
        barrier.wait()
        return other.mark(W1, table[::-1], timeout=20 * SECOND).confirmed

    def recoveries() -> set[SessionId]:
        barrier.wait()
        return {owner.session_id for owner in owners if clerk.recover(owner).applied}

    with ThreadPoolExecutor(2) as pool:
        confirmed, moved = pool.submit(marks), pool.submit(recoveries)
        assert confirmed.result() | moved.result() == set(names)
        assert not confirmed.result() & moved.result()
    other.close()
    clerk.audit()


def test_a_closing_session_closes_when_recovery_ends_its_last_run(clerk: Clerk) -> None:
    clerk.submit()
    clerk.start()
    clerk.store.close_session(S1, None, cancelling=True)
    clerk.recover(clerk.owner(), RecoveryAction.FAIL)
    assert clerk.store.session(S1, None).state is SessionState.CLOSED


def test_an_epoch_is_minted_over_the_one_that_was_seen(clerk: Clerk) -> None:
    store = clerk.store
    one, two, three = EpochId("one"), EpochId("two"), EpochId("three")
    assert store.current_epoch() is None
    assert store.mint_epoch(one, over=None)
    assert not store.mint_epoch(two, over=None)
    assert not store.mint_epoch(two, over=three)
    assert store.mint_epoch(two, over=one)
    assert not store.mint_epoch(three, over=one)
    assert not store.mint_epoch(one, over=two), "an id is never used twice"
    assert store.current_epoch() == two
    assert store.knows_epoch(one) and store.knows_epoch(two) and not store.knows_epoch(three)


def test_of_leaders_that_mint_at_once_one_wins(clerk: Clerk) -> None:
    barrier = threading.Barrier(4)

    def mint(n: int) -> bool:
        barrier.wait()
        return clerk.store.mint_epoch(EpochId(f"e{n}"), over=None)

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(mint, range(4))) == [False, False, False, True]


def test_an_incarnation_is_recorded_once(clerk: Clerk) -> None:
    for _ in range(2):
        clerk.store.record_worker(W1, "w", "host")
    assert clerk.behind.query("SELECT id, name, host FROM workers") == [("w.1", "w", "host")]
