"""What a limit ends that no worker watches, as the broker sees it: sessions that have nothing left, and others."""

from datetime import UTC, datetime, timedelta

from oah.core.model.ids import SessionId
from oah.core.model.run import RunStatus
from oah.core.model.session import Place
from oah.ports.steps import Inside, NewStep, StepKind
from tests.model.world import World
from tests.support import eventually
from tests.support.worlds import MakeWorld

GONE = datetime(2020, 1, 1, tzinfo=UTC)


def place(world: World, session: SessionId) -> Place:
    return world.broker.leases(world.leaders[0].epochs.refresh(), [session])[0].place


def test_a_session_whose_last_run_expired_is_idle_and_takes_the_next(make_world: MakeWorld) -> None:
    world = make_world()
    session = world.sessions[0]
    run = world.submit(session, deadline_at=GONE).run
    assert place(world, session) is Place.READY
    world.lead(0, "expire")
    assert world.store.run(run.id, None).status is RunStatus.TIMED_OUT
    assert place(world, session) is Place.IDLE
    world.submit(session)
    assert place(world, session) is Place.READY
    world.check()


def test_the_next_run_goes_on(make_world: MakeWorld) -> None:
    world = make_world()
    session = world.sessions[0]
    world.submit(session, deadline_at=GONE)
    behind = world.submit(session).run
    world.lead(0, "expire")
    assert place(world, session) is Place.READY
    world.workers["w1"].claim()
    world.workers["w1"].start()
    assert world.store.run(behind.id, None).status is RunStatus.RUNNING
    world.check()


def test_a_delayed_run_that_expired_is_due_no_more(make_world: MakeWorld) -> None:
    world = make_world()
    session = world.sessions[0]
    run = world.submit(session, delay=3600, deadline_at=GONE).run
    world.lead(0, "expire")
    assert world.store.run(run.id, None).status is RunStatus.TIMED_OUT
    world.advance(3700)
    world.lead(0)
    world.lead(0, "promote")
    assert place(world, session) is Place.IDLE
    world.check()


def test_a_leased_session_keeps_its_lease_when_what_waits_behind_expires(make_world: MakeWorld) -> None:
    world = make_world()
    session = world.sessions[0]
    world.submit(session)
    world.workers["w1"].claim()
    world.workers["w1"].start()
    world.submit(session, deadline_at=GONE)
    world.lead(0, "expire")
    assert place(world, session) is Place.LEASED
    world.check()


def test_without_redis_sql_decides_and_reconcile_tells(make_world: MakeWorld) -> None:
    world = make_world()
    session = world.sessions[0]
    run = world.submit(session, deadline_at=GONE).run
    world.flush()
    world.lead(0, "expire")
    assert world.store.run(run.id, None).status is RunStatus.TIMED_OUT
    for _ in range(3):
        world.lead(0)
        world.advance(10)
    assert place(world, session) is Place.IDLE
    world.check()


def test_an_overdue_step_marks_its_run_and_the_mark_brings_it(make_world: MakeWorld) -> None:
    world = make_world()
    session = world.sessions[0]
    run = world.submit(session).run
    world.workers["w1"].claim()
    world.workers["w1"].start()
    inside = Inside(run.id, by="agent")
    world.store.begin_step(inside, NewStep(StepKind.MODEL, "call", timeout=timedelta(milliseconds=1)))

    def marked() -> bool:
        world.lead(0, "expire")
        return world.store.run(run.id, None).stop_reason is not None

    eventually(marked)
    world.check()
