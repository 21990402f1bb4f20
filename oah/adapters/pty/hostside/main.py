"""The PTY host: forks agents, owns their trees, reaps, and kills them at their deadlines.

A process of its own beside each worker, single-threaded, in a session of its own, deaf to INT, TERM, HUP and TSTP; it
lives by its connection and dies, with all trees, when the worker goes. It never blocks: not on the socket, not on
exec, not on a log.

Messages are marshalled tuples on a SEQPACKET socket. To the host: ``spawn number spec``, ``extend number {id:
deadline}``, ``mark number begun``, ``kill id``, ``signal number id signum pgrp``, ``stop``. From it: ``ready``,
``spawned number pid start`` (with the terminal's descriptor), ``refused number step errno``, ``ack number``, ``frozen
moment late``, ``thawed``, ``exit id cause status empty``, ``emptied id``, ``signalled number done``, ``log text``.
"""

from __future__ import annotations

import array
import marshal
import os
import select
import signal
import socket
import sys
import time

from oah.adapters.pty.hostside import forking, tree
from oah.adapters.pty.hostside.deadman import Deadman

TYPE_CHECKING = False  # the host starts faster without the module typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

UNKILLABLE_AFTER = 30.0
_MAX_MESSAGE = 524288
_REAPED_PER_TURN = 64
_LOGS_KEPT = 1000


