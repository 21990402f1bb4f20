"""Who gets the slots: the real scripts and the real policy under load, in simulated time (benchmarks/fairness.py)."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from benchmarks.fairness import Pool, classes, flood, p95, weights
from oah.core.model.group import ALL, of_profile
from oah.core.model.ids import EpochId, WorkspaceId
from oah.core.model.run import ReadyClass
from oah.ports.broker import Broker, GroupCap, WorkspaceLimit
from tests.support.servers_redis import open_epoch


def test_ten_runs_beside_a_hundred_thousand_of_another_workspace(valkey_server: Any) -> None:
    """8 slots, runs of 1 s: the small workspace waits for its turn, not for the flood. And a claim costs what it always
    does."""
    valkey_server.reset()
    with closing(valkey_server.broker()) as broker:
        pool = Pool(broker, open_epoch(broker))
        found = flood(pool, big=100_000, small=10)
        assert found["p95"] < 3.0, found
        assert pool.claim_seconds / pool.claims < 0.05, "a claim in a full queue"


def test_a_flood_on_every_server(broker: Broker, epoch: EpochId) -> None:
    assert flood(Pool(broker, epoch), big=400, small=10)["p95"] < 3.0


def test_weights_one_to_three(real_server: Any) -> None:
    with closing(real_server.broker()) as broker:
        got = weights(Pool(broker, open_epoch(broker)), {"one": 1, "three": 3}, seconds=60)
        assert got["three"] == pytest.approx(3, rel=0.1), got


def test_no_class_starves_and_shares_follow_the_weights(real_server: Any) -> None:
    """Under weights 8, 4, 1: background never waits longer than a few of its turns at 8 starts a second."""
    with closing(real_server.broker()) as broker:
        found = classes(Pool(broker, open_epoch(broker)), seconds=60)
        starts = {name: facts["starts"] for name, facts in found.items()}
        assert starts["interactive"] / starts["subagent"] == pytest.approx(2, rel=0.2), found
        assert starts["subagent"] / starts["background"] == pytest.approx(4, rel=0.25), found
        assert max(facts["longest_gap"] for facts in found.values()) < 6.0, found


def test_caps_hold_at_every_moment_and_leave_no_slot_idle(real_server: Any) -> None:
    with closing(real_server.broker()) as broker:
        epoch = open_epoch(broker)
        pool = Pool(broker, epoch)
        broker.limits(epoch, [WorkspaceLimit(WorkspaceId("capped"), max_active=2), WorkspaceLimit(WorkspaceId("free"))])
        broker.caps(epoch, [GroupCap(of_profile("shell"), 6), GroupCap(ALL, 7)])
        for name in ("capped", "free"):
            pool.submit(name, 300)
        started = pool.run(until=30)
        assert (pool.peak["capped"], pool.peak[""]) == (2, 6)
        assert sum(1 for start in started if start.workspace == "capped") == pytest.approx(60, rel=0.1)
        assert len(started) == pytest.approx(6 * 30, rel=0.1), "what the caps allow is used"


def test_priorities_start_first_and_never_cost_another_workspace(broker: Broker, epoch: EpochId) -> None:
    pool = Pool(broker, epoch)
    pool.submit("loud", 100)
    pool.submit("quiet", 40)
    pool.run(until=2)
    pool.submit("loud", 8, priority=50)
    later = pool.run(until=10)
    urgent = [start for start in later if start.submitted == 2.0]
    assert len(urgent) == 8 and p95(start.waited for start in urgent) < 3.0
    got = Counter(start.workspace for start in later if start.at < 6)
    assert abs(got["loud"] - got["quiet"]) <= 4, "half of the slots each, as before"


def test_a_suspect_class_is_looked_at_in_its_turn(broker: Broker, epoch: EpochId) -> None:
    """Suspects too, behind a flood of others."""
    pool = Pool(broker, epoch)
    pool.submit("ws", 150)
    pool.submit("ws", 3, ReadyClass.SUSPECT)
    started = pool.run(until=12)
    assert sum(1 for start in started if start.ready_class is ReadyClass.SUSPECT) == 3
