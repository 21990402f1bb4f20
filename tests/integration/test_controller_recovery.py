"""Recovery, step by step: who is judged gone, what becomes of the run, and what a stalled or dying leader changes."""

from datetime import timedelta

import pytest

from oah.core.model.ids import RunId, SessionId
from oah.core.model.run import ReadyClass, RecoveryState, Run, RunStatus
from oah.core.model.session import Place
from oah.core.policy.recovery import Strategy
from oah.errors import Unavailable
from oah.ports.broker import Claimed
from oah.services.cancel import cancel
from tests.model.world import LEASE, SECOND, Entry, World
from tests.support.worlds import MakeWorld

L = LEASE / SECOND


def _run(world: World, run_id: RunId) -> Run:
    return world.store.run(run_id, None)


def _place(world: World, session: SessionId) -> Place:
    return world.broker.leases(world.leaders[0].epochs.refresh(), [session])[0].place


def _running(world: World, name: str = "w1") -> Run:
    """A run that a worker has started; recovery may judge from now on."""
    accepted = world.submit(world.sessions[0])
    world.workers[name].claim()
    world.workers[name].start()
    run = _run(world, accepted.run.id)
    assert run.status is RunStatus.RUNNING
    return run


def test_a_lost_worker_is_noticed_within_a_lease_and_two_seconds(make_world: MakeWorld) -> None:
    world = make_world()
    run = _running(world)
    world.workers["w1"].entries.clear()  # its process is gone, nothing is renewed or marked
    for _ in range(int(L)):
        world.lead(0)
        assert _run(world, run.id).status is RunStatus.RUNNING
        world.advance(0.9)
    world.advance(2.0)
    world.lead(0)
    after = _run(world, run.id)
    assert after.status is RunStatus.QUEUED
    assert (after.attempt, after.recovery_attempts, after.recovery_state) == (1, 1, RecoveryState.REQUEUED)
    assert (after.worker_id, after.claim_token, after.started_at) == (None, None, None)
    assert _place(world, run.session_id) is Place.READY
    world.workers["w2"].claim()
    world.workers["w2"].start()
    again = _run(world, run.id)
    assert (again.status, again.attempt) == (RunStatus.RUNNING, 2)


def test_a_recovered_run_keeps_its_place_before_later_ones(make_world: MakeWorld) -> None:
    world = make_world()
    first = _running(world)
    second = world.submit(first.session_id).run
    world.kill("w1", known_dead=True)
    for expected in (first.id, second.id):
        world.workers["w2"].claim()
        world.workers["w2"].start()
        assert _run(world, expected).status is RunStatus.RUNNING
        world.workers["w2"].settle(first.session_id)


@pytest.mark.parametrize(
    ("strategy", "status", "state"),
    [
        (Strategy.FAIL, RunStatus.FAILED, RecoveryState.FAILED),
        (Strategy.REQUEUE_RUNNING, RunStatus.QUEUED, RecoveryState.REQUEUED),
        (Strategy.REQUEUE_ALL, RunStatus.QUEUED, RecoveryState.REQUEUED),
    ],
)
def test_policies(make_world: MakeWorld, strategy: Strategy, status: RunStatus, state: RecoveryState) -> None:
    world = make_world(strategy=strategy)
    run = _running(world)
    later = world.submit(run.session_id).run
    world.kill("w1", known_dead=True)
    after = _run(world, run.id)
    assert (after.status, after.recovery_state) == (status, state)
    assert _place(world, run.session_id) is Place.READY, "what waits behind it goes on"
    assert _run(world, later.id).status is RunStatus.QUEUED


def test_the_spent_run_is_quarantined_with_a_reason(make_world: MakeWorld) -> None:
    world = make_world(max_attempts=2)
    run = _running(world)
    for _ in range(2):
        world.kill("w1", known_dead=True)
        assert _run(world, run.id).status is RunStatus.QUEUED
        world.workers["w1"].claim()
        world.workers["w1"].start()
    world.kill("w1", known_dead=True)
    after = _run(world, run.id)
    assert (after.status, after.recovery_state) == (RunStatus.FAILED, RecoveryState.QUARANTINED)
    assert after.recovery is not None
    assert after.recovery["reason"] == "max_attempts_exhausted"


def test_no_attempts_means_never_queued_again(make_world: MakeWorld) -> None:
    world = make_world(max_attempts=0)
    run = _running(world)
    world.kill("w1", known_dead=True)
    assert _run(world, run.id).status is RunStatus.FAILED


def test_a_cancel_that_was_asked_for_wins(make_world: MakeWorld) -> None:
    world = make_world()
    run = _running(world)
    cancel(world.store, world.broker, world.store.current_epoch(), run.id, None, by="test")
    world.kill("w1", known_dead=True)
    assert _run(world, run.id).status is RunStatus.CANCELLED


