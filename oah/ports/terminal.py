"""Terminals, and the host process that owns the agents behind them.

Guarantees every adapter gives: reading never depends on a consumer (buffers are bounded, drop the oldest bytes and
count them), a write never blocks beyond its deadline, an agent's tree is dead at its deadline, and "dead" is only said
after it was verified.

Deadlines of processes are CLOCK_BOOTTIME seconds (float): the clock that goes on while a machine sleeps. They never
travel to another machine; durations are timedelta.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

UNKILLABLE_AFTER = timedelta(seconds=30)
"""After this long a tree that cannot be emptied is reported as such (`agent_unkillable`); source: dispatch.md,
Ownership."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnSpec:
    """One program to start in a terminal of its own.

    `agent_id` names this process tree in all later calls: unique per opening, never reused, at most 64 bytes. A warm
    agent keeps it over several runs. `deadline_boottime` is when the deadman kills the tree unless it was extended; a
    spawn whose deadline has passed is refused. `env` is the whole environment: nothing of the worker's is added but
    the four OAH_* names of the tag. `limits`: bounds of its processes by the names of core/dialogue/housing.py.
    """

    agent_id: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    session_id: str
    run_id: str
    attempt: int
    worker_id: str
    deadline_boottime: float
    rows: int = 40
    cols: int = 100
    uid: int | None = None
    gid: int | None = None
    limits: Mapping[str, int] = field(default_factory=dict)


class ExitCause(StrEnum):
    """Why an agent's root process ended."""

    EXITED = "exited"  # by itself, or by a signal that somebody sent
    KILLED = "killed"  # by `kill`: a cancel, a timeout, a drain
    DEADLINE = "deadline"  # by the deadman at the deadline: the session may already belong to another worker
    LATE = "late"  # by the deadman: it had been stopped and no mark confirmed the ownership in time
    HOST_LOST = "host_lost"  # the host failed; the worker killed the tree


@dataclass(frozen=True, slots=True)
class ExitNotice:
    """The end of an agent's root process. `status` as waitpid gives it, None when nobody could wait for it."""

    agent_id: str
    cause: ExitCause
    status: int | None
    tree_empty: bool

    @property
    def exit_code(self) -> int | None:
        """0..255 for an exit, -N for signal N, None when unknown."""
        if self.status is None:
            return None
        signal = self.status & 0x7F
        return -signal if signal else (self.status >> 8) & 0xFF


class OutputSink(Protocol):
    """Whoever wants all bytes of a terminal, e.g. a recording. Called in the reader thread: must not block nor
    raise."""

    def feed(self, data: bytes) -> None:
        """Output of the program, in order, in arbitrary pieces."""

    def lost(self, count: int) -> None:
        """So many bytes were never seen (the terminal was closed before the end was read)."""


class Terminal(Protocol):
    """One agent's terminal as its slot thread sees it. Safe for one consumer and any number of observers."""

    def take(self, size: int, timeout: timedelta | None) -> bytes | None:
        """Up to `size` buffered bytes; None when `timeout` passed with none (None = wait for ever); b'' at the end.

        The end means that nobody holds the terminal any more, not that the program exited.
        """

    def write(self, data: bytes, timeout: timedelta) -> None:
        """Write all of `data` in pieces. Raises AgentError `agent_not_reading` at the deadline (how much went is in
        its message), `line_too_long` for a line over 4095 bytes in canonical mode (the kernel would drop the rest
        silently), `agent_gone`."""

    def resize(self, *, rows: int, cols: int) -> None:
        """Tell kernel and recording the new size."""

    def record(self, sink: OutputSink | None) -> None:
        """From now on give everything read to this sink (None = nobody)."""

    def canonical(self) -> bool:
        """Whether the line discipline collects whole lines now."""

    def echoes(self) -> bool:
        """Whether the kernel echoes input now."""

    def close(self) -> None:
        """Give the descriptor back. Ends nothing: kill the tree first. Repeatable."""

    @property
    def dropped(self) -> int:
        """Bytes dropped, oldest first, because nobody took them in time."""

    @property
    def closed(self) -> bool:
        """Whether the end was read or `close` was called."""


