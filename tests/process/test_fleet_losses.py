"""Worker, PTY host, or both killed or stopped while an agent and a runaway grandchild of it work.

All at the same time, each with a worker of its own; one more worker takes over. The agents write when they live: none
may write after the first line of its successor. One of the workers has its deadman off, for the judge's sake.
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from oah.testing import processes
from tests.support.arena import Arena, first_long, ledger_line, open_arena, writers
from tests.support.servers_sql import PostgresServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

HARMS = ("worker killed", "worker stopped", "host killed", "host stopped", "both killed", "both stopped")
VIOLATION = "worker stopped, deadman off"
SUCCESSOR, UNARMED = "worker-1", "worker-2"


@dataclass
class Case:
    """A victim: the run that its worker executed, and a second one queued behind it."""

    harm: str
    session: str
    run: str
    behind: str
    worker: str
    worker_pid: int
    host_pid: int


Cases = dict[str, Case]


@pytest.fixture(scope="module")
def arena(postgres_server: PostgresServer) -> Iterator[Arena]:
    options = {"OAH_WORKER__HEARTBEAT_SECONDS": "1", "OAH_WORKER__DRAIN_GRACE_SECONDS": "1"}
    own = {SUCCESSOR: {"OAH_WORKER__SLOTS": "8"}, UNARMED: {"OAH_TESTING_DEADMAN_OFF": "1"}}
    with open_arena(postgres_server, workers=2 + len(HARMS), slots=1, env=options, own=lambda *_: own) as opened:
        yield opened


@pytest.fixture(scope="module")
def cases(arena: Arena) -> Iterator[Cases]:
    """Everything was harmed, and everything but the last has been recovered."""
    found = _begin(arena)
    for case in found.values():
        _harm(case)
    both = found["both killed"]
    arena.fleet.wait_exit(both.worker)
    with processes.stopped(arena.fleet.pids["controller"]):  # or it may be faster than a restart on a busy machine
        arena.fleet.restart(both.worker)
        arena.wait(lambda: arena.events(both.run, "run.recovered"), both.run, within=30, what="its own worker does it")
    arena.wait_done(*[run for case in found.values() for run in (case.run, case.behind)], within=60)
    yield found
    for case in found.values():
        _continue(case)


def _begin(arena: Arena) -> Cases:
    victims = [name for name in arena.fleet.pids if name.startswith("worker") and name != SUCCESSOR]
    arena.only(*victims)
    begun: dict[str, tuple[str, str, str]] = {}
    for number in range(len(victims)):
        session = arena.session("exec" if number % 2 else "shell")
        run = arena.submit(session, first_long(100, "grandchild"))
        behind = arena.submit(session, ledger_line(0.1))
        begun[run] = (session, run, behind)
    worker = {arena.wait_lives(run): run for run in begun}
    assert worker.keys() == set(victims)
    harms = dict(zip([UNARMED, *sorted(worker.keys() - {UNARMED})], [VIOLATION, *HARMS], strict=True))
    found = {}
    for name, harm in harms.items():
        case = Case(harm, *begun[worker[name]], name, arena.fleet.pids[name], arena.fleet.host_pid(name))
        arena.wait(lambda case=case: len(_pids(arena, case, 1)) == 2, case.run, within=15, what="two of them write")
        found[harm] = case
    arena.only(SUCCESSOR, *victims)
    return found


def _harm(case: Case) -> None:
    who, what = case.harm.split(",")[0].split()
    pids = {"worker": [case.worker_pid], "host": [case.host_pid], "both": [case.host_pid, case.worker_pid]}[who]
    for pid in pids:  # stopped first, so that none of two can still act when the other dies
        os.kill(pid, signal.SIGSTOP if what == "stopped" or who == "both" else signal.SIGKILL)
    if (who, what) == ("both", "killed"):
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def _continue(case: Case) -> None:
    for pid in (case.host_pid, case.worker_pid):
        if processes.alive(pid):
            os.kill(pid, signal.SIGCONT)


def _pids(arena: Arena, case: Case, attempt: int) -> set[int]:
    return {line.pid for line in arena.lines(case.run, attempt)}


REASONS = {
    "worker killed": "worker_lost",
    "worker stopped": "worker_lost",
    "host killed": "host_lost",
    "host stopped": "host_lost",
    "both killed": "worker_restarted",
}


@pytest.mark.parametrize("harm", REASONS)
def test_the_tree_is_dead_before_its_successor_begins(arena: Arena, cases: Cases, harm: str) -> None:
    case = cases[harm]
    for run in (case.run, case.behind):
        assert arena.run(run)["status"] == "completed", arena.story(run)
    first, second = arena.attempts(case.run)
    assert (first["outcome"], second["reason"], second["outcome"]) == ("worker_lost", "recovered", "completed")
    [event] = arena.events(case.run, "run.recovered")
    assert event["data"]["reason"] == REASONS[harm], arena.story(case.run)
    assert not [pid for pid in _pids(arena, case, 1) if processes.alive(pid)]
    arena.check(case.session)


def test_host_lost_costs_no_lease(arena: Arena, cases: Cases) -> None:
    """A worker that lost its host knows at once that its agents are dead: nobody waits for a witness."""
    for harm in ("host killed", "host stopped"):
        recovered = arena.events(cases[harm].run, "run.recovered")[0]
        assert recovered["data"]["by"].startswith(cases[harm].worker), arena.story(cases[harm].run)


def test_the_judge_sees_an_agent_without_a_deadman(arena: Arena, cases: Cases) -> None:
    """The deliberate violation: the same loss, and nobody to kill the tree. This judge would have seen the others."""
    case = cases[VIOLATION]
    assert arena.run(case.run)["status"] == "completed"
    found = arena.violations(case.session)
    assert {violation.kind for violation in found} == {"overlap"}
    assert len(found) >= 2, "it lived beside its own second attempt, and beside the next run"
    old = _pids(arena, case, 1)
    assert all(map(processes.alive, old))
    _continue(case)
    eventually(lambda: not any(map(processes.alive, old)), within=10, what="the worker is told, and kills them")


def test_worker_and_host_both_stopped_is_the_documented_risk(arena: Arena, cases: Cases) -> None:
    """Nobody acts at the deadline: the agents run on beside their successor, but can write nothing into the store. As
    soon as either continues they die."""
    case = cases["both stopped"]
    assert arena.run(case.run)["attempt"] == 2
    old = _pids(arena, case, 1)
    assert len(old) == 2
    assert all(map(processes.alive, old)), "the risk is gone: say so in the docs, and here"
    assert {violation.kind for violation in arena.violations(case.session)} == {"overlap"}
    _continue(case)
    eventually(lambda: not any(map(processes.alive, old)), within=10, what="the old tree is dead")
    assert [each["outcome"] for each in arena.attempts(case.run)] == ["worker_lost", "completed"]


def test_nothing_is_left_and_everybody_works_again(arena: Arena, cases: Cases) -> None:
    for case in cases.values():
        _continue(case)
    arena.fleet.restart(cases["worker killed"].worker)
    arena.fleet.wait_workers()
    wanted = {cases["worker stopped"].worker, cases["both stopped"].worker}

    def everybody_worked() -> bool:
        """Who is quickest takes most: submit until those that had been stopped had their turn."""
        runs = [arena.submit(arena.session(), ledger_line(0.5)) for _ in range(14)]
        assert {row["status"] for row in arena.wait_done(*runs, within=40)} == {"completed"}
        done.update(attempt["worker_id"].rpartition(".")[0] for run in runs for attempt in arena.attempts(run))
        return done >= wanted

    done: set[str] = set()
    eventually(everybody_worked, within=90, what=f"{wanted} work again")
    assert not writers(arena.ledger)
    assert arena.unexplained() == []
