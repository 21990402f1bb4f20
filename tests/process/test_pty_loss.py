"""Worker or host lost, stopped, late: the agents die, or go on, exactly as the protocol says."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from oah.adapters.pty.connection import boottime
from oah.errors import Unavailable
from oah.ports.terminal import ExitCause, HostLost
from oah.testing import processes
from oah.testing.processes import stopped
from tests.support import eventually
from tests.support.terminals import LONG, nap, napping, pass_time, pty_host, read_until, spec

TICKING = "(sleep {0}; echo never) & while :; do sleep 0.05; echo tick; done"
TREE = "trap '' HUP INT TERM; setsid sleep {0} & (env -i setsid sleep {0} &); echo up; sleep {0}"


class Worker:
    """The worker process of tests.support.pty_worker."""

    def __init__(self, state_dir: Path, *, margin: float, life: float, options: tuple[str, ...] = ()) -> None:
        command = [sys.executable, "-m", "tests.support.pty_worker", str(state_dir), str(margin), str(life), *options]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.greeting = json.loads(self.process.stdout.readline())
        self.host = int(self.greeting["host"])

    def ask(self, *request: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def spawn_tree(self, number: int) -> int:
        pid = self.ask("spawn", f"agent-{number}", "bash", "-c", TREE.format(nap(number)))
        eventually(lambda: len(napping(number)) == 3, what="three sleeps")
        return int(pid)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        eventually(lambda: not processes.alive(self.host), what="the host ended by itself")
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Any]:
    started: list[Worker] = []

    def start(**more: Any) -> Worker:
        started.append(Worker(tmp_path, **{"margin": 1.0, "life": 5.0, **more}))
        return started[-1]

    yield start
    for worker in started:
        worker.end()


def none_left(number: int) -> bool:
    return napping(number) == []


def test_a_killed_worker_takes_host_and_agents_with_it(workers: Any) -> None:
    worker = workers()
    worker.spawn_tree(7201)
    os.kill(worker.process.pid, signal.SIGKILL)
    eventually(lambda: none_left(7201), within=3, what="the agents are dead")
    eventually(lambda: not processes.alive(worker.host), within=3, what="the host ended")


def test_a_stopped_worker_loses_its_agents_at_the_deadline(workers: Any) -> None:
    worker = workers(life=2.0, margin=4.0)
    worker.spawn_tree(7202)
    at = boottime()
    with stopped(worker.process.pid):
        assert len(napping(7202)) == 3
        eventually(lambda: none_left(7202), within=10, what="the agents are dead")
        assert boottime() - at < 2.0 + 4.0, "within a margin of the last deadline"
        assert processes.alive(worker.host)


def test_a_silent_worker_loses_its_agents_at_the_deadline(workers: Any) -> None:
    worker = workers(life=2.0)
    worker.spawn_tree(7203)
    worker.ask("silent")
    eventually(lambda: none_left(7203), within=10, what="the agents are dead")


def test_a_killed_host_is_replaced_and_its_agents_are_dead_before(workers: Any) -> None:
    worker = workers()
    worker.spawn_tree(7204)
    os.kill(worker.host, signal.SIGKILL)
    eventually(lambda: none_left(7204), within=3, what="the agents are dead")
    fresh = eventually(lambda: worker.ask("host"), within=5, what="a new host")
    assert fresh != worker.host
    worker.host = fresh
    worker.spawn_tree(7205)


def test_worker_and_host_both_killed_then_the_next_incarnation_sweeps(workers: Any) -> None:
    """Killed at the same moment nobody is left to kill what ran away: the work of the next incarnation."""
    worker = workers()
    root = worker.spawn_tree(7206)
    with stopped(worker.host, worker.process.pid):
        os.kill(worker.process.pid, signal.SIGKILL)
        os.kill(worker.host, signal.SIGKILL)
        eventually(lambda: not processes.alive(root), within=5, what="the root died with its host")
        assert napping(7206), "what had a session of its own lives on"
    successor = workers()
    assert successor.greeting["clean"]
    assert successor.greeting["killed"] >= 1
    assert none_left(7206)


def test_worker_and_host_stopped_together_is_the_stated_residual_risk(workers: Any) -> None:
    """Nothing dies at the deadline then; both killed, the sweep finishes the work."""
    worker = workers(life=3.0)
    worker.spawn_tree(7207)
    with stopped(worker.process.pid, worker.host):
        pass_time(4)
        assert len(napping(7207)) == 3
    eventually(lambda: none_left(7207), within=5, what="the host woke up and killed first")


def test_the_sweep_ends_a_host_that_still_stands_stopped(workers: Any) -> None:
    worker = workers()
    worker.spawn_tree(7208)
    os.kill(worker.host, signal.SIGSTOP)
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.wait()
    assert napping(7208), "the hang-up of the terminal reaches only the root's own group"
    successor = workers()
    assert successor.greeting["clean"]
    assert none_left(7208)
    eventually(lambda: not processes.alive(worker.host), what="the old host is dead")


def test_a_stopped_host_freezes_all_trees_first_and_an_old_mark_does_not_thaw_them(tmp_path: Path) -> None:
    """Stopped longer than half a margin, deadlines far away: frozen at once, thawed only by a mark begun after the
    freeze."""
    frozen: list[float] = []
    with pty_host(tmp_path, margin=6.0) as host:
        _start_again(host, frozen)
        process = host.spawn(spec("bash", "-c", TICKING.format(nap(7209))))
        read_until(process, b"tick")
        with stopped(host.host_pid):
            host.marked(begun_boottime=boottime())
            pass_time(3.5)
            host.marked(begun_boottime=boottime())
        eventually(lambda: processes.state(process.pid) == "T", within=2, what="the tree is frozen")
        eventually(lambda: frozen, what="the worker was told")
        assert all(processes.state(pid) == "T" for pid in napping(7209))
        host.marked(begun_boottime=boottime())
        eventually(lambda: processes.state(process.pid) != "T", within=2, what="the tree goes on")
        while process.terminal.take(1 << 20, LONG / 1000):
            pass
        read_until(process, b"tick")
        assert process.exited() is None


def _start_again(host: Any, frozen: list[float]) -> None:
    """The observer of a freeze, on a host that runs already."""
    host._on_frozen = lambda: frozen.append(boottime())


def test_frozen_trees_die_one_margin_later_when_no_mark_comes(tmp_path: Path) -> None:
    with pty_host(tmp_path, margin=1.0) as host:
        process = host.spawn(spec("bash", "-c", TREE.format(nap(7210))))
        eventually(lambda: len(napping(7210)) == 3, what="three sleeps")
        with stopped(host.host_pid):
            host.marked(begun_boottime=boottime())
            pass_time(1.2)
        notice = process.wait(LONG)
        assert notice is not None
        assert notice.cause is ExitCause.LATE
        assert notice.tree_empty
        assert none_left(7210)


def test_what_was_stopped_before_the_freeze_stays_stopped_after_the_thaw(tmp_path: Path) -> None:
    with pty_host(tmp_path, margin=6.0) as host:
        process = host.spawn(spec("bash", "-c", f"sleep {nap(7211)} & echo up; wait"))
        read_until(process, b"up")
        (sleeper,) = eventually(lambda: napping(7211))
        os.kill(sleeper, signal.SIGSTOP)
        with stopped(host.host_pid):
            pass_time(3.5)
        eventually(lambda: processes.state(process.pid) == "T", within=2, what="the tree is frozen")
        host.marked(begun_boottime=boottime())
        eventually(lambda: processes.state(process.pid) == "S", within=2, what="the shell goes on")
        assert processes.state(sleeper) == "T"


def test_an_interactive_shell_does_not_notice_a_freeze(tmp_path: Path) -> None:
    """Parents are stopped first and continued last: else the shell takes its foreground job for stopped and loses
    it."""
    with pty_host(tmp_path, margin=6.0) as host:
        process = host.spawn(spec("bash", "--norc", "-i"))
        process.terminal.write(b"echo st'art'; sleep 5; echo done=$?\n", LONG)
        read_until(process, b"start")
        with stopped(host.host_pid):
            pass_time(3.5)
        eventually(lambda: processes.state(process.pid) == "T", within=2, what="the tree is frozen")
        host.marked(begun_boottime=boottime())
        seen = read_until(process, b"done=0")
        assert b"Stopped" not in seen


def test_a_host_killed_in_process_tells_whom_it_cost(tmp_path: Path) -> None:
    lost: list[HostLost] = []
    with pty_host(tmp_path) as host:
        host._on_lost = lost.append
        process = host.spawn(spec("bash", "-c", TREE.format(nap(7212))))
        eventually(lambda: len(napping(7212)) == 3, what="three sleeps")
        os.kill(host.host_pid, signal.SIGKILL)
        notice = process.wait(LONG)
        assert notice is not None
        assert (notice.cause, notice.tree_empty) == (ExitCause.HOST_LOST, True)
        assert none_left(7212)
        eventually(lambda: lost, what="the loss is reported")
        assert lost[0].agent_ids == (process.agent_id,)
        assert lost[0].unkilled == ()
        assert host.live() == ()
        fresh = host.spawn(spec("true"))
        assert fresh.wait(LONG) is not None


def test_a_host_that_does_not_answer_can_be_abandoned(tmp_path: Path) -> None:
    """Both witnesses stop when nothing was acknowledged for a period; then the worker kills the trees itself."""
    with pty_host(tmp_path) as host:
        process = host.spawn(spec("bash", "-c", TREE.format(nap(7213))))
        eventually(lambda: len(napping(7213)) == 3, what="three sleeps")
        os.kill(host.host_pid, signal.SIGSTOP)
        asked = boottime()
        host.extend({})
        pass_time(0.3)
        assert host.acknowledged_at() < asked
        host.abandon("no acknowledgement")
        notice = process.wait(LONG)
        assert notice is not None
        assert notice.cause is ExitCause.HOST_LOST
        assert none_left(7213)


def test_waiting_for_strays_does_not_steal_the_status_of_other_children(tmp_path: Path) -> None:
    with pty_host(tmp_path) as host:
        child = subprocess.Popen(["sh", "-c", "read x; exit 7"], stdin=subprocess.PIPE)
        process = host.spawn(spec("bash", "-c", TREE.format(nap(7214))))
        assert child.stdin is not None
        child.stdin.close()
        eventually(lambda: processes.state(child.pid) == "Z", what="the other child has exited")
        os.kill(host.host_pid, signal.SIGKILL)
        assert process.wait(LONG) is not None
        assert child.wait(60) == 7


def test_a_spawn_without_a_host_waits_for_the_next_one(tmp_path: Path) -> None:
    """Otherwise each run that is claimed meanwhile would cost a recovery attempt."""
    with pty_host(tmp_path) as host:
        lost = host.host_pid
        os.kill(lost, signal.SIGSTOP)
        host.abandon("test")
        notice = host.spawn(spec("true")).wait(LONG)
        assert notice is not None
        assert notice.cause is ExitCause.EXITED
        assert host.host_pid not in (0, lost)


def test_a_spawn_that_loses_its_host_ends_when_nothing_of_it_is_left(tmp_path: Path) -> None:
    with pty_host(tmp_path) as host:
        os.kill(host.host_pid, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(host.spawn, spec("true"))
            eventually(lambda: host.live(), what="asked: it may live from now on")
            host.abandon("test")
            error = asked.exception(timeout=10)
        assert isinstance(error, Unavailable)
        assert error.code == "host_lost"
        assert host.live() == ()


def test_the_deliberate_violation_agents_outlive_their_deadline_with_the_deadman_off(
    workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OAH_TESTING_DEADMAN_OFF", "1")
    worker = workers(life=3.0, options=("deadman-off",))
    worker.spawn_tree(7215)
    with stopped(worker.process.pid):
        pass_time(5)
        assert len(napping(7215)) == 3
    os.kill(worker.process.pid, signal.SIGKILL)
    eventually(lambda: none_left(7215), within=5, what="without a worker they die all the same")
