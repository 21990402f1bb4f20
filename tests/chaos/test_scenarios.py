"""Single stories that users of such systems tell, each made to happen on purpose (docs/explanation/failures.md)."""

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from oah.adapters.sql.store import open_store
from oah.cli.audit import audit
from tests.support import eventually
from tests.support.scenes import LEASE, Act, Scene, play
from tests.support.servers_redis import RealServer, valkey_binary
from tests.support.servers_sql import PostgresServer

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def scene(postgres_server: PostgresServer) -> Iterator[Scene]:
    with play(postgres_server, RealServer("valkey", valkey_binary()), workers=2, slots=4) as found:
        yield found


def place(scene: Scene, session: str) -> dict[str, str]:
    """What Redis holds of a session."""
    found = scene.server.client().hgetall(f"oah:{{0}}:session:{session}")
    return {key.decode(): value.decode() for key, value in found.items()}


def test_b02_sigterm_between_claim_and_start_gives_the_session_back(scene: Scene) -> None:
    """The worker has claimed and not yet started when it is told to end: no attempt is spent, nothing waits for a
    lease to end, and the process ends in order."""
    with scene.act() as act:
        session = act.session()
        with scene.only("worker-1"):
            scene.near.sql.delay(1.0)
            run = act.submit(session, "0.2")
            eventually(lambda: place(scene, session).get("state") == "leased", within=10, what="it is claimed")
            assert act.rows([run])[run]["attempt"] == 0, "started already: the trap is too slow"
            scene.fleet.signal("worker-1", signal.SIGTERM)
        told = time.monotonic()
        assert scene.fleet.wait_exit("worker-1", within=20) == 0
        scene.near.sql.heal()
        act.wait_terminal(within=20)
        took = time.monotonic() - told
        act.untouched([run])
        print(f"done {took:.2f} s after the signal")
        assert took < LEASE + 2


def faults(scene: Scene) -> dict[str, tuple[str, ...]]:
    """What an audit finds wrong."""
    store, broker = open_store(scene.postgres.url(scene.database)), scene.server.broker()
    try:
        found = audit(store, broker, lease=timedelta(seconds=LEASE), pause=lambda _: None)
        return {str(fault): tuple(map(str, sessions)) for fault, sessions in found.faults.items()}
    finally:
        store.close()
        broker.close()


def test_b04_each_key_of_redis_may_vanish_by_itself(scene: Scene) -> None:
    """Two keys describe one fact, and one of them is gone. SQL is asked, not the other key: each time everything has
    its place again within seconds, the agents that run are not disturbed and nothing runs twice."""
    with scene.act() as act:
        client = scene.server.client()
        busy, paused = act.sessions(2), act.session()
        active = act.submit_all(busy, "14")
        behind = act.submit_all(busy, "0.1")
        act.client.pause_session(paused)
        held = act.submit(paused, "0.1")
        delayed = act.submit(act.session(), "0.1", delay=20)
        act.wait_running(active)
        kept = ("epoch", "poison")
        names = [key.decode() for key in client.scan_iter(match="oah:?0?:*")]
        names = [key for key in sorted(names) if not key.removeprefix("oah:{0}:").startswith(kept)]
        slowest = 0.0
        for name in names:
            client.delete(name)
            begun = time.monotonic()
            act.wait_terminal([act.submit(act.session(), "0.02")], within=20)
            slowest = max(slowest, time.monotonic() - begun)
        eventually(lambda: not faults(scene), within=30, every=0.5, what="the audit finds nothing")
        print(f"{len(names)} keys deleted, one after the other; a run took at most {slowest:.2f} s")
        assert len(names) >= 8
        act.client.resume_session(paused)
        act.wait_terminal([*active, *behind, held, delayed])
        act.untouched(act.runs)


def test_b28_who_was_cut_off_hears_again(scene: Scene) -> None:
    """Connections are killed again and again, the server sleeps, restarts, is emptied: after each the next run starts
    within seconds, and no process had to be restarted for it."""
    processes = dict(scene.fleet.pids)
    took: dict[str, float] = {}

    def heard(act: Act, what: str) -> None:
        begun = time.monotonic()
        act.wait_terminal(act.submit_all(act.sessions(2), "0.05"), within=30)
        took[what] = time.monotonic() - begun

    with scene.act() as act:
        heard(act, "at peace")
        for _ in range(4):
            scene.server.client().execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            heard(act, "clients killed")
        scene.server.client().execute_command("DEBUG", "SLEEP", "2")
        heard(act, "asleep")
        scene.server.stop()
        scene.server.start()
        heard(act, "restarted")
        scene.server.client().flushall()
        heard(act, "emptied")
        print({what: round(seconds, 2) for what, seconds in took.items()})
        act.untouched(act.runs)
    assert scene.fleet.pids == processes
    assert max(took.values()) < 25


def test_b12_and_b17_waiting_costs_nothing_and_who_just_started_is_not_dead(scene: Scene) -> None:
    """Runs longer than two leases fill every slot, more wait behind them than there are slots, and workers come and go
    meanwhile: what runs is not given away, what waits is started once, and nobody who lives is taken for lost."""
    with scene.act() as act:
        scene.fleet.kill("worker-2", signal.SIGTERM)
        long = act.submit_all(act.sessions(4), f"{2 * LEASE + 2:g}")
        act.wait_running(long)
        waiting = [run for _ in range(2) for run in act.submit_all(act.sessions(10), "0.3")]
        for _ in range(4):
            scene.fleet.restart("worker-2")
            eventually(lambda: act.on("worker-2") or not scene.query(WAITING), within=20, what="it takes some")
            scene.fleet.kill("worker-2", signal.SIGTERM, reap=20)
        scene.fleet.restart("worker-2")
        act.wait_terminal()
        rows = act.rows([*long, *waiting]).values()
        assert {(row["status"], row["recovery_attempts"]) for row in rows} == {("completed", 0)}
        act.untouched(long)
        recovered = "SELECT count(*) FROM run_events WHERE type = 'run.recovered' AND run_id = ANY(%s)"
        assert scene.query(recovered, act.runs)[0][0] == 0


WAITING = "SELECT id FROM runs WHERE status = 'queued' AND NOT deferred"


def test_b11_a_frozen_worker_comes_back_and_writes_nothing(scene: Scene) -> None:
    """Frozen for two leases, then it goes on: its agents are long dead, its successor's attempt is the only one that
    counts, and it works again."""
    with scene.act() as act:
        with scene.only("worker-1"):
            run = act.submit(act.session(), "9")
            act.wait_running([run])
        pid = scene.fleet.pids["worker-1"]
        os.kill(pid, signal.SIGSTOP)
        try:
            eventually(lambda: [x for x in act.lines() if x.attempt == 2], within=40, every=0.2, what="a successor")
        finally:
            os.kill(pid, signal.SIGCONT)
        act.wait_terminal(within=40)
        [row] = act.rows([run]).values()
        assert (row["status"], row["attempt"], row["recovery_attempts"]) == ("completed", 2, 1)
        with scene.only("worker-1"):
            act.wait_terminal([act.submit(act.session(), "0.1")], within=30)
