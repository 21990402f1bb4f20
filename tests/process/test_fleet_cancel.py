"""Cancels and busy sessions on a whole fleet: what the answer said is what the agents' own notes say."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oah.adapters.sql.store import open_store
from oah.core.model.ids import RunId, SessionId
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.ports.store import Accepted, NewRun, SubmitLimits
from oah.services.cancel import cancel
from oah.services.submit import commit, hear
from tests.support.arena import Arena, open_arena
from tests.support.pace import FULL
from tests.support.servers_sql import PostgresServer
from tests.support.terminals import nap, napping
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

RUNS, SESSIONS, USERS = 1_000 if FULL else 250, 24, 6
SEED = 20260101


@pytest.fixture(scope="module")
def opened(postgres_server: PostgresServer) -> Iterator[Arena]:
    env = {"OAH_WORKER__HEARTBEAT_SECONDS": "1"}
    with open_arena(postgres_server, workers=2, slots=8, env=env) as arena:
        yield arena


@pytest.fixture
def arena(opened: Arena) -> Iterator[Arena]:
    """Afterwards the judge has no objection."""
    yield opened
    assert not opened.unexplained()


def notes(path: Path) -> dict[str, list[str]]:
    """What the agents wrote of each run: ``start``, ``end``."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        run, word = line.split()
        found.setdefault(run, []).append(word)
    return found


def test_a_cancelled_run_was_never_executed_in_full(arena: Arena) -> None:
    """1,000 × {enqueue; cancel after 0 to 20 ms} against workers that take them as fast as they can; some find their
    session busy, so that however slow the cancels are, there is something to remove."""
    diary = arena.ledger.with_name("diary")
    text = f"echo $OAH_RUN_ID start >> {diary}; sleep {{}}; echo $OAH_RUN_ID end >> {diary}"
    sessions = [arena.session() for _ in range(SESSIONS)]
    busy = arena.submit(sessions[0], "sleep 200")
    arena.wait(lambda: arena.fleet.client.run(busy)["status"] == "running", busy, within=30, what="one is busy")
    answers: dict[str, str] = {}
    lock, pause = threading.Lock(), threading.Event()

    store, broker = open_store(arena.server.url(arena.database)), arena.redis.broker()
    epoch = store.current_epoch()
    assert epoch is not None

    def user(number: int) -> None:
        """As an API process does both, so that the workers and not our requests are what is hurried."""
        chance = random.Random(SEED + number)
        for n in range(number, RUNS, USERS):
            run_id = RunId(f"run_race_{n:04d}")
            new = NewRun(
                run_id, DEFAULT_WORKSPACE, SessionId(sessions[n % SESSIONS]), text.format(0.01 if n % 10 else 0.5)
            )
            accepted = commit(store, [new], SubmitLimits())
            hear(broker, store, epoch, [one for one in accepted if isinstance(one, Accepted)])
            pause.wait(chance.uniform(0, 0.02))
            result = cancel(store, broker, epoch, run_id, None, by="race").result
            with lock:
                answers[run_id] = result.value

    begun = time.monotonic()
    with ThreadPoolExecutor(USERS) as pool:
        for each in [pool.submit(user, number) for number in range(USERS)]:
            each.result()
    arena.fleet.client.cancel(busy)
    rows = {row["id"]: row for row in arena.wait_done(*answers, within=60)}
    took, written = time.monotonic() - begun, notes(diary)
    store.close()
    broker.close()
    assert len(answers) == RUNS
    seen: dict[tuple[str, str], int] = {}
    for run, answer in answers.items():
        status, words = rows[run]["status"], written.get(run, [])
        seen[answer, status] = seen.get((answer, status), 0) + 1
        story = f"{run}: answered {answer}, ended {status}, wrote {words}\n{arena.story(run)}"
        assert len(words) == len(set(words)), f"executed twice: {story}"
        match answer:
            case "removed":
                assert status == "cancelled" and not words, story
            case "signalled":
                assert status in ("cancelled", "completed"), story
            case _:
                assert status == "completed", story
        assert status != "completed" or words == ["start", "end"], story
        if status == "cancelled" and "end" in words:
            # Interrupted in its very last step, before it could say that it was done.
            assert rows[run]["exit_code"] == 130, story
            seen["signalled", "at the end"] = seen.get(("signalled", "at the end"), 0) + 1
    ends = arena.sql(
        "SELECT run_id, count(*) FROM run_events WHERE type IN ('run.cancelled', 'run.completed', 'run.failed')"
        " AND run_id = ANY(%s) GROUP BY run_id HAVING count(*) <> 1",
        list(answers),
    )
    assert not ends, "terminal exactly once"
    assert {answer for answer, _ in seen} >= {"removed", "signalled"}, seen
    assert seen.get(("signalled", "at the end"), 0) <= RUNS / 50, seen
    print(f"{RUNS} cancels in {took:.1f} s: {seen}")