def test_a_parked_session_without_a_run_only_loses_its_owner(make_world: MakeWorld) -> None:
    world = make_world()
    run = _running(world)
    world.workers["w1"].settle(run.session_id, park=True)
    assert _place(world, run.session_id) is Place.PARKED
    world.workers["w1"].entries.clear()
    world.advance(L + 0.1)
    world.lead(0)
    assert world.store.owners() == []
    assert _place(world, run.session_id) is Place.IDLE
    assert _run(world, run.id).status is RunStatus.COMPLETED


def test_a_run_for_a_parked_session_whose_owner_died_is_not_lost(make_world: MakeWorld) -> None:
    world = make_world()
    run = _running(world)
    world.workers["w1"].settle(run.session_id, park=True)
    waiting = world.submit(run.session_id).run
    world.kill("w1", known_dead=True)
    world.workers["w2"].claim()
    world.workers["w2"].start()
    assert _run(world, waiting.id).status is RunStatus.RUNNING


def test_one_witness_keeps_the_session(make_world: MakeWorld) -> None:
    """Redis away for its renewals, or SQL away for its marks: as long as one is fresh nothing moves (HB5)."""
    for witness in ("renew", "mark"):
        world = make_world()
        run = _running(world)
        for _ in range(24):
            world.advance(0.9)
            getattr(world.workers["w1"], witness)()
            world.lead(0)
        assert _run(world, run.id).status is RunStatus.RUNNING, witness
        assert world.workers["w1"].living() == [run.session_id], witness


def test_an_expired_lease_with_a_fresh_mark_comes_back_only_until_the_mark_is_stale(make_world: MakeWorld) -> None:
    """HN9: killed between a mark and the next renewal; never a whole lease more."""
    world = make_world()
    run = _running(world)
    world.advance(L - 1.5)
    world.workers["w1"].mark()
    world.workers["w1"].entries.clear()
    world.advance(1.6)
    world.lead(0)
    lease = world.broker.leases(world.leaders[0].epochs.refresh(), [run.session_id])[0]
    assert lease.place is Place.LEASED
    assert lease.life is not None
    assert (L - 2.5) * SECOND < lease.life < (L - 1.5) * SECOND
    world.advance(L - 1.5)
    world.lead(0)
    assert _run(world, run.id).status is RunStatus.QUEUED


def _renewing_only(world: World, run: Run) -> None:
    """SQL was away for the worker's marks for more than a lease; its renewals have just become rare."""
    for _ in range(8):
        world.advance(0.9)
        world.workers["w1"].renew()
    world.advance(4.0)
    assert world.workers["w1"].living() == [run.session_id]


def test_a_mark_between_the_look_and_the_decision_saves_the_owner(make_world: MakeWorld) -> None:
    """HN6: the leader read a stale mark, stalls, and then reads a lease that has just passed."""
    world = make_world()
    run = _running(world)
    _renewing_only(world, run)

    def stall() -> None:
        world.workers["w1"].mark()
        world.advance(2.1)

    world.leaders[0].broker.before["leases"] = stall
    world.lead(0, "audit")
    world.workers["w2"].claim()
    world.workers["w2"].start()
    assert _run(world, run.id).status is RunStatus.RUNNING, "the row changed after it was read"
    assert world.workers["w1"].living() == [run.session_id]
    world.check()


def test_a_late_renewal_does_not_revive_a_lease_that_was_judged(make_world: MakeWorld) -> None:
    """HN6: between the leases and the decision; a renewal of an expired lease confirms nothing."""
    world = make_world()
    run = _running(world)
    world.advance(L - 1.1)
    worker = world.workers["w1"]
    world.advance(1.2)
    assert worker.living() == []
    entry = Entry(_claimed(world, run), world.clock.boottime() - LEASE.total_seconds(), "running", agent=False)
    worker.entries[run.session_id] = entry
    world.leaders[0].store.before["apply_recovery"] = worker.renew
    world.lead(0, "sweep")
    assert entry.confirmed < world.clock.boottime() - 1
    assert _run(world, run.id).status is RunStatus.QUEUED


def _claimed(world: World, run: Run) -> Claimed:
    row = world.store.owners_of([run.session_id])[0]
    return Claimed(run.session_id, row.token, parked=False, ready_class=ReadyClass.INTERACTIVE)


def test_the_judge_sees_two_trees_when_the_deadman_is_off(make_world: MakeWorld) -> None:
    """The deliberate violation: without the host's deadline the same steps break I5."""
    world = make_world()
    run = _running(world)
    world.workers["w1"].deadman = lambda: None  # type: ignore[method-assign]
    world.advance(L + 0.1)
    world.lead(0, "sweep")
    assert _run(world, run.id).status is RunStatus.QUEUED
    world.workers["w2"].claim()
    world.workers["w2"].start()
    with pytest.raises(AssertionError, match="I5"):
        world.check()


def test_two_recoverers_one_decision(make_world: MakeWorld) -> None:
    world = make_world()
    run = _running(world)
    world.workers["w1"].entries.clear()
    world.advance(L + 0.1)
    world.leaders[0].store.before["apply_recovery"] = lambda: world.lead(1, "sweep", "audit")
    world.lead(0, "sweep", "audit")
    after = _run(world, run.id)
    assert (after.status, after.recovery_attempts) == (RunStatus.QUEUED, 1)


