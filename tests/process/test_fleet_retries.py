"""Retries with real workers and agents that prove when they lived: order, time-outs as long as a lease, losses while a
session waits."""

from collections.abc import Iterator

import pytest

from tests.support.arena import Arena, ledger_line, open_arena
from tests.support.servers_sql import PostgresServer

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

LEASE = 6
SHORT = ledger_line(0.1)
FAILS_ONCE = f'if [ "$OAH_ATTEMPT" = 1 ]; then {SHORT}; (exit 3); else {SHORT}; fi'
RETRIES = {"max_retries": 3, "retry": {"initial_seconds": 3, "jitter": 0}}


@pytest.fixture(scope="module")
def arena(postgres_server: PostgresServer) -> Iterator[Arena]:
    options = {"OAH_WORKER__HEARTBEAT_SECONDS": "1", "OAH_WORKER__DRAIN_GRACE_SECONDS": "1"}
    with open_arena(postgres_server, workers=2, slots=12, lease_seconds=LEASE, env=options) as opened:
        yield opened


def abc(arena: Arena, agent: str, order: str) -> tuple[str, list[str]]:
    """A session with A, which fails once, B and C."""
    session = arena.session(agent)
    first = arena.submit(session, FAILS_ONCE, order=order, **RETRIES)
    return session, [first, *(arena.submit(session, SHORT) for _ in range(2))]


def starts(arena: Arena, session: str) -> list[tuple[str, int]]:
    """Who lived in the session, in the order in which they began."""
    rows = arena.sql(
        "SELECT a.run_id, a.attempt FROM run_attempts a JOIN runs r ON r.id = a.run_id WHERE r.session_id = %s"
        " ORDER BY a.started_at",
        session,
    )
    return [(row["run_id"], row["attempt"]) for row in rows]


def waits(arena: Arena, run: str) -> None:
    """Until its first attempt has failed."""
    arena.wait(lambda: arena.events(run, "run.retrying"), run, within=30, what="the first attempt has failed")


def check_order(arena: Arena, session: str, runs: list[str], order: str) -> None:
    a, b, c = runs
    expected = [(a, 1), (a, 2), (b, 1), (c, 1)] if order == "strict" else [(a, 1), (b, 1), (c, 1), (a, 2)]
    assert starts(arena, session) == expected, arena.story(*runs)
    row = arena.run(a)
    assert (row["status"], row["failed_attempts"], row["recovery_attempts"]) == ("completed", 1, 0)
    assert [each["reason"] for each in arena.attempts(a)] == ["first", "retried"]
    first, second = arena.attempts(a)
    assert (second["started_at"] - first["ended_at"]).total_seconds() >= 2.9, "the pause was kept"


def test_b22_and_b14_order_is_kept_and_a_time_out_of_a_lease_starts_nothing_twice(arena: Arena) -> None:
    """B14: the time-out of the runs is the lease, so the end of an attempt and the end of its lease come together."""
    late = []
    for _ in range(12):
        wish = {"timeout": LEASE, "max_retries": 1, "retry": {"initial_seconds": 0.2, "on": ["run_timeout"]}}
        late.append(arena.submit(arena.session("exec"), ledger_line(60), **wish))
    cases = [(*abc(arena, agent, order), order) for agent in ("shell", "exec") for order in ("strict", "skip_failed")]
    arena.wait_done(*[run for _, runs, _ in cases for run in runs], within=60)
    for session, runs, order in cases:
        check_order(arena, session, runs, order)
    warm = [arena.attempts(runs[0])[1]["agent"] for _, runs, order in cases if order == "strict"]
    assert warm == ["warm", "fresh"], "an interpreter waited with its session, a command ended"
    for row in arena.wait_done(*late, within=60):
        assert (row["status"], row["error_code"]) == ("timed_out", "run_timeout")
        assert (row["attempt"], row["failed_attempts"], row["recovery_attempts"]) == (2, 2, 0), arena.story(row["id"])
        assert [a["outcome"] for a in arena.attempts(row["id"])] == ["timed_out"] * 2
    arena.check()


def test_everything_in_redis_is_lost_while_sessions_wait(arena: Arena) -> None:
    cases = [(*abc(arena, agent, order), order) for agent in ("shell", "exec") for order in ("strict", "skip_failed")]
    for _, runs, _ in cases:
        waits(arena, runs[0])
    arena.redis.client().flushall()
    arena.wait_done(*[run for _, runs, _ in cases for run in runs], within=60)
    for session, runs, order in cases:
        check_order(arena, session, runs, order)
    arena.check()


def test_a_worker_is_killed_while_its_sessions_wait(arena: Arena) -> None:
    """One keeps a warm agent, which goes with it; the others are nobody's, and wait for nobody."""
    arena.only("worker-1")
    cases = [(*abc(arena, agent, order), order) for agent, order in (("shell", "strict"), ("exec", "strict"))]
    for _, runs, _ in cases:
        waits(arena, runs[0])
    arena.wait(
        lambda: [o for o in arena.owners() if o["parked"] and o["session_id"] == cases[0][0]],
        cases[0][1][0],
        within=15,
        what="its agent is parked",
    )
    arena.fleet.kill("worker-1")
    arena.only("worker-2")
    arena.wait_done(*[run for _, runs, _ in cases for run in runs], within=60)
    for session, runs, order in cases:
        check_order(arena, session, runs, order)
        assert arena.attempts(runs[0])[1]["agent"] == "fresh"
    arena.check()
