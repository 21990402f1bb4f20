"""Backoffs with workers, leaders and losses: order, warm agents, and that nothing waits longer than it should."""

from __future__ import annotations

from datetime import timedelta

from oah.core.model.ids import RunId, SessionId
from oah.core.model.run import OrderMode
from oah.core.model.session import Place
from oah.ports.broker import Ensure
from oah.services.cancel import cancel
from oah.services.requeue import requeue
from oah.services.sessions import close
from tests.model.world import LEASE, SECOND, World
from tests.support.worlds import MakeWorld

BACKOFF = timedelta(hours=1)
"""Longer than any test: it ends when a test says so, however busy the machine is."""
STRICT, SKIP = OrderMode.STRICT, OrderMode.SKIP_FAILED


def submitted(world: World, session: SessionId, *, order: OrderMode = STRICT) -> list[RunId]:
    """A, B, C; A in the order given."""
    first = world.submit(session, order=order)
    return [first.run.id, *(world.submit(session).run.id for _ in range(2))]


def fail(world: World, session: SessionId, *, park: bool = False, free_lost: bool = False) -> None:
    """The first run of the session fails at w1."""
    worker = world.workers["w1"]
    worker.claim()
    worker.start()
    worker.settle(session, fails=True, backoff=BACKOFF, park=park, free_lost=free_lost)
    world.check()


def period(world: World, seconds: float = 1.0) -> None:
    """Everybody confirms, time passes, the leader looks."""
    for worker in world.workers.values():
        worker.renew()
        worker.mark()
    world.advance(seconds)
    world.lead(0)
    world.check()


def pass_backoff(world: World) -> None:
    """The pause is over."""
    world.pass_waits(BACKOFF / SECOND + 0.1)
    period(world, 0.1)


def work(world: World, session: SessionId, name: str = "w1") -> list[tuple[RunId, int]]:
    """What one worker can run of the session now, in order."""
    worker, done = world.workers[name], []
    while True:
        worker.claim()
        worker.start()
        entry = worker.entries.get(session)
        if entry is None or entry.fence is None:
            return done
        done.append((entry.fence.run_id, entry.fence.attempt))
        worker.settle(session)
        world.check()


def test_b22_strict_runs_a_then_a_again_then_b_and_c(make_world: MakeWorld) -> None:
    world = make_world()
    session = world.sessions[0]
    a, b, c = submitted(world, session)
    fail(world, session)
    assert work(world, session) == [] and work(world, session, "w2") == [], "nothing starts while it waits"
    period(world)
    assert work(world, session) == []
    pass_backoff(world)
    assert work(world, session) == [(a, 2), (b, 1), (c, 1)]


def test_b22_skip_failed_runs_b_and_c_and_then_a_again(make_world: MakeWorld) -> None:
    world = make_world()
    session = world.sessions[0]
    a, b, c = submitted(world, session, order=SKIP)
    fail(world, session)
    assert work(world, session) == [(b, 1), (c, 1)]
    pass_backoff(world)
    assert work(world, session) == [(a, 2)]


def test_b22_skip_failed_gets_its_new_place_when_it_is_due(make_world: MakeWorld) -> None:
    world = make_world()
    session = world.sessions[0]
    a, b, c = submitted(world, session, order=SKIP)
    fail(world, session)
    pass_backoff(world)
    d = world.submit(session).run.id
    assert [run for run, _ in work(world, session)] == [b, c, a, d]


def test_a_warm_agent_waits_with_its_session(make_world: MakeWorld) -> None:
    world = make_world()
    session = world.sessions[0]
    a, b, _ = submitted(world, session)
    fail(world, session, park=True)
    assert world.workers["w1"].living() == [session]
    assert work(world, session) == []
    period(world)
    assert world.broker.leases(world.leaders[0].epochs.current(), [session])[0].place is Place.PARKED
    pass_backoff(world)
    assert work(world, session, "w2") == [], "it is w1's"
    entry = world.workers["w1"].entries[session]
    token = entry.claimed.token
    world.workers["w1"].claim()
    world.workers["w1"].start()
    assert entry.fence is not None and (entry.fence.run_id, entry.fence.token) == (a, token)
    world.workers["w1"].settle(session, park=True)
    assert work(world, session)[0][0] == b


def test_a_called_session_that_is_held_after_all_stays_parked(make_world: MakeWorld) -> None:
    """What was heard during the attempt, or a hint that came too early, ends in SQL's "held"."""
    world = make_world()
    session = world.sessions[0]
    a, _, _ = submitted(world, session)
    fail(world, session, park=True)
    epoch = world.leaders[0].epochs.current()
    world.leaders[0].services.relay(epoch)
    queued = world.store.queued_sessions_of([session], epoch)[0]
    assert queued.ready_class is not None
    world.broker.ensure(epoch, [Ensure(session, queued.lane, queued.workspace_id, queued.ready_class)])
    assert work(world, session) == []
    assert world.workers["w1"].entries[session].phase == "parked"
    assert world.broker.leases(epoch, [session])[0].place is Place.PARKED
    world.check_places()
    pass_backoff(world)
    assert work(world, session)[0] == (a, 2)


def test_everything_in_redis_is_lost_during_a_backoff(make_world: MakeWorld) -> None:
    for order, park in ((STRICT, False), (STRICT, True), (SKIP, False), (SKIP, True)):
        world = make_world()
        session = world.sessions[0]
        a, b, c = submitted(world, session, order=order)
        fail(world, session, park=park)
        world.flush()
        period(world, 0.5)
        period(world, 0.5)
        world.check_places()
        began = work(world, session)
        assert began == ([] if order is STRICT else [(b, 1), (c, 1)])
        pass_backoff(world)
        assert work(world, session) == ([(a, 2), (b, 1), (c, 1)] if order is STRICT else [(a, 2)])