@pytest.mark.parametrize("call", ["recover", "queued_sessions_of"])
def test_recovered_in_sql_and_redis_not_told_is_finished_by_the_next_pass(make_world: MakeWorld, call: str) -> None:
    world = make_world()
    run = _running(world)
    world.workers["w1"].entries.clear()
    world.advance(L + 0.1)
    world.leaders[0].broker.fails.add(call)
    world.leaders[0].store.fails.add(call)
    world.lead(0, "sweep")
    assert _run(world, run.id).status is RunStatus.QUEUED
    assert _place(world, run.session_id) is Place.LEASED
    world.lead(1, "sweep")
    assert _place(world, run.session_id) is Place.READY


def test_without_an_answer_of_both_stores_nothing_is_decided(make_world: MakeWorld) -> None:
    world = make_world()
    run = _running(world)
    world.workers["w1"].entries.clear()
    world.advance(L + 0.1)
    for call in ("leases", "view", "now"):
        world.leaders[0].broker.fails.add(call)
        world.lead(0, "audit")
        assert _run(world, run.id).status is RunStatus.RUNNING, call


def test_a_claim_that_never_started_goes_back_at_the_old_score_and_counts_nothing(make_world: MakeWorld) -> None:
    world = make_world()
    run = world.submit(world.sessions[0]).run
    other = world.submit(world.sessions[1]).run
    world.workers["w1"].claim(want=1)
    world.workers["w1"].entries.clear()
    world.advance(L + 0.1)
    world.lead(0, "sweep")
    world.workers["w2"].claim(want=1)
    world.workers["w2"].start()
    first = _run(world, run.id)
    assert (first.status, first.recovery_attempts) == (RunStatus.RUNNING, 0)
    assert _run(world, other.id).status is RunStatus.QUEUED


def test_a_lost_free_ends_with_the_lease(make_world: MakeWorld) -> None:
    world = make_world()
    run = _running(world)
    waiting = world.submit(run.session_id).run
    world.workers["w1"].settle(run.session_id, free_lost=True)
    assert _place(world, run.session_id) is Place.LEASED
    world.advance(L + 0.1)
    world.lead(0, "sweep")
    assert _place(world, run.session_id) is Place.READY
    assert _run(world, waiting.id).status is RunStatus.QUEUED


def test_a_stepped_clock_holds_recovery_for_one_lease(make_world: MakeWorld) -> None:
    """HB4: the Redis host jumps a minute ahead and every lease passes at once."""
    world = make_world()
    run = _running(world)
    world.lead(0)
    world.redis.age(60_000)
    world.sql.age(60_000)  # as if the marks were stale too: only the hold protects
    world.leaders[0].services.clocks.begin()
    world.lead(0, "sweep", "audit")
    assert _run(world, run.id).status is RunStatus.RUNNING
    assert world.leaders[0].services.clocks.on_hold()


def test_a_step_is_seen_by_the_leader_itself(make_world: MakeWorld) -> None:
    world = make_world()
    leader = world.leaders[0]
    assert not leader.services.clocks.look()
    leader.broker.step = 60.0
    assert leader.services.clocks.look()
    world.advance(L - 0.5)
    assert leader.services.clocks.look()
    world.advance(1.0)
    assert not leader.services.clocks.look()


def test_an_absence_of_redis_is_not_one_of_the_database(make_world: MakeWorld) -> None:
    """Redis was away for long: who has lost both witnesses meanwhile is recovered as soon as the shard allows it."""
    world = make_world()
    leader = world.leaders[0]
    leader.rota()
    for _ in range(10):
        world.advance(1.0)
        leader.broker.fails = {"now", "view"}
        with pytest.raises(Unavailable):
            leader.rota()
    leader.broker.heal()
    world.advance(1.0)
    leader.rota()
    assert not leader.services.clocks.on_hold()


def test_one_bad_member_stops_nobody(make_world: MakeWorld) -> None:
    """A row that changed under the leader is refused; the others are recovered in the same pass."""
    world = make_world()
    runs = [world.submit(session).run for session in world.sessions]
    world.workers["w1"].claim(want=3)
    world.workers["w1"].start()
    world.workers["w1"].entries.clear()
    world.advance(L + 0.1)
    rows = world.store.owners()
    assert len(rows) == 3

    def settle_one() -> None:
        world.store.apply_recovery([])
        row = rows[0]
        world.store.mark(row.worker_id, [(row.session_id, row.token)], timeout=timedelta(seconds=20))

    world.leaders[0].store.before["apply_recovery"] = settle_one
    world.lead(0, "sweep", "audit")
    states = sorted(_run(world, run.id).status for run in runs)
    assert states == [RunStatus.QUEUED, RunStatus.QUEUED, RunStatus.RUNNING]