def test_an_agent_that_traps_everything_is_killed_within_the_graces_with_its_grandchildren(arena: Arena) -> None:
    session, sleep = arena.session(), f"sleep {nap(7801)}"
    fork_twice = f"(trap '' INT TERM HUP; setsid sh -c \"trap '' INT TERM HUP; {sleep} & {sleep}\" & )"
    run = arena.submit(session, f"trap '' INT TERM HUP; {fork_twice}; echo go; while :; do {sleep}; done")
    eventually(lambda: len(napping(7801)) >= 3, within=30, what="the grandchildren live")
    begun = time.monotonic()
    client = arena.fleet.client
    assert client.cancel(run, grace=2.0)["result"] == client.cancel(run)["result"] == "signalled"
    [row] = arena.wait_done(run, within=60)
    took = time.monotonic() - begun
    assert row["status"] == "cancelled" and 1.5 <= took < 30, took
    assert napping(7801) == []
    assert [event["type"] for event in arena.events(run)].count("run.cancelled") == 1
    assert client.cancel(run)["result"] == "too_late"
    [event] = arena.events(run, "run.cancelled")
    assert event["data"]["reason"] == "cancel" and event["data"]["by"]


def test_an_interrupt_ends_the_active_run_and_is_next(arena: Arena) -> None:
    session, client = arena.session(), arena.fleet.client
    # A run is `running` before its text is typed: what the agent must keep is told in a run before.
    known, live = arena.submit(session, "x=kept"), arena.submit(session, "sleep 60")
    arena.wait_done(known, within=30)
    eventually(lambda: arena.run(live)["status"] == "running", within=30, what="it runs")
    waiting = arena.submit(session, "echo second $x")
    urgent = client.submit(session, "echo first $x", on_busy="interrupt")["id"]
    ended = arena.wait_done(live, urgent, waiting, within=30)
    assert [row["status"] for row in ended] == ["cancelled", "completed", "completed"]
    assert ended[1]["ended_at"] < ended[2]["started_at"]
    assert ended[1]["result"].strip() == "first kept", "the agent was interrupted, not ended"


def test_a_rollback_leaves_nothing_of_what_it_stopped(arena: Arena) -> None:
    session, other, client = arena.session(), arena.session(), arena.fleet.client
    live = arena.submit(session, "x=void; echo half; sleep 60")
    eventually(lambda: arena.run(live)["status"] == "running", within=30, what="it runs")
    child = arena.submit(other, "echo go; sleep 60", parent_run_id=live)
    eventually(lambda: arena.run(child)["status"] == "running", within=30, what="its child runs")
    again = client.submit(session, "echo again [$x]", on_busy="rollback")["id"]
    stopped, ended, gone = arena.wait_done(live, again, child, within=30)
    assert (stopped["status"], stopped["voided"], stopped["result"]) == ("cancelled", True, None)
    assert (gone["status"], gone["stop_reason"]) == ("cancelled", "parent")
    assert ended["result"].strip() == "again []", "a fresh agent"
    assert [a["agent"] for a in arena.attempts(again)] == ["fresh"]
    assert len(arena.events(live, "run.voided")) == 1


def test_children_go_when_recovery_ends_their_parent(arena: Arena) -> None:
    """Parent and child run on different workers; the parent's dies while the cancel is under way."""
    client = arena.fleet.client
    arena.only("worker-1")
    parent = arena.submit(arena.session(), "trap '' INT TERM; echo go; while :; do sleep 1; done")
    eventually(lambda: arena.run(parent)["status"] == "running", within=30, what="the parent runs")
    arena.only("worker-2")
    child = arena.submit(arena.session(), "echo go; sleep 60", parent_run_id=parent)
    eventually(lambda: arena.run(child)["status"] == "running", within=30, what="the child runs")
    # As if the API had died between the two: only the parent is marked.
    arena.sql(
        "UPDATE runs SET cancel_requested_at = now(), cancel_requested_by = 'me', stop_reason = 'cancel'"
        " WHERE id = %s RETURNING id",
        parent,
    )
    arena.fleet.kill("worker-1")
    parents, children = arena.wait_done(parent, child, within=40)
    assert (parents["status"], parents["recovery_attempts"]) == ("cancelled", 0)
    assert (children["status"], children["stop_reason"], children["cancel_requested_by"]) == (
        "cancelled",
        "parent",
        "me",
    )
    arena.fleet.restart("worker-1")
    arena.fleet.wait_workers()
    arena.only("worker-1", "worker-2")
    assert client.run(child)["error"] is None


def test_a_closed_session_lets_its_warm_agent_go(arena: Arena) -> None:
    session, client = arena.session(), arena.fleet.client
    run = arena.submit(session, f"sleep {nap(7802)} & echo done")
    arena.wait_done(run, within=30)
    eventually(
        lambda: any(o["session_id"] == session and o["parked"] for o in arena.owners()), within=10, what="parked"
    )
    assert napping(7802)
    client.close_session(session)
    eventually(lambda: not any(o["session_id"] == session for o in arena.owners()), within=10, what="freed")
    assert napping(7802) == []
    # One that works is closed with its run, and its agent ends after it.
    session = arena.session()
    run = arena.submit(session, f"sleep {nap(7803)} & echo go; sleep 60")
    eventually(lambda: napping(7803), within=30, what="it works")
    assert client.close_session(session, cancel=True)["state"] == "closing"
    arena.wait_done(run, within=30)
    eventually(lambda: not any(o["session_id"] == session for o in arena.owners()), within=10, what="freed")
    assert napping(7803) == [] and client.session(session)["state"] == "closed"
