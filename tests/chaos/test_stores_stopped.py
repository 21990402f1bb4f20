"""Stores that stop, and ways to them that break: agents go on while one of the two witnesses is left."""

import signal
import threading
import time
from collections.abc import Iterator
from statistics import median

import pytest

from oah.client import Client
from tests.support import eventually
from tests.support.scenes import LEASE, LIFE, Act, Scene, boottime, play
from tests.support.servers_redis import RealServer, valkey_binary
from tests.support.servers_sql import PostgresServer

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def scene(postgres_server: PostgresServer) -> Iterator[Scene]:
    with play(postgres_server, RealServer("valkey", valkey_binary()), workers=3) as found:
        yield found


def submit_meanwhile(act: Act, sessions: list[str], until: float) -> tuple[list[str], float]:
    """A run a second until that moment, each accepted; they, and how long an answer took (the median)."""
    runs, took, waiting = [], list[float](), iter(sessions)
    while time.monotonic() < until:
        begun = time.monotonic()
        runs.append(act.submit(next(waiting), "0.2"))
        took.append(time.monotonic() - begun)
        eventually(lambda begun=begun: time.monotonic() > begun + 1, within=2)  # type: ignore[misc]
    return runs, median(took)


@pytest.mark.parametrize("emptied", [False, True])
def test_redis_away_for_three_leases_kills_no_agent(scene: Scene, emptied: bool) -> None:
    """Runs settle in SQL, submits are accepted, a worker drains in order, dispatch pauses; it goes on when Redis is
    back, with or without what it held."""
    with scene.act() as act:
        with scene.only("worker-3"):
            released = act.submit_all(act.sessions(2), "30 grandchild")
            act.wait_running(released)
        scene.cordon("worker-3")
        # Long enough that all are running at once also where starts take seconds, and over before Redis is back.
        short = act.submit_all(act.sessions(4), "12")
        long = act.submit_all(act.sessions(4), "31")
        conversation = act.session("shell")
        asked = act.submit(conversation, "sleep 13; echo said")
        behind = act.submit(conversation, "echo again")
        waiting = act.sessions(30)
        act.wait_running([*short, *long, asked])
        begun = time.monotonic()
        if emptied:
            scene.server.stop()
        else:
            scene.server.signal(signal.SIGSTOP)
        scene.fleet.signal("worker-3", signal.SIGTERM)
        meanwhile, usual = submit_meanwhile(act, waiting, begun + 3 * LEASE)
        act.untouched([*short, asked])
        assert {row["status"] for row in act.rows(long).values()} == {"running"}
        assert scene.fleet.wait_exit("worker-3", within=10) == 0
        back = {(row["status"], row["attempt"], row["queued_reason"]) for row in act.rows(released).values()}
        assert back == {("queued", 1, "released")}
        for run in released:
            act.client.cancel(run)
        returned = time.monotonic()
        if emptied:
            scene.server.start()
        else:
            scene.server.signal(signal.SIGCONT)
        eventually(
            lambda: any(row["attempt"] for row in act.rows(meanwhile).values()),
            within=20,
            every=0.05,
            what="dispatch goes on",
        )
        resumed = time.monotonic() - returned
        act.wait_terminal()
        act.untouched([*short, *long, asked, behind, *meanwhile])
        print(f"emptied={emptied}: a submit took {usual:.3f} s, dispatch resumed after {resumed:.2f} s")
        assert usual < 1
        assert resumed < 15


def test_a_worker_cut_from_both_stores_loses_its_agents_in_time(scene: Scene) -> None:
    """Its agents are dead before the successors begin; nobody else's is touched; when the way is open again its late
    words change nothing, and it works again."""
    with scene.act() as act:
        with scene.only("worker-1"):
            lost = act.submit_all(act.sessions(2), "7 grandchild")
            warm = act.session("shell")
            act.wait_terminal([act.submit(warm, "echo first")])
            act.wait_running(lost)
        with scene.only("worker-2"):
            kept = act.submit_all(act.sessions(3), "15")
            act.wait_running(kept)
        assert set(act.on("worker-1")) == set(lost)
        cut = boottime()
        scene.near.stall()
        later = act.submit(warm, "echo second")

        def successor() -> bool:
            return any(line.attempt == 2 for line in act.lines())

        eventually(successor, within=40, every=0.2, what="a successor writes")
        died = {
            run: max(line.at for line in act.lines() if line.run == run and line.attempt == 1) / 1e9 for run in lost
        }
        first = min(line.at for line in act.lines() if line.attempt == 2) / 1e9
        print(f"died {sorted(round(at - cut, 2) for at in died.values())}, successor after {first - cut:.2f} s")
        scene.near.heal()
        assert max(died.values()) <= cut + LIFE + 0.5, "agents outlived their deadline"
        assert max(died.values()) < first
        act.wait_terminal(within=80)
        act.untouched(kept)
        rows = act.rows([*lost, later])
        assert {row["status"] for row in rows.values()} == {"completed"}
        assert {rows[run]["attempt"] for run in lost} == {2}
        assert {rows[run]["recovery_attempts"] for run in lost} == {1}
        with scene.only("worker-1"):
            act.wait_terminal([act.submit(act.session(), "0.2")], within=30)


