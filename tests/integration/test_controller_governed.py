"""Pauses and caps of SQL reach the broker: at once by the API, else by the leader, and before a rebuilt shard opens."""

from __future__ import annotations

import pytest

from oah.core.model.group import ALL, of_pool, of_profile
from oah.core.model.session import Place
from oah.errors import Unavailable
from oah.ports.telemetry import NullTelemetry
from oah.services.caps import KeepGoverned, RecomputeCaps
from tests.support.api import Switched
from tests.support.worlds import MakeWorld


def test_the_leader_tells_what_a_broker_that_was_away_has_missed(make_world: MakeWorld) -> None:
    world = make_world()
    epoch = world.leaders[0].epochs.refresh()
    broker = Switched(world.broker)
    governed = KeepGoverned(world.store, broker)
    assert governed(epoch) and not governed(epoch)
    world.submit(world.sessions[0])
    world.store.pause_group(ALL, by="key:1")
    broker.off()
    for _ in range(2):
        with pytest.raises(Unavailable):
            governed(epoch)
    broker.on()
    assert governed(epoch) and not governed(epoch)
    world.workers["w1"].claim(want=3)
    assert not world.workers["w1"].entries
    world.store.resume_group(ALL, by="key:1")
    assert governed(epoch)
    world.workers["w1"].claim(want=3)
    assert len(world.workers["w1"].entries) == 1


def test_a_flush_lifts_no_pause_and_no_cap(make_world: MakeWorld) -> None:
    world = make_world()
    lane = world.store.session(world.sessions[0], None).lane
    world.store.set_cap(of_profile(lane.profile), 1, by="key:1")
    for session in world.sessions:
        world.submit(session)
    world.redis.client.flushall()
    world.lead(0, "epoch")
    world.workers["w1"].claim(want=3)
    assert len(world.workers["w1"].entries) == 1, "the shard did not open before it knew"
    world.store.drop_cap(of_profile(lane.profile), by="key:1")
    world.store.pause_group(of_pool(lane.pool), by="key:1")
    RecomputeCaps(world.store, world.broker, NullTelemetry())(world.leaders[0].epochs.refresh())
    world.workers["w2"].claim(want=3)
    assert not world.workers["w2"].entries


def test_a_claim_of_what_is_paused_tells_the_broker_and_goes_back(make_world: MakeWorld) -> None:
    """Nobody has told it: the start has, and the session keeps its place."""
    world = make_world()
    epoch = world.leaders[0].epochs.refresh()
    world.submit(world.sessions[0])
    world.store.pause_group(ALL, by="key:1")
    worker = world.workers["w1"]
    worker.claim(want=1)
    assert len(worker.entries) == 1
    worker.start()
    assert not worker.entries
    assert world.broker.leases(epoch, [world.sessions[0]])[0].place is Place.READY
    worker.claim(want=1)
    assert not worker.entries, "it is not claimed again and again"