def test_a_lost_entry_of_a_hold_comes_back_with_the_next_lap(make_world: MakeWorld) -> None:
    for park in (False, True):
        world = make_world()
        session = world.sessions[0]
        a, _, _ = submitted(world, session)
        fail(world, session, park=park)
        world.redis.client.delete("oah:{0}:held")
        world.lead(0)
        world.check()
        pass_backoff(world)
        assert work(world, session)[0] == (a, 2)


def test_a_worker_dies_between_the_settle_and_the_free(make_world: MakeWorld) -> None:
    for order in OrderMode:
        world = make_world()
        session = world.sessions[0]
        a, b, c = submitted(world, session, order=order)
        fail(world, session, free_lost=True)
        world.kill("w1")
        for _ in range(int(LEASE / SECOND) + 3):
            period(world)
        pass_backoff(world)
        done = work(world, session, "w2")
        assert sorted(done) == sorted([(a, 2), (b, 1), (c, 1)])
        if order is STRICT:
            assert done[0] == (a, 2)


def test_a_worker_dies_with_its_warm_agent_during_the_backoff(make_world: MakeWorld) -> None:
    world = make_world()
    session = world.sessions[0]
    a, b, c = submitted(world, session)
    fail(world, session, park=True)
    world.kill("w1")
    for _ in range(int(LEASE / SECOND) + 3):
        period(world)
    assert work(world, session, "w2") == [], "nobody's, and still held"
    pass_backoff(world)
    assert work(world, session, "w2") == [(a, 2), (b, 1), (c, 1)]
    [(recoveries, failures)] = world.sql.rows(f"SELECT recovery_attempts, failed_attempts FROM runs WHERE id = '{a}'")
    assert (recoveries, failures) == (0, 1), "an owner that is lost between two attempts costs the run nothing"


def test_cancelling_the_waiting_run_lets_the_others_go_on_at_once(make_world: MakeWorld) -> None:
    for park in (False, True):
        world = make_world()
        session = world.sessions[0]
        a, b, c = submitted(world, session)
        fail(world, session, park=park)
        cancel(world.store, world.broker, world.store.current_epoch(), a, None, by="somebody")
        world.check()
        assert work(world, session) == [(b, 1), (c, 1)]


def test_cancelling_the_only_run_leaves_a_session_that_hears(make_world: MakeWorld) -> None:
    for park in (False, True):
        world = make_world()
        session = world.sessions[0]
        a = world.submit(session).run.id
        fail(world, session, park=park)
        cancel(world.store, world.broker, world.store.current_epoch(), a, None, by="somebody")
        assert work(world, session) == []
        d = world.submit(session).run.id
        world.check()
        assert work(world, session) == [(d, 1)]


def test_a_cancel_between_the_settle_and_the_free_is_seen(make_world: MakeWorld) -> None:
    for park in (False, True):
        world = make_world()
        session = world.sessions[0]
        a, b, c = submitted(world, session)
        worker = world.workers["w1"]
        worker.claim()
        worker.start()
        broker, epoch = world.broker, world.store.current_epoch()
        free = broker.free

        def first_cancelled(*args: object, **kw: object) -> object:
            broker.free = free  # type: ignore[method-assign]  # noqa: B023
            cancel(world.store, broker, epoch, a, None, by="somebody")  # noqa: B023
            return free(*args, **kw)  # type: ignore[arg-type]  # noqa: B023

        broker.free = first_cancelled  # type: ignore[method-assign, assignment]
        worker.settle(session, fails=True, backoff=BACKOFF, park=park)
        world.check()
        assert work(world, session) == [(b, 1), (c, 1)]


def test_cancelling_a_deferred_retry_takes_it_out(make_world: MakeWorld) -> None:
    world = make_world()
    session = world.sessions[0]
    a, b, c = submitted(world, session, order=SKIP)
    fail(world, session)
    cancel(world.store, world.broker, world.store.current_epoch(), a, None, by="somebody")
    assert world.redis.client.zcard("oah:{0}:due") == 0
    pass_backoff(world)
    assert work(world, session) == [(b, 1), (c, 1)]


def test_closing_with_cancel_during_a_backoff_closes(make_world: MakeWorld) -> None:
    world = make_world()
    session = world.sessions[0]
    submitted(world, session)
    fail(world, session)
    closed = close(
        world.store, world.broker, world.store.current_epoch(), session, None, cancelling=True, by="somebody"
    )
    assert (closed.state, closed.holds) == ("closed", {})
    world.check()


def test_a_requeue_by_hand_ends_the_wait(make_world: MakeWorld) -> None:
    for park in (False, True):
        world = make_world()
        session = world.sessions[0]
        old = world.submit(session).run.id
        cancel(world.store, world.broker, world.store.current_epoch(), old, None, by="somebody")
        a, b, c = submitted(world, session)
        fail(world, session, park=park)
        requeue(world.store, world.broker, world.store.current_epoch(), old, None, by="operator")
        world.check()
        assert work(world, session) == [(a, 2), (b, 1), (c, 1), (old, 1)]


def test_attempts_are_spent(make_world: MakeWorld) -> None:
    world = make_world()
    session = world.sessions[0]
    a, b, _ = submitted(world, session)
    for _ in range(3):
        fail(world, session)
        pass_backoff(world)
    [(status, attempt)] = world.sql.rows(f"SELECT status, attempt FROM runs WHERE id = '{a}'")
    assert (status, attempt) == ("failed", 3)
    assert work(world, session)[0] == (b, 1)