def boottime() -> float:
    """CLOCK_BOOTTIME in seconds: goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Agent:
    """One tree and where it stands: starting (errors pipe open), living, or dying (cause set)."""

    def __init__(self, agent_id: str, number: int, forked: forking.Forked, tag: int) -> None:
        self.agent_id, self.number, self.forked = agent_id, number, forked
        self.tree = tree.Tree(forked.pid, tree.start_time(forked.pid), tag)
        self.starting = True
        self.cause: str | None = None
        self.dying_since = 0.0
        self.status: int | None = None
        self.reported = False


class Host:
    """The loop and its state."""

    def __init__(self, sock: socket.socket, worker: int, *, margin: float, enabled: bool) -> None:
        self.sock = sock
        self.worker_fd = os.pidfd_open(worker)
        self.deadman = Deadman(margin=margin, now=boottime(), used=time.process_time(), enabled=enabled)
        self.scanner = tree.Scanner(os.getsid(0))
        self.agents: dict[str, Agent] = {}
        self.by_errors: dict[int, Agent] = {}
        self.outbox: list[tuple[tuple[Any, ...], int | None]] = []
        self.handlers: dict[str, Callable[..., None]] = {
            "spawn": self.spawn,
            "extend": self.extend,
            "mark": self.mark,
            "kill": self.kill,
            "signal": self.signal,
            "stop": self.stop,
        }
        self.orphaned = False  # the worker is gone
        self.ending = False  # orphaned, or told to stop: kill all, then leave
        self.poller = select.epoll()
        self.poller.register(sock.fileno(), select.EPOLLIN)
        self.poller.register(self.worker_fd, select.EPOLLIN)
        self.wake_reader, self.wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.poller.register(self.wake_reader, select.EPOLLIN)
        signal.set_wakeup_fd(self.wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    # -- the loop ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self.say(("ready", os.getpid()))
        if not self.deadman.enabled:
            self.say(
                ("log", "THE DEADMAN IS OFF: agents outlive their deadlines; only a test that must fail does this")
            )
        retry = 0.001
        while not (self.ending and self._nothing_left()):
            dying = [agent for agent in self.agents.values() if agent.cause is not None]
            pause = self.deadman.sleeping(boottime())
            ready = self.poller.poll(min(pause, retry) if dying else pause)
            self.look()
            for fd, _ in ready:
                self.serve(fd)
                self.look()
            self.bury()
            retry = min(retry * 2, 0.1) if dying and not ready else 0.001
            self.flush()

    def _nothing_left(self) -> bool:
        if not self.agents:
            return not self.outbox or self.orphaned
        overdue = boottime() - UNKILLABLE_AFTER
        return all(agent.cause is not None and agent.dying_since < overdue for agent in self.agents.values())

    def look(self) -> float:
        """Read the clock, before any decision: freeze when late, condemn what is overdue."""
        now = boottime()
        late = self.deadman.late(now, time.process_time())
        if late:
            tree.freeze([agent.tree for agent in self.agents.values() if agent.cause is None], self.scanner)
            self.deadman.freeze(now)
            self.say(("frozen", now, late))
        for agent_id, cause in self.deadman.overdue(now):
            self.condemn(self.agents[agent_id], cause)
        return now

    def serve(self, fd: int) -> None:
        if fd == self.sock.fileno():
            self.hear()
        elif fd == self.worker_fd:
            self.poller.unregister(fd)
            self.widow()
        elif fd == self.wake_reader:
            os.read(fd, 4096)
            self.reap()
        elif fd in self.by_errors:
            self.started(self.by_errors[fd])

    def widow(self) -> None:
        """The worker is gone."""
        if self.orphaned:
            return
        self.orphaned = self.ending = True
        try:
            self.poller.unregister(self.sock.fileno())
        except (OSError, ValueError):
            pass
        self.condemn_all("deadline")

    # -- what the worker says ---------------------------------------------------------------------------------------

    def hear(self) -> None:
        for _ in range(64):
            try:
                data = self.sock.recv(_MAX_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.widow()
                return
            self.obey(marshal.loads(data))
            self.look()

    def obey(self, message: tuple[Any, ...]) -> None:
        kind, *arguments = message
        self.handlers[kind](*arguments)

    def extend(self, number: int, deadlines: dict[str, float]) -> None:
        for agent_id, deadline in deadlines.items():
            self.deadman.extend(agent_id, deadline)
        self.say(("ack", number))

    def mark(self, number: int, begun: float) -> None:
        if self.deadman.marked(begun, boottime()):
            tree.thaw([agent.tree for agent in self.agents.values() if agent.cause is None])
            self.say(("thawed",))
        self.say(("ack", number))

    def kill(self, agent_id: str) -> None:
        if agent_id in self.agents:
            self.condemn(self.agents[agent_id], "killed")

    def stop(self) -> None:
        self.ending = True
        self.condemn_all("killed")

    def spawn(self, number: int, spec: dict[str, Any]) -> None:
        if self.ending or (self.deadman.enabled and spec["deadline"] <= boottime()):
            self.say(("refused", number, "deadline", 0))
            return
        try:
            forked = forking.fork_in_terminal(spec, spec["tag"])
        except OSError as error:
            self.say(("refused", number, "fork", error.errno or 0))
            return
        agent = Agent(spec["agent_id"], number, forked, spec["tag"])
        self.agents[agent.agent_id] = agent
        self.deadman.add(agent.agent_id, spec["deadline"])
        self.by_errors[forked.errors] = agent
        self.poller.register(forked.errors, select.EPOLLIN)

    def started(self, agent: Agent) -> None:
        """The errors pipe ended (exec succeeded, or the child was killed before) or says why exec failed."""
        errors = agent.forked.errors
        try:
            error = os.read(errors, 4096)
        except BlockingIOError:
            return
        # Another child that has not come to its exec yet may hold a copy: closed only, the pipe would go on to be
        # reported under a number that is somebody else's by then.
        self.poller.unregister(errors)
        del self.by_errors[errors]
        os.close(errors)
        agent.starting = False
        if not error:
            self.say(("spawned", agent.number, agent.forked.pid, agent.tree.start), agent.forked.master)
            return
        os.close(agent.forked.master)
        agent.reported = True
        step, errno = marshal.loads(error)
        self.say(("refused", agent.number, step, errno))
        self.condemn(agent, "refused")

    def signal(self, number: int, agent_id: str, signum: int, group: int) -> None:
        self.say(("signalled", number, self.deliver(agent_id, signum, group)))

    def deliver(self, agent_id: str, signum: int, group: int) -> bool:
        """To the terminal's foreground group, as the worker read it; to the root when that is gone. The root is not
        reaped yet, so neither number can be anybody else's."""
        agent = self.agents.get(agent_id)
        if agent is None or agent.cause is not None:
            return False
        try:
            if group > 0 and os.getsid(group) == agent.forked.pid:
                os.killpg(group, signum)
            else:
                os.kill(agent.forked.pid, signum)
        except OSError:
            return tree.send(agent.forked.pid, signum)
        return True

    # -- death ------------------------------------------------------------------------------------------------------

    def condemn_all(self, cause: str) -> None:
        for agent in list(self.agents.values()):
            self.condemn(agent, cause)

    def condemn(self, agent: Agent, cause: str) -> None:
        """This tree dies; the rounds follow in `bury`, all trees together. The root is stopped at once."""
        if agent.cause is None:
            agent.cause = cause
            agent.dying_since = boottime()
            self.deadman.forget(agent.agent_id)
            if agent.status is None:
                tree.send(agent.forked.pid, signal.SIGSTOP)

    def reap(self) -> None:
        """Wait for what has died, bounded per turn. A root's end condemns the rest of its tree."""
        roots = {agent.forked.pid: agent for agent in self.agents.values() if agent.status is None}
        for _ in range(_REAPED_PER_TURN):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            agent = roots.pop(pid, None)
            if agent is not None:
                agent.status = status
                self.condemn(agent, "exited")

    def bury(self) -> None:
        """One round over all dying trees; report those that are empty, or cannot be emptied."""
        self.reap()
        dying = [agent for agent in self.agents.values() if agent.cause is not None]
        if not dying:
            return
        alone = len(dying) == len(self.agents)
        tree.kill_round([agent.tree for agent in dying], self.scanner, orphans_of=os.getpid() if alone else 0)
        self.reap()
        now = boottime()
        for agent in dying:
            done = agent.tree.empty and agent.status is not None and not agent.starting
            if done or (now - agent.dying_since > UNKILLABLE_AFTER and not agent.reported):
                self.report(agent, empty=done)
            if done:
                del self.agents[agent.agent_id]

    def report(self, agent: Agent, *, empty: bool) -> None:
        if not agent.reported:
            agent.reported = True
            self.say(("exit", agent.agent_id, agent.cause, agent.status, empty))
        elif empty:
            self.say(("emptied", agent.agent_id))

    # -- what the host says -----------------------------------------------------------------------------------------

    def say(self, message: tuple[Any, ...], fd: int | None = None) -> None:
        """Never blocks. What the worker does not read waits here; acknowledgements and logs are dropped before
        anything else."""
        if self.orphaned:
            if fd is not None:
                os.close(fd)
            return
        self.outbox.append((message, fd))
        if len(self.outbox) > _LOGS_KEPT:
            self.outbox = [entry for entry in self.outbox if entry[0][0] not in ("ack", "log")]
        self.flush()

    def flush(self) -> None:
        while self.outbox:
            message, fd = self.outbox[0]
            passed = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
            try:
                self.sock.sendmsg([marshal.dumps(message)], passed)
            except BlockingIOError:
                return
            except OSError:
                self.widow()
            self.outbox.pop(0)
            if fd is not None:
                os.close(fd)


def main(arguments: list[str]) -> None:
    """`fd worker-pid margin-seconds deadman-on`, after which the process is a host until its worker is gone."""
    fd, worker, margin, enabled = int(arguments[0]), int(arguments[1]), float(arguments[2]), arguments[3] != "off"
    forking.prctl(forking.PR_SET_DUMPABLE, 0)
    os.set_inheritable(fd, False)  # noqa: FBT003 - no keyword
    for signum in forking.IGNORED_BY_HOST:
        signal.signal(signum, signal.SIG_IGN)
    os.setsid()
    forking.prctl(forking.PR_SET_CHILD_SUBREAPER, 1)
    sock = socket.socket(fileno=fd)
    sock.settimeout(0)
    if not enabled and os.environ.get("OAH_TESTING_DEADMAN_OFF") != "1":
        sys.exit("the deadman can only be disarmed with OAH_TESTING_DEADMAN_OFF=1")
    Host(sock, worker, margin=margin, enabled=enabled).run()
