"""Real processes and a full-screen program that asks: runs wait without slots, people and rules answer them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from oah.client import Client
from oah.errors import Conflict, InvalidRequest
from oah.testing import processes
from tests.support.arena import Arena, open_arena
from tests.support.servers_sql import PostgresServer
from tests.support.viewers import Watcher
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

MANY = 50
ASKS = "[[permission]]\nhello"
SHORT, RULED = "inky-short", "inky-ruled"
MORE = {
    SHORT: "wait_timeout_seconds = 1.5\n",
    RULED: '[[answers]]\naction = "allow"\nname = "may-proceed"\nmatches = "Do you want to proceed"\n',
}


def _profiles(directory: Path) -> None:
    agents = directory / "d" / "agents.d"
    text = (agents / "inky.toml").read_text()
    for name, more in MORE.items():
        own = text.replace('name = "inky"', f'name = "{name}"', 1)
        (agents / f"{name}.toml").write_text(own + "\n" + more if more.startswith("[[") else more + own)


def _own(directory: Path, url: str, redis: Any) -> dict[str, dict[str, str]]:
    _profiles(directory)
    one = {"OAH_WORKER__SLOTS": "2", "OAH_WORKER__HEARTBEAT_SECONDS": "1"}
    return {
        "worker-1": {"OAH_WORKER__SLOTS": "8"},
        "worker-2": {**one, "OAH_WORKER__POOL": "killed"},
        "worker-3": {**one, "OAH_WORKER__POOL": "drained", "OAH_WORKER__DRAIN_GRACE_SECONDS": "8"},
    }


@pytest.fixture(scope="module")
def arena(postgres_server: PostgresServer) -> Iterator[Arena]:
    with open_arena(postgres_server, own=_own, workers=3) as opened:
        yield opened


@pytest.fixture
def client(arena: Arena) -> Client:
    return arena.fleet.client


def ask(arena: Arena, text: str = ASKS, agent: str = "inky", **more: Any) -> str:
    limits = {name: more.pop(name) for name in ("recovery", "timeout") if name in more}
    return arena.submit(arena.session(agent, **more), text, **limits)


def wait_asked(arena: Arena, *runs: str, within: float = 30) -> None:
    def asked() -> bool:
        found = arena.sql("SELECT status FROM runs WHERE id = ANY(%s)", list(runs))
        return all(row["status"] == "waiting_tool" for row in found)

    arena.wait(asked, *runs[:2], within=within, what=f"{len(runs)} runs ask")


def slots_busy(client: Client, name: str = "worker-1") -> int:
    return next(int(worker["busy"]) for worker in client.workers() if worker["name"] == name)


TREE = """
import os, sys
from oah.client import Client
from oah.client.own_run import OwnRun

depth = int(sys.argv[1])
if depth > 1:
    with OwnRun() as run, Client(os.environ["OAH_API_URL"], os.environ["TREE_KEY"]) as client:
        env = {name: os.environ[name] for name in ("TREE_KEY", "TREE", "TREE_WS")}
        session = client.create_session("exec", pool="killed", env=env, workspace=env["TREE_WS"])["id"]
        child = client.submit(session, f"{sys.executable} {os.environ['TREE']} {depth - 1}", parent_run_id=run.run_id)
        run.wait_for_children()
        assert client.run(child["id"])["status"] == "completed"
