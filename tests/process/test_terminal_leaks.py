"""Thousands of runs leave nothing: no descriptor, no process, no zombie, no thread."""

from __future__ import annotations

import io
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from operator import le
from pathlib import Path

import pytest

from oah.ports.agent import TurnStatus
from oah.testing import processes
from tests.support import eventually
from tests.support.pace import FULL
from tests.support.terminals import LONG, Bench, bench, read_all, resident_kib, spec

DONE = TurnStatus.COMPLETED


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


def held(*pids: int) -> list[int]:
    """Threads of this process, descriptors of all."""
    return [threading.active_count(), *(processes.descriptors(pid) for pid in (os.getpid(), *pids))]


def zombies(*parents: int) -> set[int]:
    """Theirs, and ours."""
    return {
        pid for parent in (os.getpid(), *parents) for pid in processes.children(parent) if processes.state(pid) == "Z"
    }


@contextmanager
def nothing_left(desk: Bench) -> Iterator[None]:
    """Neither in this process nor in the host: descriptors, threads, processes, zombies. (Orphans of the tests before
    become our children, and are not this test's.)"""
    pid = desk.host.host_pid
    before, others = held(pid), zombies(pid)
    yield
    assert desk.host.live() == ()
    assert desk.host.host_pid == pid
    eventually(
        lambda: all(map(le, held(pid), before)), what=f"threads, descriptors as before: {before}, not {held(pid)}"
    )
    eventually(lambda: zombies(pid) <= others, what="no zombie")
    assert processes.children(pid) == []


RUNS = 5_000 if FULL else 1_000


def test_thousands_of_runs_leave_nothing(desk: Bench) -> None:
    """In agents that stay, as runs of a session do; every 250th in a fresh one."""

    def session(number: int) -> int:
        done = 0
        for turn in range(5):
            agent = desk.agents.open(_spec(desk, f"{number}-{turn}"))
            done += sum(desk.turn(agent, f"[[say {turn}]]").status is DONE for turn in range(RUNS // 20))
            assert agent.close(timedelta(seconds=1))
        return done

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: desk.once("true").status, range(8)))
        desk.close_agents()
        with nothing_left(desk):
            assert sum(pool.map(session, range(4))) == RUNS


SPAWNS = 5_000 if FULL else 500


def test_p08_thousands_of_starts_from_a_process_with_busy_threads_leave_nothing(desk: Bench) -> None:
    """Threads that log and allocate are what a fork in their process would catch with locks held."""
    over, log = threading.Event(), logging.getLogger("tests.busy")
    log.addHandler(logging.StreamHandler(io.StringIO()))

    def busy() -> None:
        while not over.wait(0.02):
            log.warning("%s", [str(number) for number in range(20)])

    def start(number: int) -> None:
        process = desk.host.spawn(spec("sh", "-c", f"exit {number % 100}"))
        notice = process.wait(LONG)
        assert notice is not None
        assert notice.exit_code == number % 100
        read_all(process)
        process.terminal.close()

    start(0)
    with nothing_left(desk), ThreadPoolExecutor(30) as threads, ThreadPoolExecutor(4) as pool:
        for _ in range(30):
            threads.submit(busy)
        try:
            points = []
            for part in range(5):
                list(pool.map(start, range(part * SPAWNS // 5, (part + 1) * SPAWNS // 5)))
                points.append((*held(desk.host.host_pid)[1:], resident_kib(desk.host.host_pid)))
        finally:
            over.set()
    descriptors = [point[:2] for point in points]
    assert all(a - b <= 4 for point in descriptors for a, b in zip(point, descriptors[0], strict=True)), points
    assert points[-1][2] - points[1][2] < 2048, f"the host grows: {points}"


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


def test_programs_and_screens_leave_nothing(desk: Bench) -> None:
    desk.once("true")
    agent = desk.open("inky")
    desk.turn(agent, "hello")
    desk.close_agents()
    with nothing_left(desk):
        for _ in range(20):
            assert desk.once("true").status is DONE
        for _ in range(2):
            agents = [desk.open("inky") for _ in range(2)]
            assert all(desk.turn(agent, "hello").status is DONE for agent in agents)
            desk.close_agents()
