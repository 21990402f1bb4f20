"""Orderly ends, and runs that end their worker: drain, the second signal, restarts under load, poison, the default
policy of a lone process."""

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from oah.errors import Unavailable
from oah.testing.fleet import API, Fleet
from tests.support.arena import Arena, first_long, ledger_line, open_arena, writers
from tests.support.servers_sql import PostgresServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

GRACE = 3.0
KILL_THE_WORKER = "kill -9 $(cut -d' ' -f4 /proc/$PPID/stat); sleep 30"
"""The agent's parent is the PTY host, the host's is the worker."""


@pytest.fixture(scope="module")
def opened(postgres_server: PostgresServer) -> Iterator[Arena]:
    env = {"OAH_WORKER__HEARTBEAT_SECONDS": "1", "OAH_WORKER__DRAIN_GRACE_SECONDS": f"{GRACE:g}"}
    patient = {"worker-2": {"OAH_WORKER__DRAIN_GRACE_SECONDS": "600"}}
    with open_arena(postgres_server, workers=2, slots=4, env=env, own=lambda *_: patient) as arena:
        yield arena


@pytest.fixture
def arena(opened: Arena) -> Iterator[Arena]:
    """Both workers run; afterwards the judge has no objection and no agent is left over."""
    for name in ("worker-1", "worker-2"):
        if name not in opened.fleet.pids:
            opened.fleet.restart(name)
    opened.fleet.wait_workers()
    opened.only("worker-1", "worker-2")
    yield opened
    opened.check()


def ends(arena: Arena, worker: str, *runs: str, within: float = GRACE + 10) -> int:
    """Its exit code, after it was asked to end."""
    try:
        return arena.fleet.wait_exit(worker, within=within)
    except Unavailable as error:
        raise AssertionError(arena.story(*runs)) from error


def test_sigterm_lets_finish_and_gives_back_without_counting(arena: Arena) -> None:
    arena.only("worker-1")
    short = arena.submit(arena.session("shell"), ledger_line(1.5))
    long = arena.submit(arena.session("shell"), first_long(60, "grandchild"))
    warm = arena.submit(arena.session("shell"), ledger_line(0.05))
    for run in (short, long):
        arena.wait_lives(run)
    arena.wait_done(warm, within=15)
    arena.fleet.signal("worker-1", signal.SIGTERM)
    after = arena.submit(arena.session("ledger"), "0.1")
    arena.wait_done(short, within=15)
    arena.only("worker-2")
    assert ends(arena, "worker-1", short, long) == 0
    rows = arena.wait_done(short, long, after, within=30)
    assert [(row["status"], row["attempt"], row["recovery_attempts"]) for row in rows] == [
        ("completed", 1, 0),
        ("completed", 2, 0),
        ("completed", 1, 0),
    ], arena.story(short, long, after)
    assert [(each["reason"], each["outcome"]) for each in arena.attempts(long)] == [
        ("first", "released"),
        ("released", "completed"),
    ]
    assert not writers(arena.ledger)
    owned = [row for row in arena.owners() if row["worker_id"].startswith("worker-1")]
    assert owned == []


def test_the_second_sigterm_does_not_wait(arena: Arena) -> None:
    """Ten minutes of grace would be left."""
    arena.only("worker-2")
    run = arena.submit(arena.session("shell"), first_long(60, "grandchild"))
    arena.wait_lives(run)
    arena.only("worker-1")
    arena.fleet.signal("worker-2", signal.SIGTERM)
    eventually(lambda: any("drains" in line for line in arena.fleet.lines("worker-2")[-5:]), within=5, what="it drains")
    arena.fleet.signal("worker-2", signal.SIGTERM)
    began = time.monotonic()
    assert arena.fleet.wait_exit("worker-2", within=15) == 0
    print(f"gone {time.monotonic() - began:.1f} s after the second signal")
    [row] = arena.wait_done(run, within=20)
    assert (row["status"], row["attempt"], row["recovery_attempts"]) == ("completed", 2, 0), arena.story(run)


