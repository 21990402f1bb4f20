"""Two controllers and two workers that have little to do: who leads, who recovers, who wakes up."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from oah.testing import processes
from tests.support.arena import Arena, Own, first_long, open_arena
from tests.support.servers_redis import RealServer
from tests.support.servers_sql import PostgresServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

PROCESSES = ("api", "controller", "controller-2", "worker-1", "worker-2")
LEADER = "oah:{g}:leader"
LEADER_LEASE = 3.0


def named(_: Path, __: str, redis: RealServer) -> Own:
    """Every process calls its connections by its own name."""
    return {name: {"OAH_REDIS_URL": f"{redis.url}?client_name={name}"} for name in PROCESSES}


@pytest.fixture(scope="module")
def opened(postgres_server: PostgresServer) -> Iterator[Arena]:
    env = {"OAH_CONTROLLER__LEADER_LEASE_SECONDS": f"{LEADER_LEASE:g}", "OAH_CONTROLLER__LEADER_RENEW_SECONDS": "1"}
    with open_arena(postgres_server, workers=2, slots=2, controllers=2, own=named, env=env) as arena:
        yield arena


@pytest.fixture
def arena(opened: Arena) -> Iterator[Arena]:
    """Everybody lives."""
    for name in PROCESSES:
        if name not in opened.fleet.pids:
            opened.fleet.restart(name)
    opened.fleet.wait_workers()
    yield opened
    assert opened.unexplained() == []
    assert opened.violations() == []


def clients(arena: Arena) -> list[dict[str, str]]:
    """The server's clients by their own names."""
    rows = arena.redis.client().client_list()
    return [{str(key): str(value) for key, value in row.items()} for row in rows]


def leader(arena: Arena) -> str | None:
    """The name of the process that holds the leader lease."""
    holder = arena.redis.client().get(LEADER)
    if holder is None:
        return None
    pid = int(holder.decode().split(".")[-2])
    return next((name for name, each in arena.fleet.pids.items() if each == pid), "a dead one")


def test_a_token_that_a_stopped_worker_took_is_not_missed(arena: Arena) -> None:
    """The first in the line of those who block is stopped: the wake token goes to it, and the run to the other."""
    for stopped, other in (("worker-1", "worker-2"), ("worker-2", "worker-1")):
        session = arena.session("ledger")
        _block_again(arena, stopped)
        with processes.stopped(arena.fleet.pids[stopped]):
            _block_again(arena, other)
            run = arena.submit(session, "0.1")
            [row] = arena.wait_done(run, within=15)
        [attempt] = arena.attempts(run)
        assert attempt["worker_id"].startswith(other)
        assert row["started_at"] - row["queued_at"] < timedelta(seconds=2.5), arena.story(run)


def _block_again(arena: Arena, worker: str) -> None:
    """Nudge its ear, so that it comes last in the line."""
    worker_id = next(each["id"] for each in arena.fleet.client.workers() if each["name"] == worker)
    blocked = _blocked(arena, worker)
    arena.redis.client().rpush(f"oah:{{g}}:control:{worker_id}", "look")
    eventually(lambda: _blocked(arena, worker) not in (None, blocked), within=10, what=f"{worker} blocks again")


def _blocked(arena: Arena, worker: str) -> str | None:
    """Which blocking call it waits in now."""
    rows = [row for row in clients(arena) if row["name"] == worker and "b" in row["flags"]]
    return rows[0]["id"] + "/" + rows[0]["tot-cmds"] if len(rows) == 1 else None


def test_when_the_leader_dies_another_leads(arena: Arena) -> None:
    dead = eventually(lambda: leader(arena), within=15, what="somebody leads")
    began = time.monotonic()
    arena.fleet.kill(dead)
    due = arena.submit(arena.session("ledger"), "0.1", delay=0.5)
    other = eventually(lambda: (now := leader(arena)) not in (None, dead, "a dead one") and now, within=20)
    took = time.monotonic() - began
    print(f"{dead} died, {other} leads after {took:.1f} s")
    assert took < LEADER_LEASE + 1 + 2, "its lease, one contention, and what a busy machine needs"
    assert arena.wait_done(due, within=20)[0]["status"] == "completed"


def test_two_that_both_believe_to_lead_recover_every_run_once(arena: Arena) -> None:
    """The lease is taken away from each again and again, so that both act: the compare-and-set decides."""
    seen: set[str | None] = set()

    def take_away() -> bool:
        """Also the wait: each look takes the lease away."""
        seen.add(leader(arena))
        arena.redis.client().delete(LEADER)
        return seen >= {"controller", "controller-2"}

    eventually(take_away, within=30, every=0.2, what="both are up, and lead by turns")
    seen.clear()
    arena.only("worker-1")
    runs = [arena.submit(arena.session("shell"), first_long(30, "grandchild")) for _ in range(2)]
    for run in runs:
        arena.wait_lives(run)
    arena.only("worker-2")
    arena.fleet.kill("worker-1")

    def both_recover() -> bool:
        take_away()
        return all(arena.run(run)["recovery_attempts"] for run in runs)

    eventually(both_recover, within=40, every=0.2, what="both runs are recovered")
    assert seen >= {"controller", "controller-2"}, seen
    rows = arena.wait_done(*runs, within=30)
    assert [(row["status"], row["attempt"], row["recovery_attempts"]) for row in rows] == [("completed", 2, 1)] * 2
    assert [len(arena.events(run, "run.recovered")) for run in runs] == [1, 1], arena.story(*runs)
    eventually(lambda: leader(arena), within=15, what="one leads again")


def test_a_controller_that_stood_still_does_no_harm(arena: Arena) -> None:
    """Stopped while it leads, it wakes up behind its lease and finds another: nothing is recovered that lives."""
    first = eventually(lambda: leader(arena), within=15, what="somebody leads")
    run = arena.submit(arena.session("shell"), first_long(9))
    arena.wait_lives(run)
    with processes.stopped(arena.fleet.pids[first]):
        eventually(lambda: leader(arena) not in (None, first), within=20, what="another leads")
    [row] = arena.wait_done(run, within=40)
    assert (row["status"], row["attempt"]) == ("completed", 1), arena.story(run)
    assert first in arena.fleet.pids
