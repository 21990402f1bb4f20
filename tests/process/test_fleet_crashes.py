"""The crash points of a worker: at each line of a run's life the process dies, or an answer is lost.

Worker 1 reaches both stores through proxies that can lose one chosen answer; worker 2 is its successor.
"""

import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from oah.testing import processes
from tests.support.arena import Arena, Own, first_long, open_arena
from tests.support.proxy import Commits, Loss, Proxy, RedisReplies, Replies
from tests.support.servers_redis import RealServer
from tests.support.servers_sql import PostgresServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

VICTIM, OTHER = "worker-1", "worker-2"


class Once:
    """Of the replies that count, the first one that names something is lost."""

    def __init__(self, kind: type[RedisReplies] | type[Commits]) -> None:
        self._kind = kind
        self.word: bytes | None = None

    def __call__(self) -> Replies:
        return _Choosing(self, self._kind())

    def chosen(self, piece: bytes) -> bool:
        if self.word is None or self.word not in piece:
            return False
        self.word = None
        return True


class _Choosing:
    def __init__(self, once: Once, inner: Replies) -> None:
        self._once, self._inner = once, inner

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        for piece, counts in self._inner.feed(data):
            yield piece, counts and self._once.chosen(piece)


class Wire:
    """The victim's way to one store."""

    def __init__(self, listen: Path, target: Path, kind: type[RedisReplies] | type[Commits]) -> None:
        self.once = Once(kind)
        self.proxy = Proxy(listen, target, replies=self.once).start()

    def lose(self, word: str, how: Loss = Loss.CUT) -> None:
        """The next reply with this word."""
        self.proxy.lose(every=1, how=(how,))
        self.once.word = word.encode()

    @property
    def lost(self) -> bool:
        """Whether it was lost."""
        return self.once.word is None


class Wires:
    redis: Wire
    sql: Wire

    def __call__(self, directory: Path, url: str, redis: RealServer) -> Own:
        """Lay them; what the victim is told."""
        self.redis = Wire(directory / "r", redis.socket, RedisReplies)
        parts = conninfo_to_dict(url)
        (directory / "p").mkdir()
        name = f".s.PGSQL.{parts.get('port') or 5432}"
        self.sql = Wire(directory / "p" / name, Path(str(parts["host"])) / name, Commits)
        database = url.replace(str(parts["host"]), str(directory / "p"))
        return {VICTIM: {"OAH_REDIS_URL": self.redis.proxy.url, "OAH_DATABASE_URL": database}}


wires = Wires()


@pytest.fixture(scope="module")
def opened(postgres_server: PostgresServer) -> Iterator[Arena]:
    env = {"OAH_WORKER__HEARTBEAT_SECONDS": "1", "OAH_WORKER__DRAIN_GRACE_SECONDS": "1"}
    try:
        with open_arena(postgres_server, workers=2, slots=4, env=env, own=wires) as arena:
            yield arena
    finally:
        for wire in (wires.redis, wires.sql):
            wire.proxy.close()


@pytest.fixture
def arena(opened: Arena) -> Iterator[Arena]:
    """Both workers run and the victim alone takes runs; afterwards everything is as it ought to be."""
    for name in (VICTIM, OTHER):
        if name not in opened.fleet.pids:
            opened.fleet.restart(name)
    opened.fleet.wait_workers()
    opened.only(VICTIM)
    yield opened
    assert opened.unexplained() == []
    assert opened.violations() == []


def test_a_claim_whose_answer_was_lost_is_asked_for_again(arena: Arena) -> None:
    session = arena.session("ledger")
    wires.redis.lose(session)
    run = arena.submit(session, "0.1")
    [row] = arena.wait_done(run, within=20)
    assert wires.redis.lost
    assert (row["status"], row["attempt"], row["recovery_attempts"]) == ("completed", 1, 0), arena.story(run)
    assert (row["started_at"] - row["queued_at"]).total_seconds() < 4, arena.story(run)


def test_claimed_and_dead_before_the_start_is_ready_again_at_its_old_place(arena: Arena) -> None:
    session, later = arena.session("ledger"), arena.session("ledger")
    wires.redis.lose(session, Loss.MUTE)
    run = arena.submit(session, "0.1")
    eventually(lambda: wires.redis.lost, within=10, what="claimed, and the victim does not know")
    arena.fleet.kill(VICTIM)
    behind = arena.submit(later, "0.1")
    assert arena.place(session)["state"] == "leased"
    arena.wait(lambda: arena.place(session)["state"] == "ready", run, within=30, what="the lease ends")
    scores = [float(arena.place(each)["score"]) for each in (session, later)]
    assert scores == sorted(scores)
    arena.only(OTHER)
    for row in arena.wait_done(run, behind, within=20):
        assert (row["status"], row["attempt"], row["recovery_attempts"]) == ("completed", 1, 0), arena.story(run)


