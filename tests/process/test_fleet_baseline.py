"""Redis returns to its baseline, what has aged out goes, letters are bounded: nothing grows with what a fleet has done.

What may remain is bounded by configuration: `epoch`, `seq`, `rings` (a field per lane and class), `ws:…` (per
workspace), `lanes` and `wake:…` (per lane, hints), `workers`, `worker:…`, `claim:…` and `control:…` (per incarnation
that lives), `leader`, and the queue of maintenance jobs (`rq:…`).
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import pytest

from tests.support.arena import Arena, open_arena
from tests.support.servers_sql import PostgresServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

SESSIONS, RUNS = 45, 225
MOMENT = 3 / 86_400
"""Days after which events and recordings go: no test waits for two weeks."""
INCARNATION = re.compile(r"(worker-\d)\.[0-9a-z]+")
HINTS = re.compile(r":(wake|control|lanes|leader|claim)\b|^rq:")
"""Come and go with the moment, as hints do; each bounded as said above."""
BOUNDED = re.compile(
    r"^(oah:\{0\}:(epoch|seq|rings|ws:[\w-]+|lanes|wake:.+|claim:worker-\d)"
    r"|oah:\{g\}:(workers|worker:worker-\d|control:worker-\d|leader|served)|rq:.+)$"
)


@pytest.fixture(scope="module")
def arena(postgres_server: PostgresServer) -> Iterator[Arena]:
    env = {"OAH_WORKER__HEARTBEAT_SECONDS": "1", "OAH_CONTROLLER__AUDIT_SECONDS": "1"}
    env |= {"OAH_RETENTION__EVERY_SECONDS": "1", "OAH_RETENTION__BATCH_ROWS": "50"}
    env |= {"OAH_RETENTION__EVENTS_DAYS": f"{MOMENT:f}", "OAH_RETENTION__RECORDINGS_DAYS": f"{MOMENT:f}"}
    env |= {"OAH_LIMITS__DEAD_LETTERS": "2"}
    with open_arena(postgres_server, workers=2, slots=8, env=env) as opened:
        yield opened


def keys(arena: Arena) -> set[str]:
    """All keys, incarnations by the names of their workers."""
    found = {key.decode() for key in arena.redis.client().keys("*")}
    assert len({name for name in found if ":worker:" in name}) <= 2 * len(arena.fleet.pids)
    return {INCARNATION.sub(r"\1", name) for name in found}


def lasting(arena: Arena) -> set[str]:
    return {key for key in keys(arena) if not HINTS.search(key)}


def back_at(arena: Arena, before: set[str]) -> bool:
    assert lasting(arena) == before
    return True


def work(arena: Arena, sessions: int, runs: int) -> None:
    """Runs of several kinds, some delayed, some cancelled, some failing; every session is closed afterwards."""
    agents = ("noop", "exec", "shell")
    names = [arena.session(agents[n % len(agents)]) for n in range(sessions)]
    ids = arena.submit_all([(names[n % sessions], "true" if n % 7 else "false") for n in range(runs)])
    ids += [arena.submit(name, "true", delay=1) for name in names[:5]]
    for run in ids[::25]:
        arena.fleet.client.cancel(run)
    arena.wait_done(*ids, within=90)
    for name in names:
        arena.fleet.client.close_session(name)


def test_redis_returns_to_its_baseline(arena: Arena) -> None:
    work(arena, 3, 6)
    eventually(lambda: not arena.owners(), within=30, every=0.2, what="no agent is kept")
    before = lasting(arena)
    work(arena, SESSIONS, RUNS)
    eventually(lambda: not arena.owners(), within=30, every=0.2, what="no agent is kept")
    eventually(lambda: back_at(arena, before), within=30, every=0.2)
    strange = {key for key in keys(arena) if not BOUNDED.match(key)}
    assert not strange

    old = {row["id"] for row in arena.fleet.client.workers()}
    arena.fleet.kill("worker-1")
    arena.fleet.signal("worker-2", signal.SIGTERM)
    arena.fleet.wait_exit("worker-2", within=30)
    for name in ("worker-1", "worker-2"):
        arena.fleet.restart(name)
    arena.fleet.wait_workers()
    work(arena, 3, 6)

    def forgotten() -> bool:
        left = {key.decode() for key in arena.redis.client().keys("*") if any(name in key.decode() for name in old)}
        assert not left, "of the dead"
        return True

    eventually(forgotten, within=30, every=0.2)
    eventually(lambda: back_at(arena, before), within=30, every=0.2)


def test_what_has_aged_out_is_gone_while_the_fleet_works(arena: Arena) -> None:
    """After the other test's runs, or its own; never what belongs to a run that goes on."""
    client = arena.fleet.client
    session = arena.session("shell")
    arena.wait_done(arena.submit(session, "echo old"), within=30)
    long = arena.submit(session, "sleep 8; echo new")
    arena.wait(lambda: arena.run(long)["status"] == "running", long, within=30, what="it runs")

    def only_its_own() -> bool:
        left = {(row["run_id"], row["type"]) for row in arena.sql("SELECT run_id, type FROM run_events")}
        assert {run for run, _ in left} == {long}
        assert left >= {(long, "run.queued"), (long, "run.started")}
        assert not arena.sql("SELECT 1 FROM run_attempts WHERE recording_blob IS NOT NULL")
        return True

    eventually(only_its_own, within=30, every=0.2)
    stored = [path for path in (arena.fleet.data_dir / "blobs").rglob("*") if path.is_file()]
    assert not [path for path in stored if long not in str(path)], "files of what is over"
    [oldest] = arena.sql("SELECT min(number) AS number FROM run_events WHERE session_id = %s", session)
    first = next(iter(client.stream(session, after=1, timeout=20)))
    assert (first.type, first.number) == ("reset", oldest["number"] - 1), "a reader is told that something is gone"
    arena.wait_done(long, within=30)
    assert "new" in client.result(long)["output"]


def test_the_leader_keeps_the_bound_of_dead_letters_and_says_so(arena: Arena) -> None:
    """What a crash between a burial and its eviction leaves, too: these rows nobody has buried through the store."""
    session = arena.session("noop")
    for number in range(4):
        arena.sql(
            "INSERT INTO dead_letters (id, workspace_id, kind, subject, session_id, code, reason, first_at, last_at)"
            " VALUES (%s, 'default', 'message', %s, %s, 'lost', 'r', now(), clock_timestamp()) RETURNING id",
            *(f"dl_{number}", f"m{number}", session),
        )

    def bounded() -> bool:
        assert [each["id"] for each in arena.fleet.client.dead_letters()] == ["dl_3", "dl_2"]
        return True

    eventually(bounded, within=30, every=0.2)
    rows = arena.sql("SELECT subject FROM audit WHERE action = 'dead_letter.evicted' ORDER BY id")
    assert [row["subject"] for row in rows] == ["dl_0", "dl_1"]
    assert arena.fleet.client.session(session)["event_seq"] == 2, "an event each"