print("leaf" if depth == 1 else f"node {depth}")
"""


def test_trees_of_depth_three_on_as_many_slots_as_roots(arena: Arena, client: Client, tmp_path: Path) -> None:
    """Each parent holds a slot only while it works: no deadlock, and never more than two at once."""
    program = tmp_path / "tree.py"
    program.write_text(TREE)
    capped = client.create_workspace("trees", max_active_runs=2)["id"]
    env = {"TREE_KEY": arena.fleet.key, "TREE": str(program), "TREE_WS": capped}
    sessions = [arena.session("exec", pool="killed", env=env, workspace=capped) for _ in range(2)]
    roots = [arena.submit(session, f"{sys.executable} {program} 3") for session in sessions]

    def both_wait() -> bool:
        shown = [client.run(root) for root in roots]
        assert not any(run["error"] for run in shown), shown
        return {(run["wait_reason"] or {}).get("code") for run in shown} == {"waiting_children"}

    eventually(both_wait, within=40, what="both roots wait for their children")
    for row in arena.wait_done(*roots, within=60):
        assert (row["status"], row["attempt"], row["result"].strip()) == ("completed", 1, "node 3"), row
        kinds = [event["type"] for event in arena.events(row["id"]) if event["type"] != "run.output"]
        assert kinds == ["run.queued", "run.started", "run.waiting_tool", "run.resumed", "run.completed"]
    below = arena.sql("SELECT class, status, attempt FROM runs WHERE parent_run_id IS NOT NULL")
    assert [tuple(row.values()) for row in below] == [("subagent", "completed", 1)] * 4
    eventually(lambda: slots_busy(client, "worker-2") == 0, within=15, what="every slot is back")


def test_fifty_runs_wait_and_the_next_one_runs_at_once(arena: Arena, client: Client) -> None:
    runs = [ask(arena) for _ in range(MANY)]
    wait_asked(arena, *runs, within=120)
    eventually(lambda: slots_busy(client) == 0, within=15, what="no slot is used")
    next_one = arena.submit(arena.session("exec"), "echo at once")
    arena.wait_done(next_one, within=15)
    shown = client.run(runs[0])
    assert shown["question"]["kind"] == "permission" and "proceed" in shown["question"]["text"]
    assert [each["key"] for each in shown["question"]["choices"]] == ["1", "2", "3"]
    assert shown["wait_reason"]["code"] == "waiting_input"
    with pytest.raises(InvalidRequest) as caught:
        client.send_input(runs[0], "perhaps")
    assert caught.value.code == "answer_unfit" and "No, and say why" in str(caught.value.hint)

    # Whatever Redis has forgotten comes back: nobody is interrupted, and answers given meanwhile count.
    arena.redis.client().flushall()
    first = client.send_input(runs[0], "1")
    assert (first["delivery"], first["status"]) == ("accepted", "waiting_tool")
    arena.wait_done(runs[0], within=40)
    after = arena.submit(arena.session("exec"), "echo goes on")
    arena.wait_done(after, within=40)
    wait_asked(arena, *runs[1:], within=10)

    def answer(run: str) -> str:
        try:
            client.send_input(run, "Yes", question=1)
        except Conflict as error:
            return error.code
        return "accepted"

    with ThreadPoolExecutor(8) as pool:  # two people answer each
        twice = list(pool.map(answer, [run for run in runs[1:] for _ in range(2)]))
    assert twice.count("accepted") == MANY - 1
    assert set(twice) <= {"accepted", "already_answered", "question_over", "run_not_waiting"}
    for row in arena.wait_done(*runs, within=90):
        assert (row["status"], row["attempt"]) == ("completed", 1), row
        assert "answered 1" in row["result"]
        kinds = [event["type"] for event in arena.events(row["id"]) if event["type"] != "run.output"]
        assert kinds == ["run.queued", "run.started", "run.waiting_tool", "run.resumed", "run.completed"]


def test_a_run_that_goes_on_may_exceed_the_cap_of_its_workspace(arena: Arena, client: Client) -> None:
    capped = client.create_workspace("capped", max_active_runs=1)["id"]
    waits = ask(arena, workspace=capped)
    wait_asked(arena, waits)
    eventually(lambda: arena.place(arena.run(waits)["session_id"]).get("state") == "parked", what="its slot is free")
    long = arena.submit(arena.session("exec", workspace=capped), "sleep 600")
    eventually(lambda: arena.run(long)["status"] == "running", within=20, what="the cap counts slots")
    client.send_input(waits, "No, and say why")
    (row,) = arena.wait_done(waits, within=20)
    assert "answered 3" in row["result"] and arena.run(long)["status"] == "running"
    client.cancel(long)


def test_a_question_that_is_answered_at_the_terminal_is_answered(arena: Arena, client: Client) -> None:
    run = ask(arena)
    wait_asked(arena, run)
    with client.attach(run_id=run, write=True) as terminal:
        viewer = Watcher(terminal)
        viewer.hears("granted")
        viewer.shows("Do you want to proceed")
        terminal.type(b"2")
        (row,) = arena.wait_done(run, within=30)
    assert row["status"] == "completed" and "answered 2" in row["result"], row
    resumed = next(event for event in arena.events(run) if event["type"] == "run.resumed")
    assert resumed["data"]["by"] == "terminal"


def test_a_question_that_counts_down_is_one_and_answers_itself(arena: Arena, client: Client) -> None:
    counts = "{} 0.4 Continuing in {{seconds}} s…"
    answered = ask(arena, f"[[countdown {counts.format(1000)}]]")
    alone = ask(arena, f"[[countdown {counts.format(12)}]]")
    wait_asked(arena, answered)
    (row,) = arena.wait_done(alone, within=30)
    assert row["status"] == "completed" and "answered by itself" in row["result"], row
    with pytest.raises(Conflict) as caught:
        client.send_input(alone, "1", question=1)
    assert caught.value.code == "question_over"
    resumed = [event["data"]["by"] for event in arena.events(alone, "run.resumed")]
    assert resumed == ["terminal"]
    client.send_input(answered, "2", question=1)  # it stood all the time, and counted
    (row,) = arena.wait_done(answered, within=30)
    assert "answered 2" in row["result"]
    assert all(len(arena.events(each, "run.waiting_tool")) == 1 for each in (alone, answered))


def test_a_text_is_a_command_only_when_its_run_says_so(arena: Arena, client: Client) -> None:
    session = arena.session("inky")
    text, command = arena.submit(session, "/status"), arena.submit(session, "/status", command=True)
    first, second = arena.wait_done(text, command, within=30)
    assert (first["status"], first["error_code"]) == ("failed", "command_refused")
    assert b"command not found" in client.recording(command), "the program took it for one"
    assert second["status"] == "completed"


def test_a_question_is_answered_with_words_and_a_second_question_is_another(arena: Arena, client: Client) -> None:
    run = ask(arena, "[[question]]\n[[permission]]")
    wait_asked(arena, run)
    assert client.run(run)["question"]["free"]
    client.send_input(run, "a deep blue")
    arena.wait(lambda: (client.run(run)["question"] or {}).get("number") == 2, run, within=20, what="asks again")
    with pytest.raises(Conflict) as caught:
        client.send_input(run, "1", question=1)
    assert caught.value.code == "question_over"
    client.send_input(run, "2", question=2)
    (row,) = arena.wait_done(run, within=20)
    assert "answered a deep blue" in row["result"] and "answered 2" in row["result"]
    assert "blue" not in str([event["data"] for event in arena.events(run, "run.resumed")])


def test_limits_and_people_end_what_waits(arena: Arena, client: Client) -> None:
    late, unwanted, short = ask(arena, agent=SHORT), ask(arena), ask(arena, timeout=4)
    wait_asked(arena, unwanted, short)
    tree = set(processes.children(arena.fleet.host_pid("worker-1")))
    client.cancel(unwanted)
    (row,) = arena.wait_done(unwanted, within=25)
    assert row["status"] == "cancelled"
    (row,) = arena.wait_done(late, within=25)
    assert (row["status"], row["error_code"]) == ("timed_out", "wait_timeout")
    eventually(lambda: len(tree - set(processes.children(arena.fleet.host_pid("worker-1")))) >= 1, within=10)
    # Its time-out is one of its turn: what it waits does not count.
    waited = arena.sql(
        "SELECT extract(epoch FROM clock_timestamp() - started_at)::float8 AS s FROM runs WHERE id = %s", short
    )
    eventually(lambda: waited[0]["s"] > 4 or client.run(short)["status"] == "waiting_tool")
    client.send_input(short, "1")
    (row,) = arena.wait_done(short, within=25)
    assert row["status"] == "completed"


def test_a_rule_answers_and_says_so(arena: Arena, client: Client) -> None:
    ruled = ask(arena, agent=RULED)
    strict = client.create_workspace("strict")["id"]
    deny = [{"action": "deny", "name": "never", "kinds": ["permission"], "answer": "3"}]
    assert client.update_workspace(strict, answers=deny)["answers"] == deny
    (row,) = arena.wait_done(ruled, within=30)
    assert row["status"] == "completed" and "answered 1" in row["result"]
    (event,) = arena.events(ruled, "run.answered")
    assert (event["data"]["by"], event["data"]["rule"], event["data"]["how"]) == ("policy", "may-proceed", "allowed")
    eventually(lambda: _answered(arena, ask(arena, agent=RULED, workspace=strict)) == ("never", "denied"), within=30)
    with pytest.raises(InvalidRequest):
        client.update_workspace(strict, answers=[{"action": "deny", "matches": "(("}])


def _answered(arena: Arena, run: str) -> tuple[str, str]:
    arena.wait_done(run, within=30)
    (event,) = arena.events(run, "run.answered")
    return event["data"]["rule"], event["data"]["how"]


@pytest.mark.parametrize("strategy", ["requeue_running", "requeue_all"])
def test_a_lost_worker_loses_no_run_that_waits(arena: Arena, client: Client, strategy: str) -> None:
    if "worker-2" not in arena.fleet.pids:
        arena.fleet.restart("worker-2")
    run = ask(arena, pool="killed", recovery={"strategy": strategy})
    wait_asked(arena, run)
    arena.fleet.kill("worker-2")
    if strategy == "requeue_running":
        arena.fleet.restart("worker-2")
        (row,) = arena.wait_done(run, within=30)
        assert (row["status"], row["recovery_state"]) == ("failed", "quarantined")
        assert row["recovery"]["reason"] == "waiting_tool_manual_resume_required"
        return
    arena.fleet.restart("worker-2")
    arena.wait(lambda: arena.run(run)["attempt"] == 2, run, within=40, what="starts again")
    arena.wait(lambda: client.run(run)["question"], run, within=20, what="asks again")
    client.send_input(run, "1")
    (row,) = arena.wait_done(run, within=20)
    assert row["status"] == "completed"


def test_a_drain_that_says_requeue_lets_a_run_ask_again_elsewhere(arena: Arena, client: Client) -> None:
    if "worker-3" not in arena.fleet.pids:
        arena.fleet.restart("worker-3")
        arena.fleet.wait_workers()
    run = ask(arena, pool="drained")
    wait_asked(arena, run)
    client.drain("worker-3", deadline_seconds=0, then="requeue")
    assert arena.fleet.wait_exit("worker-3", within=30) == 0
    arena.fleet.restart("worker-3")
    arena.wait(lambda: client.run(run)["question"], run, within=40, what="asks again")
    client.send_input(run, "1")
    (row,) = arena.wait_done(run, within=20)
    assert (row["status"], row["attempt"], row["recovery_attempts"]) == ("completed", 2, 0), arena.story(run)
    assert [each["outcome"] for each in arena.attempts(run)] == ["released", "completed"]


def test_a_drain_lets_people_answer_and_then_leaves_it_to_the_policy(arena: Arena, client: Client) -> None:
    answered, silent = ask(arena, pool="drained"), ask(arena, pool="drained")
    wait_asked(arena, answered, silent)
    arena.fleet.signal("worker-3", signal.SIGTERM)
    worker = str(arena.run(answered)["worker_id"])
    eventually(lambda: client.worker(worker)["state"] == "stopping", within=10, what="it drains")
    client.send_input(answered, "1")
    (row,) = arena.wait_done(answered, within=20)
    assert row["status"] == "completed", "the slots of a worker that drains are for runs that waited"
    arena.fleet.wait_exit("worker-3", within=30)
    row = arena.run(silent)
    assert (row["status"], row["recovery_state"]) == ("failed", "quarantined")
    assert row["recovery"]["reason"] == "waiting_tool_manual_resume_required"
