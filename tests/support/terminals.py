"""A PTY host and agents on it, without a worker around them."""

import contextlib
import itertools
import os
import resource
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from oah.adapters.blobs.directory import DirectoryBlobs
from oah.adapters.pty.agents import PtyAgent, Surroundings
from oah.adapters.pty.connection import boottime
from oah.adapters.pty.factory import PtyAgents
from oah.adapters.pty.host import PtyHost
from oah.adapters.pty.process import PtyProcess
from oah.adapters.pty.profiles import load_profiles
from oah.adapters.pty.recording import RecordingWriter
from oah.ports.agent import AgentSpec, KillLadder, TurnRequest, TurnResult
from oah.ports.terminal import SpawnSpec
from oah.testing import processes
from oah.testing.turns import HeldTurn
from tests.support.waiting import eventually

TESTING_AGENTS = Path(__file__).parents[2] / "oah" / "testing" / "agents.d"
SHORT = timedelta(seconds=0.3)
QUICK_LADDER = KillLadder(key=SHORT, interrupt=SHORT, terminate=SHORT)
LONG = timedelta(seconds=20)

_numbers = itertools.count(1)


def resident_kib(pid: int) -> int:
    """Memory of a process that is in RAM."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() // 1024


@contextlib.contextmanager
def watched_memory(*pids: int) -> Iterator[dict[int, int]]:
    """What each process has grown by at most, in KiB, filled in at the end."""
    before = {pid: resident_kib(pid) for pid in pids}
    most = dict(before)
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            most.update((pid, max(most[pid], resident_kib(pid))) for pid in pids)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    grown: dict[int, int] = {}
    try:
        yield grown
    finally:
        over.set()
        thread.join()
        grown.update((pid, most[pid] - before[pid]) for pid in pids)


def nap(number: int) -> str:
    """An argument for `sleep` that only this test of this process uses."""
    return f"{number}.{os.getpid()}"


def napping(number: int) -> list[int]:
    """Living processes that sleep so."""
    return processes.with_argument(nap(number))


def pass_time(seconds: float) -> None:
    """Until so many seconds of CLOCK_BOOTTIME have passed: for rules about time itself, never to let something
    happen."""
    end = boottime() + seconds
    eventually(lambda: boottime() >= end, within=seconds + 10, what=f"{seconds} s")


def spec(*argv: str, life: float = 60.0, agent_id: str | None = None, **more: object) -> SpawnSpec:
    values: dict[str, object] = {
        "agent_id": agent_id or f"agent-{next(_numbers)}",
        "argv": argv,
        "env": {"PATH": "/usr/bin:/bin", "TERM": "dumb"},
        "cwd": "/",
        "session_id": "ses_1",
        "run_id": "run_1",
        "attempt": 1,
        "worker_id": "w.1",
        "deadline_boottime": boottime() + life,
        **more,
    }
    return SpawnSpec(**values)  # type: ignore[arg-type]


@contextlib.contextmanager
def pty_host(directory: Path, *, margin: float = 5.0, **more: object) -> Iterator[PtyHost]:
    """A started host; everything is dead afterwards."""
    host = PtyHost(state_dir=directory / "incarnations", worker_id="w.1", margin=timedelta(seconds=margin), **more)  # type: ignore[arg-type]
    host.start()
    try:
        yield host
    finally:
        assert host.stop(), f"processes of {host.live()} are left"


def read_all(process: PtyProcess, *, within: float = 20.0) -> bytes:
    """Everything until nobody holds the terminal."""
    chunks: list[bytes] = []

    def ended() -> bool:
        data = process.terminal.take(1 << 20, timedelta(seconds=0.05))
        chunks.append(data or b"")
        return data == b""

    eventually(ended, within=within, what="the terminal's end")
    return b"".join(chunks)


def read_until(process: PtyProcess, text: bytes, *, within: float = 20.0) -> bytes:
    """What was written up to this text and beyond, as far as it came."""
    seen = bytearray()

    def found() -> bool:
        seen.extend(process.terminal.take(65536, timedelta(seconds=0.05)) or b"")
        return text in seen

    eventually(found, within=within, what=f"{text!r} in the output")
    return bytes(seen)


@dataclass
class Bench:
    """Agents of all profiles over one host."""

    directory: Path
    host: PtyHost
    agents: PtyAgents
    blobs: DirectoryBlobs
    runs: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    opened: list[PtyAgent] = field(default_factory=list)

    def open(self, profile: str, **more: object) -> PtyAgent:
        values: dict[str, object] = {
            "agent_id": f"agent-{next(_numbers)}",
            "session_id": "ses_1",
            "workspace_id": "default",
            "profile": profile,
            "run_id": "run_0",
            "attempt": 1,
            "worker_id": "w.1",
            "cwd": str(self.directory),
            "home": str(self.directory / "home"),
            "deadline_boottime": boottime() + 120,
            **more,
        }
        agent = self.agents.open(AgentSpec(**values))  # type: ignore[arg-type]
        self.opened.append(agent)
        return agent

    def fresh(self) -> "Bench":
        """For the next test: run numbers begin at 1 again."""
        self.runs = itertools.count(1)
        return self

    def close_agents(self) -> None:
        """End what a test opened; every tree must be empty."""
        while self.opened:
            assert self.opened.pop().close(timedelta(0))
        assert self.host.live() == ()

    def turn(
        self,
        agent: PtyAgent,
        text: str,
        *,
        control: HeldTurn | None = None,
        timeout: float | None = 30.0,
        **more: Any,
    ) -> TurnResult:
        run_id = f"run_{next(self.runs)}"
        agent.bind(run_id=run_id, attempt=1)
        limit = None if timeout is None else timedelta(seconds=timeout)
        request = TurnRequest(run_id=run_id, attempt=1, input=text, timeout=limit, ladder=QUICK_LADDER, **more)
        return agent.turn(request, control or HeldTurn())

    def once(self, text: str, **more: object) -> TurnResult:
        """A turn of a fresh `exec` agent."""
        return self.turn(self.open("exec"), text, **more)  # type: ignore[arg-type]


@contextlib.contextmanager
def bench(directory: Path, *, margin: float = 5.0, profiles: Path = TESTING_AGENTS) -> Iterator[Bench]:
    """Host, agents and recordings below one directory."""
    blobs, writer = DirectoryBlobs(directory / "blobs"), RecordingWriter(seconds=0.5)
    writer.start()
    with pty_host(directory, margin=margin) as host:
        around = Surroundings(host, blobs, writer, directory / "scratch")
        agents = PtyAgents(load_profiles(profiles), around)
        agents.prepare()
        made = Bench(directory, host, agents, blobs)
        yield made
        made.close_agents()
    writer.stop()
