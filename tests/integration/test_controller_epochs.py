"""Everything in Redis can vanish or go back in time (I9): flush, old snapshot, stalled and dying leaders."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from oah.adapters.sql.store import open_store
from oah.core.model.epoch import EpochState
from oah.core.model.ids import EpochId
from oah.core.model.run import RunStatus
from oah.core.model.session import HoldReason, Place
from oah.core.policy.epochs import Suspect, Suspicion, Trusted
from oah.errors import Rebuilding
from oah.ports.telemetry import NullTelemetry
from oah.services.epoch import EpochKeeper
from tests.model.stores import PostgresBehind, RedisBehind, SqliteBehind
from tests.model.world import LEASE, SECOND, World
from tests.support.servers_redis import REDIS_7, FakeServer, RealServer
from tests.support.worlds import MakeWorld, begun

L = LEASE / SECOND


def _status(world: World, run_id: str) -> RunStatus:
    return RunStatus(world.sql.rows(f"SELECT status FROM runs WHERE id = '{run_id}'")[0][0])


def _place(world: World, number: int) -> Place:
    return world.broker.leases(world.leaders[0].epochs.refresh(), [world.sessions[number]])[0].place


def _in_all_states(world: World) -> dict[str, str]:
    """Running, parked, queued, delayed, held; name → run."""
    world.submit(world.sessions[0])
    running = world.submit(world.sessions[1])
    parked = world.submit(world.sessions[2])
    worker = world.workers["w1"]
    worker.claim(want=3)
    worker.start()
    worker.settle(world.sessions[0])
    worker.settle(world.sessions[2], park=True)
    behind = world.submit(world.sessions[1])
    queued = world.submit(world.sessions[0])
    delayed = world.submit(world.sessions[0], delay=3)
    held = world.submit(world.sessions[3])
    world.store.hold_session(world.sessions[3], None, HoldReason.PAUSED, until_in=None)
    names = {"running": running, "parked": parked, "behind": behind, "queued": queued, "delayed": delayed, "held": held}
    return {name: accepted.run.id for name, accepted in names.items()}


def test_a_process_without_an_epoch_waits(make_world: MakeWorld) -> None:
    world = make_world()
    world.sql.execute("DELETE FROM dispatch_epochs")
    keeper = world.keeper()
    with pytest.raises(Rebuilding):
        keeper.current()
    assert keeper.check().decision == Suspect(Suspicion.FIRST)


def test_flush_with_runs_in_all_states(make_world: MakeWorld) -> None:
    """HB4: none interrupted, none doubled, none lost; HB3: what was queued is queued again."""
    world = make_world(sessions=4)
    runs = _in_all_states(world)
    before = world.leaders[0].epochs.current()
    world.flush()
    world.lead(0, "epoch", "sweep", "audit")
    assert world.leaders[0].epochs.current() != before
    assert world.broker.view().state is EpochState.OPEN
    assert [_place(world, n) for n in range(4)] == [Place.READY, Place.LEASED, Place.PARKED, Place.HELD]
    assert _status(world, runs["running"]) is RunStatus.RUNNING
    for worker in world.workers.values():
        worker.renew()
        worker.mark()
    assert sorted(world.workers["w1"].living()) == sorted([world.sessions[1], world.sessions[2]])
    world.advance(3.1)
    world.lead(0, "promote")
    assert world.sql.rows("SELECT count(*) FROM runs WHERE deferred")[0][0] == 0, "the delayed run is due again"
    world.check()


def test_a_flush_hurts_nobody_even_when_the_workers_are_slow(make_world: MakeWorld) -> None:
    """Every second a leader looks; the workers confirm to nobody for almost a lease after the flush."""
    world = make_world()
    run = world.submit(world.sessions[0]).run
    world.workers["w1"].claim()
    world.workers["w1"].start()
    world.flush()
    for _ in range(4):
        world.lead(0)
        world.advance(1.0)
    assert _status(world, run.id) is RunStatus.RUNNING
    world.workers["w1"].renew()
    world.advance(2.0)
    world.lead(0)
    assert _status(world, run.id) is RunStatus.RUNNING
    assert world.workers["w1"].living() == [run.session_id]


def test_the_dead_are_recovered_after_a_flush(make_world: MakeWorld) -> None:
    world = make_world()
    run = world.submit(world.sessions[0]).run
    world.workers["w1"].claim()
    world.workers["w1"].start()
    world.workers["w1"].entries.clear()
    world.flush()
    world.lead(0)
    world.advance(L - 0.5)
    world.lead(0)
    assert _status(world, run.id) is RunStatus.RUNNING, "the shard has not been open for a lease"
    world.advance(2.0)
    world.lead(0)
    assert _status(world, run.id) is RunStatus.QUEUED


def test_claims_wait_for_the_leases(make_world: MakeWorld) -> None:
    """HN17: while the shard is rebuilt nobody takes a session whose owner is not back yet."""
    world = make_world()
    world.submit(world.sessions[0])
    world.workers["w1"].claim()
    world.workers["w1"].start()
    world.submit(world.sessions[0])
    world.flush()
    claimed: list[int] = []

    def claim() -> None:
        world.workers["w2"].epochs.refresh()
        world.workers["w2"].claim()
        claimed.append(len(world.workers["w2"].entries))

    world.leaders[0].broker.before["restore"] = claim
    world.leaders[0].broker.before["open"] = claim
    world.lead(0, "epoch")
    assert claimed == [0, 0]
    assert _place(world, 0) is Place.LEASED


def test_the_oldest_come_first(make_world: MakeWorld) -> None:
    world = make_world(sessions=6)
    order = [4, 1, 5, 0, 3, 2]
    for number in order:
        world.submit(world.sessions[number])
        world.advance(1.0)
    world.flush()
    world.lead(0, "epoch")
    world.submit(world.sessions[0])
    taken = []
    for _ in order:
        world.workers["w1"].claim(want=1)
        taken += [s for s in world.workers["w1"].entries if s not in taken]
    assert taken == [world.sessions[number] for number in order]


@pytest.mark.parametrize("call", ["restore", "hold", "open", "ensure"])
@pytest.mark.parametrize("executed", [True, False])
def test_who_rebuilds_dies_midway_and_the_next_continues(make_world: MakeWorld, call: str, executed: bool) -> None:
    world = make_world(sessions=4)
    runs = _in_all_states(world)
    world.flush()
    broker = world.leaders[0].broker
    (broker.loses if executed else broker.fails).add(call)
    world.lead(0, "epoch")
    world.lead(1, "epoch", "reconcile")
    world.advance(2.1)
    world.lead(1, "look_again")
    assert world.broker.view().state is EpochState.OPEN
    assert [_place(world, n) for n in range(4)] == [Place.READY, Place.LEASED, Place.PARKED, Place.HELD]
    assert _status(world, runs["running"]) is RunStatus.RUNNING


def test_a_leader_that_dies_between_the_stores(make_world: MakeWorld) -> None:
    """SQL has the new epoch, Redis the old one: the next leader mints again, nobody stays locked out."""
    world = make_world()
    world.submit(world.sessions[0])
    world.flush()
    world.leaders[0].broker.fails.add("mint")
    world.lead(0, "epoch")
    world.lead(1, "epoch")
    assert isinstance(world.leaders[1].epochs.check().decision, Trusted)
    world.workers["w1"].epochs.refresh()
    world.workers["w1"].claim()
    assert len(world.workers["w1"].entries) == 1


def test_a_stalled_leader_does_not_overwrite_a_newer_epoch(make_world: MakeWorld) -> None:
    world = make_world()
    world.flush()
    world.leaders[0].store.before["mint_epoch"] = lambda: world.lead(1, "epoch")
    world.lead(0, "epoch")
    newest = world.store.current_epoch()
    assert newest == world.leaders[1].epochs.current()
    world.flush()
    world.leaders[0].broker.before["mint"] = lambda: world.lead(1, "epoch")
    world.lead(0, "epoch")
    assert world.broker.view().id == world.leaders[1].epochs.current() == world.store.current_epoch()


def test_the_epoch_moves_on_while_a_leader_compares(make_world: MakeWorld) -> None:
    """Read the old id in SQL, the new one in Redis: that is no reason to mint a third."""
    world = make_world()
    new = EpochId("epoch_by_another")

    def mint() -> None:
        assert world.store.mint_epoch(new, over=world.store.current_epoch())
        assert world.broker.mint(new, seen=world.broker.view().id)
        assert world.broker.open(new)

    world.leaders[0].broker.before["view"] = mint
    assert isinstance(world.leaders[0].epochs.check().decision, Trusted)
    assert world.leaders[0].epochs.current() == new


def test_data_of_another_deployment_is_unknown(make_world: MakeWorld) -> None:
    world = make_world()
    world.flush()
    assert world.broker.mint(EpochId("epoch_of_others"), seen=None)
    assert world.leaders[0].epochs.check().decision == Suspect(Suspicion.UNKNOWN)
    world.lead(0, "epoch")
    assert isinstance(world.leaders[0].epochs.check().decision, Trusted)


def test_an_older_epoch_is_left_behind(make_world: MakeWorld) -> None:
    world = make_world()
    world.remember()
    world.flush()
    world.lead(0, "epoch")
    world.bring_back()
    assert world.leaders[0].epochs.check().decision == Suspect(Suspicion.OLDER)


def test_an_old_snapshot_under_the_same_epoch_is_healed_by_reconcile(make_world: MakeWorld) -> None:
    """HB3, where the server hides that it restarted: yesterday's queues, today's work."""
    world = make_world()
    early = world.submit(world.sessions[0]).run
    world.remember()
    world.workers["w1"].claim()
    world.workers["w1"].start()
    late = world.submit(world.sessions[1]).run
    world.bring_back()
    assert [_place(world, 0), _place(world, 1)] == [Place.READY, Place.IDLE]
    world.lead(0, "epoch", "sweep", "audit", "reconcile")
    world.workers["w1"].renew()
    assert _place(world, 0) is Place.LEASED, "the owner's mark brings its lease back"
    world.advance(2.1)
    world.workers["w1"].renew()
    world.workers["w1"].mark()
    world.lead(0, "look_again")
    assert _place(world, 1) is Place.READY
    assert _status(world, early.id) is RunStatus.RUNNING
    world.workers["w2"].claim()
    world.workers["w2"].start()
    assert _status(world, late.id) is RunStatus.RUNNING
    world.check()


def test_a_renewal_may_use_the_id_in_redis_while_sql_is_away(make_world: MakeWorld) -> None:
    world = make_world()
    leader = world.leaders[0]
    keeper = EpochKeeper(leader.store, leader.broker, world.ids, NullTelemetry())  # type: ignore[arg-type]
    current = keeper.for_renewal(leader.broker)
    leader.store.fails.add("current_epoch")
    assert keeper.for_renewal(leader.broker) == current
    world.flush()
    leader.store.fails.add("current_epoch")
    with pytest.raises(Exception, match="current_epoch"):
        keeper.for_renewal(leader.broker)


def test_every_embedded_start_is_the_disaster_path(sqlite_template: Path, tmp_path: Path) -> None:
    """The process died with its in-process server; the next one finds SQL alone."""
    path = tmp_path / "oah.db"
    path.write_bytes(sqlite_template.read_bytes())
    with closing(open_store(f"sqlite:///{path}")) as store:
        before = FakeServer()
        world = begun(World(store, before.broker(), SqliteBehind(path), RedisBehind(before.client())))
        running = world.submit(world.sessions[0]).run
        world.workers["w1"].claim()
        world.workers["w1"].start()
        queued = world.submit(world.sessions[1]).run
        dead = world.workers["w1"].id

        after = FakeServer()
        again = World(store, after.broker(), SqliteBehind(path), RedisBehind(after.client()), sessions=0)
        again.lead(0)
        found = again.broker.leases(again.leaders[0].epochs.current(), world.sessions[:2])
        assert [each.place for each in found] == [Place.LEASED, Place.READY]
        recovered = again.leaders[0].services.recover.known_dead([dead], by="w1.next")
        assert [(each.owner.run_id, each.applied) for each in recovered] == [(running.id, True)]
        again.workers["w1"].claim(want=3)
        again.workers["w1"].start()
        assert _status(again, running.id) is _status(again, queued.id) is RunStatus.RUNNING


def test_a_server_that_restarted_from_its_snapshot_is_suspect(
    postgres_url: str, tmp_path: Path, redis7: RealServer
) -> None:
    """HB3, measured: Debian's Redis comes back with the right epoch and yesterday's queues. Its run id tells."""
    with closing(open_store(postgres_url)) as store, psycopg.connect(postgres_url, autocommit=True) as behind:
        world = begun(World(store, redis7.broker(), PostgresBehind(behind), RedisBehind(redis7.client())))
        epoch = world.store.current_epoch()
        early = world.submit(world.sessions[0]).run
        redis7.client().save()
        world.workers["w1"].claim()
        world.workers["w1"].start()
        late = world.submit(world.sessions[1]).run
        redis7.stop()
        redis7.start()
        world.redis.client = redis7.client()
        assert world.broker.view().id == epoch
        assert world.leaders[0].epochs.check().decision == Suspect(Suspicion.SERVER_CHANGED)
        world.lead(0)
        assert world.store.current_epoch() != epoch
        assert [_place(world, 0), _place(world, 1)] == [Place.LEASED, Place.READY]
        world.workers["w1"].renew()
        assert world.workers["w1"].living() == [world.sessions[0]]
        world.workers["w2"].epochs.refresh()
        world.workers["w2"].claim()
        world.workers["w2"].start()
        assert _status(world, early.id) is _status(world, late.id) is RunStatus.RUNNING
        world.check()


@pytest.fixture
def redis7() -> Iterator[RealServer]:
    """One of our own: it is restarted."""
    server = RealServer("redis7-restarted", REDIS_7)
    server.start()
    yield server
    server.remove()