class AgentProcess(Protocol):
    """A spawned agent: its terminal and its root process."""

    @property
    def agent_id(self) -> str: ...

    @property
    def pid(self) -> int: ...

    @property
    def terminal(self) -> Terminal: ...

    def exited(self) -> ExitNotice | None:
        """The exit of the root process, None while it lives."""

    def wait(self, timeout: timedelta | None) -> ExitNotice | None:
        """Wait for it; None when `timeout` passed first."""

    def on_exit(self, call: Callable[[ExitNotice], None]) -> None:
        """Call this once when the root process ends (at once if it already has). In the reader thread: must not
        block."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What earlier incarnations had left on this host: processes killed, and those that could not be."""

    incarnations: int = 0
    killed: int = 0
    left: tuple[int, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether it was verified that nothing is left: only then may the worker claim."""
        return not self.left


@dataclass(frozen=True, slots=True)
class HostLost:
    """The host failed. The worker's side has killed the trees (`unkilled` names those not verified) and starts a new
    host."""

    reason: str
    agent_ids: tuple[str, ...]
    unkilled: tuple[str, ...] = field(default=())


class AgentHost(Protocol):
    """The PTY host as the worker sees it. Every call is safe from any thread."""

    def sweep(self) -> SweepReport:
        """Kill and verify what earlier incarnations of this worker name left on this host. Before `start`, under the
        name's lock."""

    def start(
        self,
        on_lost: Callable[[HostLost], None] | None = None,
        on_frozen: Callable[[], None] | None = None,
    ) -> None:
        """Start host and reader thread. Raises Unavailable when it cannot be started.

        `on_lost` is called after each loss, once the trees were killed and a new host runs, in a thread of its own.
        `on_frozen` is called, in the reader thread, when the late rule stopped all trees: mark in SQL at once (the mark
        thread is to be woken), they are killed one margin later.
        """

    def stop(self) -> bool:
        """Kill all trees, end the host. True when every tree was verified empty. Repeatable."""

    def spawn(self, spec: SpawnSpec) -> AgentProcess:
        """Start a program; returns when exec succeeded. While a lost host is replaced it waits.

        Raises AgentError `program_not_found`, `spawn_failed`, `deadline_passed`, `spawn_too_large` (request over 256
        KiB or one string over 128 KiB); Unavailable `host_away` when there is no host and nothing was started,
        `host_lost` when the host was lost meanwhile and whatever it had started is dead."""

    def extend(self, deadlines_boottime: Mapping[str, float]) -> None:
        """New deadlines by agent id, each the later of the confirmations of its session (+ lease - margin). The host
        takes the maximum of old and new; an id that is not spawned yet finds its deadline here when it is. An empty
        mapping still asks for an acknowledgement.
        Never blocks."""

    def marked(self, *, begun_boottime: float) -> None:
        """A mark in SQL succeeded that was begun at this moment. Trees frozen by the late rule go on only if it was
        begun after the freeze. Never blocks."""

    def acknowledged_at(self) -> float:
        """BOOTTIME at which the last acknowledged `extend` or `marked` was sent. When this is older than one period,
        both witnesses stop and the worker calls `abandon`."""

    def abandon(self, reason: str) -> None:
        """Give this host up as failed: kill host and trees from the worker's side and start again. Returns at once."""

    def signal(self, agent_id: str, signum: int) -> bool:
        """Send a signal to the terminal's foreground group (to the root when there is none). False when the agent is
        unknown or gone."""

    def kill(self, agent_id: str, *, timeout: timedelta = UNKILLABLE_AFTER) -> bool:
        """Kill the whole tree at once and verify. True only when it was seen empty; True for an agent that is already
        gone and verified. False after `timeout`: the tree is unkillable; the caller holds the session and cordons the
        worker."""

    def live(self) -> tuple[str, ...]:
        """Agent ids whose trees are not known to be empty."""
