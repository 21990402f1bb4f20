"""A rolling restart of a pool under load, with real workers and a supervisor that starts what has drained."""

import time
from collections.abc import Iterator

import pytest

from tests.support.arena import Arena, ledger_line, open_arena, writers
from tests.support.servers_sql import PostgresServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

WORKERS, SESSIONS = 6, 8


@pytest.fixture
def arena(postgres_server: PostgresServer) -> Iterator[Arena]:
    env = {"OAH_WORKER__HEARTBEAT_SECONDS": "1", "OAH_CONTROLLER__TICK_SECONDS": "0.2"}
    env |= {"OAH_WORKER__CHECK_PROFILES": "off"}  # looking for programs is most of a start
    with open_arena(postgres_server, workers=WORKERS, slots=2, env=env) as opened:
        yield opened


def test_six_workers_under_load_are_restarted_without_a_run_lost_counted_or_out_of_order(arena: Arena) -> None:
    client = arena.fleet.client
    sessions = [arena.session("ledger" if number % 2 else "shell") for number in range(SESSIONS)]
    before = dict(arena.fleet.pids)
    runs: list[str] = []

    def load() -> None:
        """Another run for each session: shells stay warm, ledgers are programs of one run."""
        items = [(s, "1" if number % 2 else ledger_line(1)) for number, s in enumerate(sessions)]
        runs.extend(arena.submit_all(items))

    client.cordon("worker-6", for_seconds=3600)
    began = time.monotonic()
    with arena.fleet.supervised() as codes:
        load()
        rollout = client.restart_pool("default", batch=3, deadline_seconds=10, settle_seconds=0.2)
        while client.rollout(rollout["id"])["state"] == "running":
            left = arena.sql("SELECT count(*) AS n FROM pg_sleep(0.3), runs WHERE status = 'queued'")[0]["n"]
            if left < SESSIONS:
                load()
            assert time.monotonic() - began < 90, (client.rollout(rollout["id"]), codes, arena.fleet.report())
        ended = client.rollout(rollout["id"])
        rows = arena.wait_done(*runs, within=60)
    print(f"{len(runs)} runs, {WORKERS} workers restarted in {time.monotonic() - began:.1f} s")
    assert (ended["state"], ended["done"]) == ("completed", WORKERS), ended
    assert codes == [0] * WORKERS, "each was drained, once"
    after = arena.fleet.pids
    assert all(after[name] != pid for name, pid in before.items() if name.startswith("worker-"))
    assert all(member["successor"] for member in ended["members"])
    counted = [
        row["id"]
        for row in rows
        if (row["status"], row["recovery_attempts"], row["failed_attempts"]) != ("completed", 0, 0)
    ]
    assert not counted, arena.story(*counted[:5])
    reasons = {row["reason"] for row in arena.sql("SELECT DISTINCT reason FROM run_attempts")}
    assert reasons <= {"first", "released"}, "whoever started again was released"
    kept = client.worker("worker-6")
    assert kept["cordoned"] and kept["cordon"]["until"], "in its next life, too"
    assert not arena.sql("SELECT 1 FROM run_attempts WHERE worker_id = %s", kept["id"]), "it has claimed nothing"
    client.uncordon("worker-6")
    eventually(lambda: not client.worker("worker-6")["cordoned"], within=30, what="it takes runs again")
    gone = {row["worker_id"] for row in arena.owners()} - {worker["id"] for worker in client.workers()}
    assert not gone and not writers(arena.ledger)
    arena.check()
