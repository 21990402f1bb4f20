"""`oah up` as a person uses it: one terminal that runs everything, another that gives work, Ctrl-C."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from oah.cli.fleet import free_port
from oah.client import Client
from tests.support import eventually

pytestmark = pytest.mark.process

OAH = [sys.executable, "-c", "from oah.cli.main import main; main()"]


class Up:
    """`oah up` in a session of its own, as a terminal would have it, and its lines."""

    def __init__(self, data_dir: Path, *args: str, env: dict[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("OAH_")}
        self.env |= {"OAH_CONTROLLER__PORT": "0", "OAH_WORKER__PORT": "0", "OAH_LEASE_SECONDS": "6"}
        self.env |= {"OAH_GATEWAY_PORT": str(free_port()), "OAH_GATEWAY__PROBE_PORT": "0", **(env or {})}
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [*OAH, "up", "--data-dir", str(data_dir), "--port", str(self.port), *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.env,
            cwd=data_dir.parent,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))

    def said(self, words: str) -> bool:
        return any(words in line for line in self.lines)

    def wait_for(self, words: str, within: float = 60) -> None:
        def probe() -> bool:
            assert self.process.poll() is None or self.said(words), "\n".join(self.lines)
            return self.said(words)

        try:
            eventually(probe, within=within, what=f"{words!r} in the output")
        except AssertionError as error:
            raise AssertionError("\n".join(["output:", *self.lines[-60:]])) from error

    def oah(self, *args: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """A command in another terminal on this machine."""
        env = {**self.env, "OAH_API_URL": f"http://127.0.0.1:{self.port}", "OAH_DATA_DIR": str(self.data_dir)}
        return subprocess.run([*OAH, *args], capture_output=True, text=True, env=env, timeout=timeout, check=False)

    @property
    def client(self) -> Client:
        """For asking again and again: a process per question is slow."""
        return Client(f"http://127.0.0.1:{self.port}", (self.data_dir / "admin.key").read_text().strip())

    def wait_workers(self, *names: str) -> None:
        with self.client as client:
            eventually(
                lambda: {worker["name"] for worker in client.workers()} >= set(names), within=30, what="workers report"
            )

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, *words: str) -> psutil.Process | None:
        """The direct child whose command line ends with these words."""
        for process in psutil.Process(self.process.pid).children():
            if tuple(process.cmdline()[-len(words) :]) == words:
                return process
        return None

    def ctrl_c(self) -> None:
        """What a terminal does: SIGINT to everybody in the foreground group."""
        os.killpg(self.process.pid, signal.SIGINT)


Start = Callable[..., Up]


@pytest.fixture
def start(short_tmp: Path) -> Iterator[Start]:
    started: list[Up] = []

    def begin(*args: str, env: dict[str, str] | None = None) -> Up:
        up = Up(short_tmp / "d", *args, env=env)
        started.append(up)
        return up

    yield begin
    for up in started:
        left = up.descendants() if up.process.poll() is None else []
        if up.process.poll() is None:
            up.process.kill()
            up.process.wait(60)
        for process in left:
            if process.is_running():
                process.kill()


def _gone(processes: list[psutil.Process]) -> bool:
    return not [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def _mentioning(data_dir: Path) -> list[str]:
    """Command lines of processes that have to do with this directory: server, keeper, strays."""
    lines = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(data_dir) in line]


ASK = """
import asyncio, json, nats, os

async def main():
    nc = await nats.connect(os.environ["OAH_NATS_URL"], token=os.environ["OAH_RUN_KEY"])
    made = json.loads((await nc.request("$mq9.AI.MAILBOX.CREATE", b"{}")).data)
    await nc.publish("$mq9.AI.MAILBOX.MSG." + made["mail_id"], b"from inside")
    mails = await nc.subscribe("$mq9.AI.MAILBOX.MSG." + made["mail_id"])
    print((await mails.next_msg(timeout=30)).data.decode())
    await nc.close()

asyncio.run(main())
"""
"""What an agent does that has found the gateway's address and the key of its run in its environment."""


