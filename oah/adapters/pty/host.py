"""The PTY host as the worker holds it: spawn, deadlines, kill, and what happens when the host itself fails.

The worker is a child subreaper and knows pid, start time and tag of each agent, so it can kill every tree without the
host; it waits for its strays by pid, never for "any child" (which would steal the status of its other children).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from oah.adapters.pty import incarnations
from oah.adapters.pty.connection import Connection, boottime
from oah.adapters.pty.hostside import forking
from oah.adapters.pty.hostside.tree import TAG_BLOCK, Scanner, Tree, kill_round, read_process
from oah.adapters.pty.process import PtyProcess
from oah.adapters.pty.spawning import refusal_of, request_of
from oah.adapters.pty.terminal import BUFFER_BYTES, PtyTerminal, Reader
from oah.errors import AgentError, Unavailable
from oah.ports.terminal import UNKILLABLE_AFTER, ExitCause, ExitNotice, HostLost, SpawnSpec, SweepReport

SPAWN_SECONDS = 15.0
_LOOK_SECONDS = 0.02
_DEADLINES_PER_MESSAGE = 500
_RESTART_PAUSES = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)

_log = logging.getLogger(__name__)


class PtyHost:
    """ports.terminal.AgentHost. `margin`: a sixth of the lease. `state_dir`: below the worker name's locked
    directory."""

    def __init__(
        self,
        *,
        state_dir: Path,
        worker_id: str,
        margin: timedelta,
        deadman_enabled: bool = True,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self._state_dir = state_dir
        self._margin = margin.total_seconds()
        self._enabled = deadman_enabled
        self._buffer_bytes = buffer_bytes
        self._incarnation = incarnations.Incarnation(state_dir, worker_id)
        self._lock = threading.Lock()
        self._processes: dict[str, PtyProcess] = {}
        self._asked: set[str] = set()
        self._spawned = 0
        self._deadlines: dict[str, float] = {}
        self._connection: Connection | None = None
        self._reader = Reader()
        self._on_lost: Callable[[HostLost], None] = lambda _: None
        self._on_frozen: Callable[[], None] = lambda: None
        self._connecting = threading.Lock()
        self._stopping = threading.Event()
        if not deadman_enabled and os.environ.get("OAH_TESTING_DEADMAN_OFF") != "1":
            raise Unavailable(
                "the deadman can only be disarmed with OAH_TESTING_DEADMAN_OFF=1", code="deadman_required"
            )

    # -- life -------------------------------------------------------------------------------------------------------

    def sweep(self) -> SweepReport:
        """See ports.terminal.AgentHost."""
        return incarnations.sweep(self._state_dir, limit_seconds=UNKILLABLE_AFTER.total_seconds())

    def start(
        self,
        on_lost: Callable[[HostLost], None] | None = None,
        on_frozen: Callable[[], None] | None = None,
    ) -> None:
        """See ports.terminal.AgentHost."""
        self._on_lost = on_lost or self._on_lost
        self._on_frozen = on_frozen or self._on_frozen
        forking.prctl(forking.PR_SET_CHILD_SUBREAPER, 1)
        self._incarnation.begin()
        self._reader.start()
        self._connect()

    def _connect(self) -> None:
        connection = Connection(
            margin_seconds=self._margin,
            deadman_enabled=self._enabled,
            reader=self._reader,
            on_message=self._heard,
            on_gone=self._gone,
        )
        self._incarnation.record("host", connection.pid)
        self._connection = connection
        connection.open()
        if not self._enabled:
            _log.critical("THE DEADMAN IS OFF: agents outlive their deadlines; only a test that must fail may do this")

    def stop(self) -> bool:
        """See ports.terminal.AgentHost."""
        first = not self._stopping.is_set()
        self._stopping.set()
        with self._connecting:
            connection = self._connection
        if first and connection is not None and not connection.gone:
            try:
                connection.tell("stop")
            except Unavailable:
                _log.warning("the PTY host cannot be told to stop; killing the trees from here")
            else:
                connection.wait(UNKILLABLE_AFTER.total_seconds() + 5)
            connection.give_up("the worker stops")
        if connection is not None:
            connection.recovered.wait(UNKILLABLE_AFTER.total_seconds() + 5)
        if first:
            self._reader.stop()
        empty = not self.live()
        if empty:
            self._incarnation.end()
        return empty

    def abandon(self, reason: str) -> None:
        """See ports.terminal.AgentHost."""
        connection = self._connection
        if connection is not None:
            connection.give_up(reason)

    @property
    def host_pid(self) -> int:
        """Pid of the host process, 0 while there is none."""
        connection = self._connection
        return 0 if connection is None or connection.gone else connection.pid

    # -- spawn ------------------------------------------------------------------------------------------------------

    def spawn(self, spec: SpawnSpec) -> PtyProcess:
        """See ports.terminal.AgentHost."""
        with self._lock:
            if spec.agent_id in self._processes:
                raise AgentError(f"agent {spec.agent_id} exists already", code="spawn_failed")
            tag = self._next_tag()
        connection = self._await_connected()
        known = self._deadlines.get(spec.agent_id, spec.deadline_boottime)
        spec = replace(spec, deadline_boottime=max(known, spec.deadline_boottime))
        with self._lock:
            self._asked.add(spec.agent_id)
        try:
            process = self._spawn(connection, spec, tag)
        finally:
            with self._lock:
                self._asked.discard(spec.agent_id)
        self._incarnation.record("agent", process.pid)
        return process

    def _next_tag(self) -> int:
        """One of our block that no living agent carries."""
        carried = {process.tree.tag for process in self._processes.values()}
        while True:
            self._spawned = self._spawned % (TAG_BLOCK - 1) + 1
            tag = self._incarnation.block + self._spawned
            if tag not in carried:
                return tag

    def _adopt(self, spec: SpawnSpec, tag: int, answer: tuple[Any, ...], fds: list[int]) -> PtyProcess:
        """In the reader thread: known before its exit can be heard."""
        if answer[0] == "refused":
            raise refusal_of(spec, str(answer[2]), int(answer[3]))
        terminal = PtyTerminal(fds[0], buffer_bytes=self._buffer_bytes)
        process = PtyProcess(spec.agent_id, Tree(answer[2], answer[3], tag), terminal)
        with self._lock:
            self._processes[spec.agent_id] = process
        self._reader.add(terminal)
        return process

    def _spawn(self, connection: Connection, spec: SpawnSpec, tag: int) -> PtyProcess:
        request = request_of(spec, tag)
        future = connection.ask(lambda answer, fds: self._adopt(spec, tag, answer, fds), "spawn", request)
        try:
            process: PtyProcess = future.result(SPAWN_SECONDS)
        except (Unavailable, TimeoutError):
            connection.give_up("the PTY host did not answer a spawn")
            # It may have been forked: only after the recovery nothing of it is left, and its session may move.
            connection.recovered.wait(UNKILLABLE_AFTER.total_seconds())
            raise Unavailable("the PTY host was lost during a spawn", code="host_lost") from None
        return process

    def _await_connected(self) -> Connection:
        """A lost host is being replaced: wait for the next one. Raises Unavailable `host_away`: nothing was started."""
        end = time.monotonic() + SPAWN_SECONDS
        while not self._stopping.wait(_LOOK_SECONDS if self.host_pid == 0 else 0):
            try:
                return self._connected()
            except Unavailable:
                if time.monotonic() > end:
                    break
        raise Unavailable("there is no PTY host now", code="host_away")

    def _connected(self) -> Connection:
        connection = self._connection
        if connection is None or connection.gone or not connection.opened or self._stopping.is_set():
            raise Unavailable("there is no PTY host now", code="host_lost")
        return connection

    # -- deadlines --------------------------------------------------------------------------------------------------

    def extend(self, deadlines_boottime: Mapping[str, float]) -> None:
        """See ports.terminal.AgentHost."""
        self._remember(deadlines_boottime)
        connection = self._connection
        if connection is not None:
            entries = list(deadlines_boottime.items())
            for first in range(0, max(len(entries), 1), _DEADLINES_PER_MESSAGE):
                connection.report("extend", dict(entries[first : first + _DEADLINES_PER_MESSAGE]))

    def _remember(self, deadlines: Mapping[str, float]) -> None:
        """For agents that are not spawned yet."""
        now = boottime()
        with self._lock:
            kept = {agent_id: deadline for agent_id, deadline in self._deadlines.items() if deadline > now}
            for agent_id, deadline in deadlines.items():
                kept[agent_id] = max(deadline, kept.get(agent_id, deadline))
            self._deadlines = kept

    def marked(self, *, begun_boottime: float) -> None:
        """See ports.terminal.AgentHost."""
        connection = self._connection
        if connection is not None:
            connection.report("mark", begun_boottime)

    def acknowledged_at(self) -> float:
        """See ports.terminal.AgentHost."""
        connection = self._connection
        return 0.0 if connection is None else connection.acknowledged

    # -- signals and death ------------------------------------------------------------------------------------------

    def signal(self, agent_id: str, signum: int) -> bool:
        """See ports.terminal.AgentHost."""
        process = self._processes.get(agent_id)
        if process is None or process.exited() is not None:
            return False
        group = process.terminal.foreground_group()
        try:
            future = self._connected().ask(lambda answer, _: bool(answer[2]), "signal", agent_id, int(signum), group)
            return bool(future.result(SPAWN_SECONDS))
        except (Unavailable, TimeoutError):
            return False

    def kill(self, agent_id: str, *, timeout: timedelta = UNKILLABLE_AFTER) -> bool:
        """See ports.terminal.AgentHost."""
        process = self._processes.get(agent_id)
        if process is None:
            return True
        try:
            self._connected().tell("kill", agent_id)
        except Unavailable:
            _log.warning("agent %s is to be killed without a host", agent_id)
        return process.wait_empty(timeout)

    def live(self) -> tuple[str, ...]:
        """See ports.terminal.AgentHost."""
        with self._lock:
            return (*self._processes, *(self._asked - self._processes.keys()))

    def _heard(self, message: tuple[Any, ...]) -> None:
        match message:
            case ("exit", agent_id, cause, status, empty):
                self._ended(agent_id, ExitNotice(agent_id, ExitCause(cause), status, bool(empty)))
            case ("emptied", agent_id):
                self._ended(agent_id, None)
            case ("frozen", _, late):
                _log.warning("the PTY host looked %.3f s late and stopped all agents until a mark", late)
                self._on_frozen()
            case ("thawed",):
                _log.warning("a mark in SQL let the stopped agents go on")
            case ("log", text):
                _log.critical("%s", text)
            case _:
                _log.error("the PTY host said something unknown: %r", message[:1])

    def _ended(self, agent_id: str, notice: ExitNotice | None) -> None:
        process = self._processes.get(agent_id)
        if process is None:
            return
        if notice is None or notice.tree_empty:
            with self._lock:
                self._processes.pop(agent_id, None)
            self._incarnation.forget(process.pid)
        if notice is not None:
            process.ended(notice)
        else:
            process.emptied()

    # -- the host is lost -------------------------------------------------------------------------------------------

    def _gone(self, connection: Connection, reason: str) -> None:
        with self._lock:
            recovery = threading.Thread(
                target=self._recover, args=(connection, reason), name="host-recovery", daemon=True
            )
            recovery.start()

    def _recover(self, connection: Connection, reason: str) -> None:
        if not self._stopping.is_set():
            _log.error("PTY host lost (%s): killing its agents from the worker", reason)
        connection.destroy()
        self._incarnation.forget(connection.pid)
        with self._lock:
            processes = list(self._processes.values())
        dead = self._kill_from_here(processes)
        for process in processes:
            notice = ExitNotice(process.agent_id, ExitCause.HOST_LOST, None, process in dead)
            self._ended(process.agent_id, notice)
        connection.recovered.set()
        if self._stopping.is_set():
            return
        self._restart()
        unkilled = tuple(process.agent_id for process in processes if process not in dead)
        self._on_lost(HostLost(reason, tuple(process.agent_id for process in processes), unkilled))

    def _kill_from_here(self, processes: list[PtyProcess]) -> list[PtyProcess]:
        """Kill all trees of this incarnation: those we know, and by its block of tags what was forked but never
        reported."""
        scanner = Scanner(os.getsid(0))
        trees = [process.tree for process in processes]
        trees.append(Tree(0, 0, self._incarnation.block, block=True))
        end = time.monotonic() + UNKILLABLE_AFTER.total_seconds()
        pause = 0.001
        while not all(tree.empty for tree in trees) and time.monotonic() < end:
            if kill_round(trees, scanner):
                time.sleep(pause)
                pause = min(pause * 2, 0.1)
            _reap_strays(trees)
        return [process for process in processes if process.tree.empty]

    def _restart(self) -> None:
        attempt = 0
        while not self._stopping.wait(_RESTART_PAUSES[min(attempt, len(_RESTART_PAUSES) - 1)]):
            attempt += 1
            try:
                with self._connecting:
                    if not self._stopping.is_set():
                        self._connect()
                return
            except (Unavailable, OSError):
                _log.exception("the PTY host does not start; trying again")


def _reap_strays(trees: list[Tree]) -> None:
    """Wait for dead members that came to us when the host died. By pid only."""
    own = os.getpid()
    for tree in trees:
        for pid, start in tree.known.items():
            process = read_process(pid)
            if process is not None and process.start == start and process.ppid == own and process.state == "Z":
                try:
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
                except ChildProcessError:
                    continue