def test_postgres_away_outcomes_arrive_when_it_is_back(scene: Scene) -> None:
    """Agents go on and end; what they said is kept on this machine and delivered, also by the next incarnation of a
    worker that died or drained meanwhile; submits are refused with a time to come back; nobody hammers Redis."""
    with scene.act() as act:
        with scene.only("worker-1"):
            killed = act.submit_all(act.sessions(2), "12")
            act.wait_running(killed)
        with scene.only("worker-3"):
            drained = act.submit_all(act.sessions(2), "9")
            act.wait_running(drained)
        with scene.only("worker-2"):
            others = act.submit_all(act.sessions(2), "7")
            long = act.submit_all(act.sessions(2), "28")
            act.wait_running([*others, *long])
        queued = act.submit_all(act.sessions(20), "0.2")
        ended = [*killed, *drained, *others]
        assert len(act.on("worker-1", killed)) == len(act.on("worker-3", drained)) == 2
        begun = time.monotonic()
        scene.stop_postgres()
        commands = scene.commands()
        refused = refused_submits(scene, until=begun + 4)
        for worker, runs in (("worker-1", killed), ("worker-3", drained)):
            eventually(
                lambda worker=worker, runs=runs: set(runs) <= set(scene.kept(worker)),  # type: ignore[misc]
                within=20,
                every=0.2,
                what=f"{worker} keeps its outcomes",
            )
        scene.fleet.signal("worker-3", signal.SIGTERM)
        scene.fleet.kill("worker-1")
        assert scene.fleet.wait_exit("worker-3", within=20) == 0
        scene.fleet.restart("worker-1")
        scene.fleet.restart("worker-3")
        refused += refused_submits(scene, until=begun + 20)
        rate = (scene.commands() - commands) / (time.monotonic() - begun)
        scene.start_postgres()
        back = time.monotonic()
        undelivered = {run for run, row in act.rows(ended).items() if row["status"] == "running"}
        act.wait_terminal(ended, within=30)
        settled = time.monotonic() - back
        act.untouched(ended)
        act.wait_terminal()
        act.untouched([*long, *queued])
        print(
            f"{len(refused)} submits refused, {max(refused):.2f} s at most; {rate:.1f} Redis commands/s;"
            f" {len(undelivered)} outcomes delivered after {settled:.2f} s"
        )
        assert {*killed, *drained} <= undelivered
        assert median(refused) < 5
        assert rate < 25
        for worker in ("worker-1", "worker-2", "worker-3"):
            assert scene.kept(worker) == []
        act.wait_terminal([act.submit(act.session(), "0.2")])


def refused_submits(scene: Scene, *, until: float) -> list[float]:
    """Submits until that moment, each refused with 503 and a time to come back; how long each answer took."""
    took = []
    while time.monotonic() < until:
        begun = time.monotonic()
        answer = scene.post("/v1/sessions/ses_unknown/runs", {"input": "x"})
        took.append(time.monotonic() - begun)
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["code"]
        eventually(lambda begun=begun: time.monotonic() > begun + 0.5, within=2)  # type: ignore[misc]
    return took


def test_streams_go_on_over_an_api_that_dies(scene: Scene) -> None:
    """Killed once and ended once while two clients stream: they come back with the last number they have seen, and
    see every event exactly once. Workers do not notice."""
    with scene.act() as act:
        session = act.session("shell")
        run = act.submit(session, "for i in $(seq 45); do echo line $i; sleep 0.2; done")
        quiet = act.submit_all(act.sessions(4), "7")
        heard: dict[str, list[int]] = {run: [], session: []}

        def listen(subject: str) -> None:
            with Client(scene.fleet.url, scene.fleet.key) as client:
                for event in client.stream(subject, timeout=60):
                    heard[subject].append(event.number)
                    if subject == session and event.type == "run.completed":
                        return

        listeners = [threading.Thread(target=listen, args=(each,), daemon=True) for each in heard]
        for listener in listeners:
            listener.start()
        for number in (signal.SIGKILL, signal.SIGTERM):
            before = {each: len(numbers) for each, numbers in heard.items()}
            eventually(
                lambda before=before: all(len(heard[each]) > before[each] + 3 for each in heard),  # type: ignore[misc]
                within=30,
                what="both streams bring events",
            )
            scene.fleet.kill("api", number)
            scene.fleet.restart("api")
            scene.fleet.wait_ready()
        for listener in listeners:
            listener.join(60)
        events = scene.query("SELECT number, run_id FROM run_events WHERE session_id = %s ORDER BY number", session)
        assert heard[session] == [number for number, _ in events]
        assert heard[run] == [number for number, run_id in events if run_id == run]
        assert len(heard[run]) > 30
        act.wait_terminal()
        act.untouched([run, *quiet])