def test_everything_in_one_terminal_and_nothing_left_after_ctrl_c(start: Start, short_tmp: Path) -> None:
    up = start("--workers", "2", "--slots", "2")
    up.wait_for("ready: http://127.0.0.1:")
    session = up.oah("session", "create", "--agent", "shell")
    assert session.returncode == 0, session.stderr
    done = up.oah("run", "submit", session.stdout.strip(), "echo hello from $((40 + 2))", "--wait")
    assert (done.returncode, done.stdout) == (0, "hello from 42\n"), done.stderr
    (short_tmp / "ask.py").write_text(ASK)
    asked = f"{sys.executable} {short_tmp / 'ask.py'}"
    done = up.oah("run", "submit", session.stdout.strip(), asked, "--wait")
    assert (done.returncode, done.stdout) == (0, "from inside\n"), done.stderr
    up.wait_workers("worker-1", "worker-2")
    assert up.oah("doctor").returncode == 0
    assert (up.data_dir / "admin.key").stat().st_mode & 0o777 == 0o600
    before = up.descendants()
    assert len(before) >= 4
    up.ctrl_c()
    assert up.process.wait(30) == 0, "\n".join(up.lines[-40:])
    eventually(lambda: _gone(before), within=15, what="all processes gone")
    eventually(lambda: not _mentioning(up.data_dir), within=15, what="the private server and its keeper are gone")
    assert up.said("stopped")
    assert not up.said("had to be killed")


SCALES = {
    "OAH_SCALE__EVERY_SECONDS": "0.5",
    "OAH_SCALE__DOWN_COOLDOWN_SECONDS": "0",
    "OAH_SCALE__MEMORY_SECONDS": "0",
    "OAH_WORKER__HEARTBEAT_SECONDS": "1",
}


def test_a_crashed_worker_is_started_again_and_as_many_run_as_are_needed(start: Start, short_tmp: Path) -> None:
    up = start("--workers", "1..2", "--slots", "1", env=SCALES)
    up.wait_for("ready: ")
    up.wait_workers("worker-1")
    worker = up.child("worker", "run", "--name", "worker-1")
    assert worker is not None
    worker.kill()
    up.wait_for("worker-1 ended with SIGKILL")
    again = eventually(lambda: up.child("worker", "run", "--name", "worker-1"), within=15)
    assert again.pid != worker.pid
    with up.client as client:
        gates = [short_tmp / "gate-1", short_tmp / "gate-2"]
        runs = []
        for gate in gates:
            os.mkfifo(gate)
            runs.append(client.submit(client.create_session("shell")["id"], f"cat {gate}")["id"])
        up.wait_for("1 more, 2 workers now: worker-2")
        eventually(lambda: {client.run(run)["status"] for run in runs} == {"running"}, within=30, what="both run")
        for gate in gates:
            gate.write_text("over\n")
        for run in runs:
            assert client.wait(run, timeout=40)["status"] == "completed"
            assert len(client.attempts(run)) == 1
        up.wait_for("1 fewer, 1 workers now: ")
        outcomes = [each["outcome"] for each in client.scale_decisions()]
        assert outcomes[0] in ("draining", "scaled") and outcomes[-1] == "scaled"
    up.ctrl_c()
    assert up.process.wait(30) == 0


def test_the_second_ctrl_c_does_not_wait_for_a_long_run(start: Start) -> None:
    up = start("--workers", "1", env={"OAH_WORKER__DRAIN_GRACE_SECONDS": "300"})
    up.wait_for("ready: ")
    with up.client as client:
        run = client.submit(client.create_session("shell")["id"], "sleep 280")["id"]
        eventually(lambda: client.run(run)["status"] == "running", within=30, what="the run runs")
    before = up.descendants()
    up.ctrl_c()
    up.wait_for("stopping: ")
    with pytest.raises(subprocess.TimeoutExpired):
        up.process.wait(2)
    up.ctrl_c()
    assert up.process.wait(30) == 0
    eventually(lambda: _gone(before), within=15, what="all processes gone, agents too")


def test_children_end_when_the_parent_is_killed(start: Start) -> None:
    up = start("--workers", "1")
    up.wait_for("ready: ")
    children = psutil.Process(up.process.pid).children()
    assert len(children) == 4
    up.process.kill()
    eventually(lambda: _gone(children), within=30, what="api, controller, gateway and worker end by themselves")


def test_a_port_that_is_taken_is_said_at_once(short_tmp: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [*OAH, "up", "--data-dir", str(short_tmp / "d"), "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 4
    assert done.stderr.startswith("error: cannot listen on")
    assert done.stderr.count("\n") == 1


def test_a_gateways_port_that_is_taken_is_said_at_once(short_tmp: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = ["--port", str(free_port()), "--gateway-port", str(taken.getsockname()[1])]
        command = [*OAH, "up", "--data-dir", str(short_tmp / "d"), *ports]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 4
    assert "--no-gateway" in done.stderr
    assert done.stderr.count("\n") == 1


def test_settings_that_are_refused_end_it_at_once(start: Start, short_tmp: Path) -> None:
    up = start("--workers", "0", env={"OAH_DATABASE_URL": "mysql://nonsense"})
    assert up.process.wait(60) == 2
    assert up.said("cannot run with these settings") and up.said("'mysql' is no database we know")
    assert not up.said("starting it again"), "it would be refused again"