def test_a_start_in_doubt_is_looked_up(arena: Arena) -> None:
    session = arena.session("ledger")
    wires.sql.lose("COMMIT")
    run = arena.submit(session, "0.1")
    [row] = arena.wait_done(run, within=20)
    assert wires.sql.lost
    assert (row["status"], row["attempt"], row["recovery_attempts"]) == ("completed", 1, 0), arena.story(run)


def test_an_outcome_in_doubt_is_looked_up(arena: Arena) -> None:
    session = arena.session("ledger")
    run = arena.submit(session, "1")
    arena.wait_lives(run)
    wires.sql.lose("COMMIT")
    [row] = arena.wait_done(run, within=20)
    assert wires.sql.lost
    assert (row["status"], row["attempt"], row["result"] != "") == ("completed", 1, True), arena.story(run)


def test_settled_and_the_free_lost_is_freed_again(arena: Arena) -> None:
    session = arena.session("ledger")
    run, behind = arena.submit(session, "1"), arena.submit(session, "0.1")
    arena.wait_lives(run)
    wires.redis.proxy.cut()
    arena.wait_done(run, within=20)
    assert arena.place(session)["state"] == "leased"
    wires.redis.proxy.heal()
    [row] = arena.wait_done(behind, within=20)
    assert (row["status"], row["attempt"]) == ("completed", 1), arena.story(behind)


def test_started_and_dead_before_the_spawn(arena: Arena) -> None:
    host = arena.fleet.host_pid(VICTIM)
    session = arena.session("ledger")
    with processes.stopped(host):
        run = arena.submit(session, "0.1")
        arena.wait(lambda: arena.run(run)["status"] == "running", run, within=10, what="started in SQL")
        arena.fleet.kill(VICTIM)
        os.kill(host, signal.SIGKILL)
    assert arena.lines(run) == []
    with processes.stopped(arena.fleet.pids["controller"]):  # or it may be faster than a restart on a busy machine
        arena.fleet.restart(VICTIM)
        arena.wait(lambda: bool(arena.events(run, "run.recovered")), run, within=30, what="its own worker recovers it")
    arena.wait_done(run, within=30)
    assert [each["outcome"] for each in arena.attempts(run)] == ["worker_lost", "completed"]
    assert [each["data"]["reason"] for each in arena.events(run, "run.recovered")] == ["worker_restarted"]
    assert {line.attempt for line in arena.lines(run)} == {2}


def test_an_outcome_that_cannot_be_settled_is_delivered_by_the_next_incarnation(arena: Arena) -> None:
    """From the disk, before it recovers what its predecessor left and before it claims: the work is not done again."""
    session, other = arena.session("ledger"), arena.session("ledger")
    run, behind = arena.submit(session, "1.5"), arena.submit(session, "0.1")
    arena.wait_lives(run)
    wires.sql.proxy.cut()
    history = arena.fleet.data_dir / "workers" / VICTIM / "history.db"
    eventually(lambda: _kept(history) == [run], within=20, what="the outcome is on the disk")
    unstarted = arena.submit(other, "0.1")
    # A restart that takes longer than a lease is the leader's to recover, rightly: it looks away meanwhile.
    with processes.stopped(arena.fleet.pids["controller"]):
        arena.fleet.kill(VICTIM)
        wires.sql.proxy.heal()
        arena.fleet.restart(VICTIM)
        arena.wait_done(run, within=30)
    rows = arena.wait_done(run, behind, unstarted, within=30)
    assert [(row["status"], row["attempt"]) for row in rows] == [("completed", 1)] * 3, arena.story(run)
    assert rows[0]["result"].endswith("lines\n")
    assert not arena.events(run, "run.recovered")
    assert _kept(history) == []


def _kept(history: Path) -> list[str]:
    with sqlite3.connect(f"file:{history}?mode=ro", uri=True) as db:
        return [row[0] for row in db.execute("SELECT run_id FROM outcomes")]


def test_a_lost_host_with_a_spawn_on_its_way_costs_two_periods(arena: Arena) -> None:
    """Stopped while it has nothing to do: the worker notices as soon as it wants something."""
    host = arena.fleet.host_pid(VICTIM)
    with processes.stopped(host):
        run = arena.submit(arena.session(), first_long(0.1))
        [row] = arena.wait_done(run, within=12)
    assert row["status"] == "completed", arena.story(run)
    assert arena.fleet.host_pid(VICTIM) != host
