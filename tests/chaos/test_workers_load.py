"""The main job at load: many sessions, five runs each, two workers; without faults, and with SIGKILL at random.

``OAH_CHAOS_SESSIONS`` says how many sessions (60, in full 200), ``OAH_CHAOS_SEED`` repeats a story of kills,
``OAH_CHAOS_STOPS=1`` stops processes as well (by itself, without a deadline for CI: a stopped worker costs its lease).
"""

import os
import random
import time
from collections.abc import Iterator

import pytest

from tests.support.arena import Arena, Killer, Row, ledger_line, open_arena
from tests.support.pace import FULL
from tests.support.servers_sql import PostgresServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]

SESSIONS = int(os.environ.get("OAH_CHAOS_SESSIONS") or (200 if FULL else 60))
RUNS = 5


@pytest.fixture
def arena(postgres_server: PostgresServer) -> Iterator[Arena]:
    env = {"OAH_CONTROLLER__LEADER_LEASE_SECONDS": "4", "OAH_CONTROLLER__LEADER_RENEW_SECONDS": "1"}
    env |= {"OAH_STALE_RUN_RECOVERY_MAX_ATTEMPTS": "50"}
    with open_arena(postgres_server, workers=2, slots=8, env=env) as opened:
        yield opened


def _work(arena: Arena, chance: random.Random) -> list[str]:
    """Half of the sessions a shell that stays warm, half the ledger agent; every fifth run of a shell is pure shell."""
    sessions = [(arena.session("shell" if n % 2 else "ledger"), bool(n % 2)) for n in range(SESSIONS)]
    items = []
    for number in range(RUNS):
        for session, is_shell in sessions:
            seconds = chance.uniform(0.02, 0.2)
            if not is_shell:
                items.append((session, f"{seconds:.3f} grandchild" if chance.random() < 0.2 else f"{seconds:.3f}"))
            elif chance.random() < 0.2:
                items.append((session, f'echo "turn {number} $((6 * 7)) $OAH_RUN_ID"'))
            else:
                items.append((session, ledger_line(seconds)))
    return arena.submit_all(items)


def _report(arena: Arena, what: str, began: float, *more: str) -> None:
    starts = arena.sql("SELECT count(*) AS runs, sum(attempt) AS starts, max(attempt) AS most FROM runs")[0]
    print(f"{what}: {time.monotonic() - began:.1f} s, {starts}", *more)


def test_without_faults_every_run_completes_once(arena: Arena) -> None:
    began = time.monotonic()
    runs = _work(arena, random.Random(1))
    rows = arena.wait_done(*runs, within=180)
    _report(arena, f"{SESSIONS} x {RUNS} without faults", began)
    assert _unlike(rows) == [], arena.story(*[row["id"] for row in rows if row["attempt"] != 1][:3])
    assert {row["attempt"] for row in rows} == {1}, arena.story(*[row["id"] for row in rows if row["attempt"] != 1][:3])
    for row in rows:
        if row["input"].startswith("echo"):
            assert row["result"].endswith(f"42 {row['id']}\n"), row["result"]
    arena.check()


def test_with_sigkill_at_random_nothing_is_lost_doubled_or_stuck(arena: Arena) -> None:
    seed = int(os.environ.get("OAH_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"seed {seed}: OAH_CHAOS_SEED={seed} OAH_CHAOS_SESSIONS={SESSIONS}")
    killer = Killer(arena.fleet, seed, stops=os.environ.get("OAH_CHAOS_STOPS") == "1")
    began = time.monotonic()
    runs = _work(arena, killer.chance)
    left = len(runs)
    while left > len(runs) // 20:
        killer.step()
        goal, until = left - len(runs) // 12, time.monotonic() + 5
        while left > goal and time.monotonic() < until:
            left = _left(arena)
    killer.revive()
    rows = arena.wait_done(*runs, within=180)
    _report(arena, f"{SESSIONS} x {RUNS} with kills", began, str(killer.harmed))
    assert _unlike(rows) == [], arena.story(*[row["id"] for row in rows if row["status"] != "completed"][:3])
    arena.check()


def _left(arena: Arena) -> int:
    rows = arena.sql("SELECT count(*) AS n FROM pg_sleep(0.2), runs WHERE status IN ('queued', 'running')")
    return int(rows[0]["n"])


def _unlike(rows: list[Row]) -> list[str]:
    """Runs that did not complete, and why."""
    return [f"{row['id']}: {row['error_code']} {row['error_message']}" for row in rows if row["status"] != "completed"]
