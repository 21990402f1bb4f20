"""Thousands of runs leave nothing: no descriptor, no process, no zombie, no thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from oah.ports.agent import TurnStatus
from tests.support import eventually
from tests.support.terminals import Bench, bench

DONE = TurnStatus.COMPLETED


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


def held() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def zombies() -> list[int]:
    """Ours, and those of our children."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] == "Z" and int(fields[1]) == os.getpid():
            found.append(int(name))
    return found


def test_five_thousand_runs_leave_nothing(desk: Bench) -> None:
    """Most in agents that stay, as runs of a session are; every twentieth in a fresh one."""

    def session(number: int) -> int:
        done = 0
        for _ in range(5):
            agent = desk.agents.open(_spec(desk, f"{number}-{done}"))
            done += sum(desk.turn(agent, f"[[say {turn}]]").status is DONE for turn in range(250))
            assert agent.close(timedelta(seconds=1))
        return done

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: desk.once("true").status, range(8)))
        desk.close_agents()
        before = held()
        assert sum(pool.map(session, range(4))) == 5_000
    assert desk.host.live() == ()
    eventually(lambda: held()[0] <= before[0], what=f"descriptors as before ({before[0]}), not {held()[0]}")
    eventually(lambda: held()[1] <= before[1], what="threads as before")
    assert zombies() == []


def _spec(desk: Bench, name: str):  # type: ignore[no-untyped-def]
    from oah.adapters.pty.connection import boottime
    from oah.ports.agent import AgentSpec

    return AgentSpec(
        agent_id=f"leak-{name}",
        session_id=f"ses-{name}",
        workspace_id="default",
        profile="scripted",
        run_id="run_0",
        attempt=1,
        worker_id="w.1",
        cwd=str(desk.directory),
        home=str(desk.directory / "home"),
        deadline_boottime=boottime() + 300,
    )


def test_a_hundred_programs_and_some_screens_leave_nothing(desk: Bench) -> None:
    desk.once("true")
    agent = desk.open("inky")
    desk.turn(agent, "hello")
    desk.close_agents()
    before = held()
    for _ in range(100):
        assert desk.once("true").status is DONE
    for _ in range(4):
        agents = [desk.open("inky") for _ in range(2)]
        assert all(desk.turn(agent, "hello").status is DONE for agent in agents)
        desk.close_agents()
    eventually(lambda: held()[0] <= before[0], what="descriptors as before")
    eventually(lambda: held()[1] <= before[1], what="threads as before")
    assert zombies() == []
