"""A run that kills what executes it, beside fifteen that do no harm (HM1, B21): exactly the killer is set aside.

The killer takes its worker with it, or its PTY host, at every attempt. What runs beside it is lost with it and becomes
a suspect; a worker holds one suspect at a time, so from then on none of them shares a worker with the killer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.support.arena import Arena, first_long, ledger_line, open_arena
from tests.support.servers_sql import PostgresServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

WORKERS, SLOTS, INNOCENTS, MOST = 3, 6, 15, 3
# The agent is a child of the PTY host, which is a child of the worker.
KILLS = {
    "worker": "sleep 0.7; kill -9 $(cut -d' ' -f4 /proc/$PPID/stat); sleep 30",
    "host": "sleep 0.7; kill -9 $PPID; sleep 30",
}


@pytest.fixture(scope="module")
def arena(postgres_server: PostgresServer) -> Iterator[Arena]:
    env = {"OAH_WORKER__HEARTBEAT_SECONDS": "1", "OAH_STALE_RUN_RECOVERY_MAX_ATTEMPTS": str(MOST)}
    with open_arena(postgres_server, workers=WORKERS, slots=SLOTS, env=env) as opened:
        yield opened


def _supervised(arena: Arena, *runs: str, within: float) -> tuple[dict[str, dict[str, Any]], int]:
    """Until all are terminal, starting again what has died, as a supervisor does; the rows, and how many died."""
    died = 0

    def done() -> bool:
        nonlocal died
        for number in range(WORKERS):
            name = f"worker-{number + 1}"
            if name not in arena.fleet.pids:
                died += 1
                arena.fleet.restart(name)
        return not arena.sql(
            "SELECT 1 FROM runs WHERE id = ANY(%s) AND status IN ('queued', 'running', 'waiting_tool')", list(runs)
        )

    try:
        eventually(done, within=within, every=0.1, what="all are terminal")
    except AssertionError as error:
        error.add_note(arena.story(*runs))
        raise
    return {row["id"]: row for row in arena.sql("SELECT * FROM runs WHERE id = ANY(%s)", list(runs))}, died


@pytest.mark.parametrize("victim", KILLS)
def test_exactly_the_killer_is_set_aside(arena: Arena, victim: str) -> None:
    arena.only(*(f"worker-{number + 1}" for number in range(WORKERS)))
    sessions = [arena.session() for _ in range(INNOCENTS)]
    home = arena.session()
    innocents = arena.submit_all([(session, first_long(4, then=0.3)) for session in sessions])
    killer = arena.submit(home, KILLS[victim])
    behind = arena.submit(home, ledger_line(0.1))
    rows, died = _supervised(arena, killer, behind, *innocents, within=90)

    ended = rows[killer]
    assert (ended["status"], ended["recovery_state"]) == ("failed", "quarantined"), arena.story(killer)
    assert ended["recovery"]["reason"] == "max_attempts_exhausted"
    hit = [attempt["worker_id"] for attempt in arena.attempts(killer)]
    assert len(hit) == MOST + 1, "so often it was started, and no oftener"
    assert died == (MOST + 1 if victim == "worker" else 0)
    assert rows[behind]["status"] == "completed", "its session goes on without it"

    for run in innocents:
        row = rows[run]
        assert row["status"] == "completed", arena.story(run)
        assert row["recovery_attempts"] <= 1, f"lost with the killer once, never again\n{arena.story(run)}"
        lost = [each["worker_id"] for each in arena.attempts(run) if each["outcome"] == "worker_lost"]
        assert set(lost) <= set(hit), "who never shared a worker with it was not touched"
    assert any(rows[run]["recovery_attempts"] for run in innocents), "it had company"
    _check_suspects(arena, killer, *innocents)
    arena.check(*sessions)


def _check_suspects(arena: Arena, *runs: str) -> None:
    """No two attempts with a recovery behind them at the same time on the same worker."""
    rows = arena.sql(
        "SELECT worker_id, run_id, started_at, ended_at FROM run_attempts WHERE run_id = ANY(%s)"
        " AND reason = 'recovered' ORDER BY worker_id, started_at",
        list(runs),
    )
    assert rows
    for before, after in pairwise(rows):
        if before["worker_id"] == after["worker_id"]:
            assert before["ended_at"] <= after["started_at"], (before, after)
