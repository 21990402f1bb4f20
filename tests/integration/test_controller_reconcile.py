"""Reconcile, relay, promotion, caps: what was forgotten comes back, what was only a race is not called a repair."""

import pytest

from oah.core.model.group import of_workspace
from oah.core.model.ids import RunId
from oah.core.model.run import ReadyClass, RunStatus
from oah.core.model.session import HoldReason, Place
from oah.errors import Backpressure
from oah.ports.broker import Release
from oah.ports.dispatch import WorkspaceLimit
from oah.services.caps import RecomputeCaps
from oah.services.forget import ForgetWorkers
from tests.model.world import LEASE, SECOND, World
from tests.support.worlds import MakeWorld

L = LEASE / SECOND


class Counted:
    """Remembers what was counted."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], float] = {}

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        key = (name, labels.get("repair", ""))
        self.counts[key] = self.counts.get(key, 0) + value

    def gauge(self, name: str, value: float, **labels: str) -> None: ...

    def observe(self, name: str, value: float, **labels: str) -> None: ...

    def forget(self, name: str, **labels: str) -> None: ...


def _place(world: World, number: int = 0) -> Place:
    return world.broker.leases(world.leaders[0].epochs.refresh(), [world.sessions[number]])[0].place


def _status(world: World, run_id: RunId) -> RunStatus:
    return world.store.run(run_id, None).status


def _lap(world: World) -> int:
    """A first look at everything and the second one; how many repairs."""
    leader = world.leaders[0]
    epoch = leader.epochs.refresh()
    leader.services.reconcile.look(epoch, lambda: True)
    world.advance(2.1)
    return leader.services.reconcile.look_again(epoch)


def _lose(world: World, number: int = 0) -> None:
    """A session's place is gone from Redis, the run's mark says that Redis heard of it."""
    epoch = world.leaders[0].epochs.refresh()
    world.store.heard([run for run, session in world.accepted.items() if session == world.sessions[number]], epoch)
    snapshot = world.redis.snapshot()
    world.broker.cancel(epoch, [world.sessions[number]])
    assert _place(world, number) is Place.IDLE
    assert snapshot


def test_a_run_that_redis_forgot_comes_back(make_world: MakeWorld) -> None:
    """Fault W4 of queues: a queued run in no list, for ever."""
    world = make_world()
    run = world.submit(world.sessions[0]).run
    _lose(world)
    assert _lap(world) == 1
    assert _place(world) is Place.READY
    assert world.leaders[0].services.reconcile.look_again(world.leaders[0].epochs.current()) == 0
    world.workers["w1"].claim()
    world.workers["w1"].start()
    assert _status(world, run.id) is RunStatus.RUNNING


def test_what_found_its_place_meanwhile_is_no_repair(make_world: MakeWorld) -> None:
    """HN19: an enqueue in flight, or a claim, looks misplaced for a moment."""
    world = make_world()
    accepted = world.submit(world.sessions[0])
    _lose(world)
    leader = world.leaders[0]
    epoch = leader.epochs.refresh()
    leader.services.reconcile.look(epoch, lambda: True)
    world.submit(world.sessions[0])
    world.advance(2.1)
    assert leader.services.reconcile.look_again(epoch) == 0
    assert _place(world) is Place.READY
    assert _status(world, accepted.run.id) is RunStatus.QUEUED


def test_another_run_starts_the_doubt_anew(make_world: MakeWorld) -> None:
    world = make_world()
    first = world.submit(world.sessions[0]).run
    world.submit(world.sessions[0])
    _lose(world)
    leader = world.leaders[0]
    epoch = leader.epochs.refresh()
    leader.services.reconcile.look(epoch, lambda: True)
    world.store.cancel(first.id, None, by="test")
    world.advance(2.1)
    assert leader.services.reconcile.look_again(epoch) == 0, "not the same run twice"
    world.advance(2.1)
    assert leader.services.reconcile.look_again(epoch) == 1


def test_holds_that_redis_forgot_come_back_and_end(make_world: MakeWorld) -> None:
    world = make_world()
    world.submit(world.sessions[0])
    world.store.hold_session(world.sessions[0], None, HoldReason.BACKOFF, until_in=5 * SECOND)
    _lose(world)
    assert _lap(world) == 1
    assert _place(world) is Place.HELD
    world.advance(5.0)
    world.lead(0, "promote")
    assert _place(world) is Place.READY


def test_a_hold_that_sql_ended_does_not_stay_in_redis(make_world: MakeWorld) -> None:
    world = make_world()
    run = world.submit(world.sessions[0]).run
    world.store.heard([run.id], world.leaders[0].epochs.refresh())
    world.store.hold_session(world.sessions[0], None, HoldReason.PAUSED, until_in=None)
    _lap(world)
    assert _place(world) is Place.HELD
    world.store.unhold_session(world.sessions[0], None, HoldReason.PAUSED)
    assert _lap(world) == 1
    assert _place(world) is Place.READY


def test_an_owner_that_redis_forgot_gets_its_lease_back(make_world: MakeWorld) -> None:
    world = make_world()
    world.submit(world.sessions[0])
    world.workers["w1"].claim()
    world.workers["w1"].start()
    world.submit(world.sessions[0])
    token = world.workers["w1"].entries[world.sessions[0]].claimed.token
    epoch = world.leaders[0].epochs.refresh()
    world.broker.release(epoch, [Release(world.sessions[0], token, ReadyClass.INTERACTIVE)])
    assert _place(world) is Place.READY
    leader = world.leaders[0]
    leader.services.reconcile.look(epoch, lambda: True)
    world.advance(2.1)
    world.workers["w1"].mark()
    assert leader.services.reconcile.look_again(epoch) == 1
    assert _place(world) is Place.LEASED
    assert world.broker.leases(epoch, [world.sessions[0]])[0].token == token


def test_a_delayed_run_that_redis_forgot_is_due_all_the_same(make_world: MakeWorld) -> None:
    world = make_world()
    run = world.submit(world.sessions[0], delay=4, heard=False).run
    world.lead(0, "reconcile")
    world.lead(0, "promote")
    assert world.store.run(run.id, None).deferred
    world.advance(4.1)
    world.lead(0, "promote")
    assert not world.store.run(run.id, None).deferred
    assert _place(world) is Place.READY


def test_promotion_may_be_repeated_and_interrupted(make_world: MakeWorld) -> None:
    """HN3: the entry stays listed until SQL has cleared it and the session has its place."""
    for call in ("promote", "ensure", "undue"):
        world = make_world()
        run = world.submit(world.sessions[0], delay=1).run
        world.advance(1.1)
        for port in (world.leaders[0].store, world.leaders[0].broker):
            port.fails.add(call)
        world.lead(0, "promote")
        world.lead(1, "promote")
        assert not world.store.run(run.id, None).deferred, call
        assert _place(world) is Place.READY, call
        epoch = world.leaders[0].epochs.refresh()
        assert world.broker.tick(epoch, limit=10).due == (), call


def test_a_promoted_run_does_not_overtake(make_world: MakeWorld) -> None:
    world = make_world()
    delayed = world.submit(world.sessions[0], delay=1).run
    prompt = world.submit(world.sessions[0]).run
    world.advance(1.1)
    world.lead(0, "promote")
    world.workers["w1"].claim()
    world.workers["w1"].start()
    assert _status(world, prompt.id) is RunStatus.RUNNING
    assert _status(world, delayed.id) is RunStatus.QUEUED


def test_a_cancelled_delayed_run_leaves_no_entry(make_world: MakeWorld) -> None:
    world = make_world()
    run = world.submit(world.sessions[0], delay=1).run
    world.store.cancel(run.id, None, by="test")
    world.advance(1.1)
    world.lead(0, "promote")
    assert world.broker.tick(world.leaders[0].epochs.refresh(), limit=10).due == ()
    assert _status(world, run.id) is RunStatus.CANCELLED


def test_the_relay_takes_what_its_submit_never_told(make_world: MakeWorld) -> None:
    world = make_world()
    run = world.submit(world.sessions[0], heard=False).run
    world.lead(0, "relay")
    assert _place(world) is Place.IDLE, "younger than two seconds: its submit's business"
    world.advance(2.1)
    world.lead(0, "relay")
    assert _place(world) is Place.READY
    leader = world.leaders[0]
    assert leader.services.relay(leader.epochs.current()) == 0, "heard once"
    assert _status(world, run.id) is RunStatus.QUEUED


def test_the_relay_repeats_what_was_refused(make_world: MakeWorld) -> None:
    world = make_world()
    world.submit(world.sessions[0], heard=False)
    world.advance(2.1)
    leader = world.leaders[0]

    def refuse() -> None:
        raise Backpressure("over maxmemory")

    leader.broker.before["enqueue"] = refuse
    with pytest.raises(Backpressure):
        leader.services.relay(leader.epochs.current())
    assert leader.services.relay(leader.epochs.current()) == 1
    assert _place(world) is Place.READY


def test_caps_count_what_runs_and_what_is_about_to(make_world: MakeWorld) -> None:
    """HN18: a session that is claimed and not yet started keeps its place in the count."""
    world = make_world()
    for session in world.sessions:
        world.submit(session)
    world.workers["w1"].claim(want=2)
    counted = Counted()
    caps = RecomputeCaps(world.store, world.broker, counted)
    epoch = world.leaders[0].epochs.refresh()
    workspace = world.store.run(next(iter(world.accepted)), None).workspace_id
    assert len(world.broker.active([of_workspace(workspace)])[0]) == 2
    assert (caps(epoch), caps(epoch), caps(epoch)) == (0, 0, 0), "the broker leases them"
    assert len(world.broker.active([of_workspace(workspace)])[0]) == 2


def test_caps_forget_what_runs_nowhere_only_when_it_is_missing_twice(make_world: MakeWorld) -> None:
    world = make_world()
    world.submit(world.sessions[0])
    workspace = world.store.run(next(iter(world.accepted)), None).workspace_id
    world.redis.client.sadd(f"oah:{{0}}:active:ws:{workspace}", "ses_gone")
    counted = Counted()
    caps = RecomputeCaps(world.store, world.broker, counted)
    epoch = world.leaders[0].epochs.refresh()
    assert caps(epoch) == 0
    assert caps(epoch) == 1
    assert world.broker.active([of_workspace(workspace)])[0] == []
    assert counted.counts[("oah_reconcile_repairs_total", "cap")] == 1


def test_caps_of_sql_reach_the_broker(make_world: MakeWorld) -> None:
    world = make_world()
    workspace = world.store.workspaces()[0]
    world.store.update_workspace(workspace.id, {"max_active_runs": 1})
    epoch = world.leaders[0].epochs.refresh()
    RecomputeCaps(world.store, world.broker, Counted())(epoch)
    for session in world.sessions:
        world.submit(session)
    world.workers["w1"].claim(want=3)
    assert len(world.workers["w1"].entries) == 1
    world.broker.limits(epoch, [WorkspaceLimit(workspace.id, 1, None)])


def test_departed_workers_are_forgotten_only_after_their_sessions_were_recovered(make_world: MakeWorld) -> None:
    """The record that recovery needs is never pruned before it was used."""
    world = make_world()
    world.submit(world.sessions[0])
    world.workers["w1"].claim()
    world.workers["w1"].start()
    gone = world.workers["w1"].id
    world.redis.client.zadd("oah:{g}:workers", {gone: 1})
    forget = ForgetWorkers(world.store, world.broker, Counted())
    assert world.broker.departed() == [gone]
    assert forget() == 0
    world.kill("w1", known_dead=True)
    assert forget() == 1
    assert world.broker.departed() == []
