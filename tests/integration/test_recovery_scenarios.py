"""What others met with recovery, as scenarios: records pruned too early, recoverers in each other's way, eagerness."""

from __future__ import annotations

import random
from collections import Counter

from oah.core.model.ids import RunId, SessionId
from oah.core.model.run import RecoveryState, Run, RunStatus
from tests.model.world import LEASE, SECOND, SimWorker, World
from tests.support.worlds import MakeWorld

L = LEASE / SECOND


def _run(world: World, run_id: RunId) -> Run:
    return world.store.run(run_id, None)


def _running(world: World, count: int) -> list[RunId]:
    """So many sessions, each with a run on w1."""
    sessions = [SessionId(f"{number:04d}") for number in range(count)]
    for session in sessions:
        world.open_session(session)
    runs = [world.submit(session).run.id for session in sessions]
    world.workers["w1"].claim(want=count)
    world.workers["w1"].start()
    assert _run(world, runs[-1]).status is RunStatus.RUNNING
    return runs


def test_b05_the_record_of_the_worker_is_pruned_before_its_run_is_recovered(make_world: MakeWorld) -> None:
    """An orphan is an owner row that nobody witnesses, not a join with a table of workers."""
    world = make_world(sessions=0)
    [run] = _running(world, 1)
    lost = world.workers["w1"].id
    world.store.record_worker(lost, "w1", "host")
    world.workers["w1"].entries.clear()
    world.broker.forget(lost)
    world.sql.execute("DELETE FROM workers")
    world.advance(L + 0.1)
    world.lead(0)
    after = _run(world, run)
    assert (after.status, after.recovery_state) == (RunStatus.QUEUED, RecoveryState.REQUEUED)


def test_b07_a_draining_worker_and_its_successor_recover_nothing_twice(make_world: MakeWorld) -> None:
    """Twenty times: SIGTERM gives the runs back while a recoverer that had read them before acts on what it saw."""
    world = make_world(sessions=0)
    [run] = _running(world, 1)
    session = _run(world, run).session_id
    for round_ in range(20):
        worker = world.workers["w1"]
        seen = world.store.owners()
        worker.release(session)
        world.leaders[0].services.recover(seen, cause="worker_lost", by="late")
        after = _run(world, run)
        assert (after.status, after.recovery_attempts, after.attempt) == (RunStatus.QUEUED, 0, round_ + 1)
        world.kill("w1", known_dead=True)
        assert _run(world, run).recovery_attempts == 0, "what was released is nobody's loss"
        world.workers["w1"].claim()
        world.workers["w1"].start()
    world.check()


def test_b07_the_database_goes_away_in_the_middle_of_many_recoveries(make_world: MakeWorld) -> None:
    """A hundred runs; the commit's answer is lost once, the statement once: each is recovered exactly once."""
    world = make_world(sessions=0)
    runs = _running(world, 100)
    world.workers["w1"].entries.clear()
    world.advance(L + 0.1)
    leader = world.leaders[0]
    leader.store.fails.add("apply_recovery")
    world.lead(0, "sweep")
    assert _run(world, runs[0]).status is RunStatus.RUNNING
    leader.store.loses.add("apply_recovery")
    world.lead(0, "sweep")
    world.lead(1, "sweep", "audit")
    world.lead(0, "sweep", "audit")
    after = [_run(world, run) for run in runs]
    assert Counter((run.status, run.recovery_attempts) for run in after) == {(RunStatus.QUEUED, 1): 100}
    world.check()
    world.check_places()


def test_b17_workers_that_come_and_go_are_never_taken_for_dead(make_world: MakeWorld) -> None:
    """An autoscale storm: thirty workers start, claim, finish or drain, and a leader looks at every step."""
    world = make_world(sessions=12)
    chance = random.Random(17)
    for session in world.sessions:
        for _ in range(3):
            world.submit(session)
    for number in range(30):
        name = f"storm-{number}"
        worker = world.workers[name] = SimWorker(world, name)
        worker.claim(want=chance.randint(1, 4))
        world.lead(0, "sweep", "audit")
        worker.start()
        world.lead(1, "sweep", "audit")
        for each in world.workers.values():
            each.renew()
            each.mark()
        world.advance(chance.uniform(0.1, 1.0))
        for leaver in chance.sample(sorted(world.workers), 2):
            for session in list(world.workers[leaver].entries):
                if world.workers[leaver].entries[session].fence is None:
                    continue
                if chance.random() < 0.5:
                    world.workers[leaver].settle(session)
                else:
                    world.workers[leaver].release(session)
    world.check()
    assert {_run(world, run).recovery_attempts for run in world.accepted} == {0}
    notes = [
        note for leader in world.leaders for note in leader.services.recover.decisions.last() if note.kind == "recovery"
    ]
    assert notes == []