def test_a_drain_by_command_can_be_taken_back_and_fails_what_it_is_told_to_fail(arena: Arena) -> None:
    """Each command is heard within a second."""
    arena.only("worker-2")
    client = arena.fleet.client
    long = arena.submit(arena.session("shell"), ledger_line(3))
    doomed = arena.submit(arena.session("shell"), first_long(60, "grandchild"))
    for run in (long, doomed):
        arena.wait_lives(run)
    client.drain("worker-2")  # ten minutes, as its settings have it
    eventually(lambda: client.worker("worker-2")["draining"], within=1, what="it drains")
    client.uncordon("worker-2")
    eventually(lambda: not client.worker("worker-2")["draining"], within=1, what="it serves again")
    after = arena.submit(arena.session("ledger"), "0.1")
    arena.wait_done(after, within=15)
    client.drain("worker-2", deadline_seconds=0.5, then="wait")
    arena.wait_done(long, within=15)
    client.drain("worker-2", deadline_seconds=0.5, then="fail")
    assert ends(arena, "worker-2", doomed) == 0
    finished, failed = (arena.run(run) for run in (long, doomed))
    assert (finished["status"], finished["attempt"]) == ("completed", 1), arena.story(long)
    assert (failed["status"], failed["error_code"], failed["recovery_attempts"]) == ("failed", "worker_drained", 0)
    assert [each["worker_id"].partition(".")[0] for each in arena.attempts(after)] == ["worker-2"]
    assert not writers(arena.ledger)


def test_a_worker_restarted_five_times_under_load_counts_nothing_and_leaves_nothing(arena: Arena) -> None:
    sessions = [arena.session("ledger" if n % 2 else "shell") for n in range(12)]
    runs = arena.submit_all(
        [(s, "0.25" if n % 2 else ledger_line(0.25)) for _ in range(6) for n, s in enumerate(sessions)]
    )
    for number in range(5):
        goal = 9 * (number + 1)
        arena.wait(lambda goal=goal: _done(arena, runs) >= goal, *runs[:2], within=40, what=f"{goal} runs are done")
        arena.fleet.signal("worker-1", signal.SIGTERM)
        assert ends(arena, "worker-1", *[run for run in runs if arena.worker_of(run) == "worker-1"]) == 0
        arena.fleet.restart("worker-1")
        arena.fleet.wait_workers()
    rows = arena.wait_done(*runs, within=60)
    counted = [row["id"] for row in rows if (row["status"], row["recovery_attempts"]) != ("completed", 0)]
    assert not counted, arena.story(*counted)


def _done(arena: Arena, runs: list[str]) -> int:
    return int(arena.sql("SELECT count(*) AS n FROM runs WHERE status = 'completed' AND id = ANY(%s)", runs)[0]["n"])


def test_a_run_that_kills_its_worker_is_quarantined_and_its_neighbours_are_not(arena: Arena) -> None:
    arena.only("worker-1")
    poisoned = arena.session("shell")
    neighbours = [arena.submit(arena.session("shell"), first_long(60, then=0.1)) for _ in range(2)]
    for run in neighbours:
        arena.wait_lives(run)
    poison, behind = arena.submit(poisoned, KILL_THE_WORKER), arena.submit(poisoned, ledger_line(0.1))
    for death in range(4):
        assert arena.fleet.wait_exit("worker-1", within=30) == -signal.SIGKILL, arena.story(poison)
        assert arena.run(poison)["attempt"] == death + 1, arena.story(poison)
        arena.fleet.restart("worker-1")
    bad, *good = arena.wait_done(poison, behind, *neighbours, within=40)
    assert (bad["status"], bad["error_code"], bad["recovery_state"]) == ("failed", "worker_lost", "quarantined")
    assert (bad["attempt"], bad["recovery_attempts"]) == (4, 4)
    assert bad["recovery"]["reason"] == "max_attempts_exhausted"
    assert {row["status"] for row in good} == {"completed"}, arena.story(*neighbours)
    assert max(row["recovery_attempts"] for row in good) <= 1, "its neighbours die with it once"
    assert arena.fleet.client.recovery()["counts"]["quarantined"] == 1


def test_a_lone_process_fails_what_it_lost_unless_it_is_told_otherwise(start_fleet: Callable[..., Fleet]) -> None:
    """``memory://`` and SQLite: the default policy is ``fail``, and the queue goes on."""
    fleet = start_fleet(api_with_workers=True, redis_url="memory://", recovery=None)
    session = fleet.client.create_session("shell")["id"]
    run, behind = (fleet.client.submit(session, text)["id"] for text in ("sleep 60", "echo behind"))
    eventually(lambda: fleet.client.run(run)["status"] == "running", within=20, what="it runs")
    fleet.kill(API)
    fleet.restart(API)
    fleet.wait_ready()
    lost = fleet.client.wait(run, timeout=20)
    assert (lost["status"], lost["attempt"], lost["error"]["code"]) == ("failed", 1, "worker_lost"), lost
    assert lost["recovery"]["strategy"] == "fail"
    assert fleet.client.wait(behind, timeout=20)["status"] == "completed"
    assert fleet.client.result(behind)["output"] == "behind\n"
