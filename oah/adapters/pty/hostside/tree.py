"""Process trees: find, freeze, thaw and kill all of an agent, however it forked.

A tree is the root's descendants, the members of every session that a member belongs to, and whoever carries the tag:
RLIMIT_LOCKS (number 10, not enforced by Linux since 2.4; inherited by fork, kept by exec, `env -i`, setsid and setuid)
or the environment name OAH_AGENT_TAG. Known by pid and start time, so that a recycled pid is never taken for a member.

One scan of /proc serves all trees of a round. "Empty" is two scans in a row that find nobody alive; a zombie is dead.
An empty scan is no proof against a process that changes its pid faster than one scan takes.
"""

from __future__ import annotations

import os
import resource
import signal

RLIMIT_LOCKS = 10
TAG_NAME = "OAH_AGENT_TAG"
TAG_BLOCK = 1 << 20
"""Tags of one worker incarnation: it draws a random block and counts its agents inside."""
EMPTY_SCANS = 2
_ENVIRON_READ = 262144


class Process:
    """One line of /proc as a scan saw it."""

    __slots__ = ("pid", "ppid", "sid", "start", "state", "threads")

    def __init__(self, pid: int, ppid: int, sid: int, start: int, state: str, threads: int) -> None:
        self.pid, self.ppid, self.sid, self.start, self.state, self.threads = pid, ppid, sid, start, state, threads

    @property
    def alive(self) -> bool:
        """A zombie is dead, unless it is only a first thread that ended before the others."""
        return self.state not in "ZX" or self.threads > 1

    @property
    def stopped(self) -> bool:
        return self.state in "Tt"


class Tree:
    """One agent's processes. `pid` and `start` name the root, `tag` what its members carry (0 = no tag).

    With `block` the tree is everything an incarnation of a worker left: all tags of the block that starts at `tag`, no
    root.
    """

    __slots__ = ("block", "empty_scans", "frozen", "known", "pid", "sessions", "start", "tag")

    def __init__(self, pid: int, start: int, tag: int, *, block: bool = False) -> None:
        self.pid, self.start, self.tag, self.block = pid, start, tag, block
        self.known: dict[int, int] = {pid: start} if pid else {}
        self.sessions: set[int] = {pid} if pid else set()
        self.frozen: list[tuple[int, int]] = []
        self.empty_scans = 0

    @property
    def empty(self) -> bool:
        return self.empty_scans >= EMPTY_SCANS


def read_process(pid: int) -> Process | None:
    """Its line, None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            line = file.read(1024)
    except OSError:
        return None
    fields = line[line.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), chr(fields[0][0]), int(fields[17]))


def start_time(pid: int) -> int:
    """Clock ticks since boot at which it started, 0 when it is gone."""
    process = read_process(pid)
    return process.start if process else 0


def send(pid: int, signum: int) -> bool:
    """Signal one process; False when it is gone or not ours."""
    try:
        os.kill(pid, signum)
    except OSError:
        return False
    return True


class Scanner:
    """Reads /proc. Remembers the tag of each process, which cannot change upwards in its life."""

    def __init__(self, own_session: int) -> None:
        self.own_session = own_session
        self._tags: dict[tuple[int, int], int] = {}

    def table(self) -> dict[int, Process]:
        """All processes by pid."""
        found: dict[int, Process] = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                process = read_process(int(name))
                if process is not None:
                    found[process.pid] = process
        return found

    def tag(self, process: Process) -> int:
        """The number it carries, 0 for none."""
        key = (process.pid, process.start)
        tag = self._tags.get(key)
        if tag is None:
            tag = _limit_of(process.pid) or _environ_tag_of(process.pid)
            self._tags[key] = tag
        return tag

    def members(self, trees: list[Tree], *, orphans_of: int = 0, stop: bool = False) -> dict[int, list[Process]]:
        """The processes of each tree by index into `trees`, dead ones included. With `stop`, SIGSTOP each as it is
        found.

        `orphans_of`: children of this process that belong to no tree are given to the first one.
        """
        table = self.table()
        self._tags = {key: tag for key, tag in self._tags.items() if key[0] in table and table[key[0]].start == key[1]}
        owner = self._seeds(table, trees, orphans_of=orphans_of, stop=stop)
        self._close(table, owner, stop=stop)
        found: dict[int, list[Process]] = {index: [] for index in range(len(trees))}
        for pid, index in owner.items():
            found[index].append(table[pid])
        for index, tree in enumerate(trees):
            tree.known = {process.pid: process.start for process in found[index]}
            tree.sessions = {process.sid for process in found[index]} - {self.own_session, 0}
        return found

    def _seeds(self, table: dict[int, Process], trees: list[Tree], *, orphans_of: int, stop: bool) -> dict[int, int]:
        by_tag = {tree.tag: index for index, tree in enumerate(trees) if tree.tag and not tree.block}
        by_block = {tree.tag // TAG_BLOCK: index for index, tree in enumerate(trees) if tree.block}
        by_session = {sid: index for index, tree in enumerate(trees) for sid in tree.sessions}
        by_known = {(pid, start): index for index, tree in enumerate(trees) for pid, start in tree.known.items()}
        own = os.getpid()
        owner: dict[int, int] = {}
        for pid, process in table.items():
            index = by_known.get((pid, process.start))
            if index is None:
                index = by_session.get(process.sid)
            if index is None and pid != own and process.ppid != 2:
                tag = self.tag(process)
                index = by_tag.get(tag, by_block.get(tag // TAG_BLOCK))
                if index is None and orphans_of and process.ppid == orphans_of:
                    index = 0
            if index is not None and pid != own:
                _take(owner, process, index, stop=stop)
        return owner

    def _close(self, table: dict[int, Process], owner: dict[int, int], *, stop: bool) -> None:
        """Add children and fellow session members of members until nobody is added."""
        children: dict[int, list[Process]] = {}
        fellows: dict[int, list[Process]] = {}
        for process in table.values():
            children.setdefault(process.ppid, []).append(process)
            fellows.setdefault(process.sid, []).append(process)
        own = os.getpid()
        work = list(owner)
        while work:
            pid = work.pop()
            member = table[pid]
            near = children.get(pid, [])
            if member.sid not in (self.own_session, 0):
                near = near + fellows.get(member.sid, [])
            for process in near:
                if process.pid not in owner and process.pid != own:
                    _take(owner, process, owner[pid], stop=stop)
                    work.append(process.pid)


def _take(owner: dict[int, int], process: Process, index: int, *, stop: bool) -> None:
    owner[process.pid] = index
    if stop and process.alive:
        send(process.pid, signal.SIGSTOP)


def _limit_of(pid: int) -> int:
    try:
        limit = resource.prlimit(pid, RLIMIT_LOCKS)[1]
    except PermissionError:
        limit = _limit_from_proc(pid)
    except (OSError, ValueError):
        return 0
    return 0 if limit == resource.RLIM_INFINITY else limit


def _limit_from_proc(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            for line in file:
                if line.startswith(b"Max file locks"):
                    hard = line.split()[4]
                    return int(hard) if hard.isdigit() else 0
    except OSError:
        pass
    return 0


def _environ_tag_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            environ = file.read(_ENVIRON_READ)
    except OSError:
        return 0
    for entry in environ.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name == TAG_NAME.encode() and value.isdigit():
            return int(value)
    return 0


def freeze(trees: list[Tree], scanner: Scanner, *, rounds: int = 3) -> None:
    """SIGSTOP every tree, parents before children (a shell must not see its child stop). What was stopped before is
    left alone.

    The roots are stopped first and at once; later rounds catch what was forked meanwhile.
    """
    for tree in trees:
        process = read_process(tree.pid)
        running = process is not None and process.start == tree.start and not process.stopped
        if running and not tree.frozen and send(tree.pid, signal.SIGSTOP):
            tree.frozen.append((tree.pid, tree.start))
    for _ in range(rounds):
        found = scanner.members(trees)
        fresh = [_freeze_one(tree, found[index]) for index, tree in enumerate(trees)]
        if not any(fresh):
            return


def _freeze_one(tree: Tree, members: list[Process]) -> int:
    done = set(tree.frozen)
    count = 0
    for process in _top_down(members):
        fresh = process.alive and not process.stopped and (process.pid, process.start) not in done
        if fresh and send(process.pid, signal.SIGSTOP):
            tree.frozen.append((process.pid, process.start))
            count += 1
    return count


def _top_down(members: list[Process]) -> list[Process]:
    """Parents before children."""
    by_pid = {process.pid: process for process in members}

    def depth(process: Process) -> int:
        steps = 0
        while process.ppid in by_pid and steps <= len(by_pid):
            process = by_pid[process.ppid]
            steps += 1
        return steps

    return sorted(members, key=depth)


def thaw(trees: list[Tree]) -> None:
    """SIGCONT what `freeze` stopped, children before parents."""
    for tree in trees:
        order: dict[int, int] = dict(tree.frozen)
        members = [process for pid in order if (process := read_process(pid)) is not None]
        for process in reversed(_top_down(members)):
            if process.start == order[process.pid]:
                send(process.pid, signal.SIGCONT)
        tree.frozen = []


def kill_round(trees: list[Tree], scanner: Scanner, *, orphans_of: int = 0) -> int:
    """One round over all trees that are to die: stop while scanning, then kill. Returns how many were still alive.

    Repeat, with reaping between, until every tree is `empty`.
    """
    for tree in trees:
        if tree.pid and start_time(tree.pid) == tree.start:
            send(tree.pid, signal.SIGSTOP)
    found = scanner.members(trees, orphans_of=orphans_of, stop=True)
    alive = 0
    for index, tree in enumerate(trees):
        living = [process for process in found[index] if process.alive]
        for process in living:
            send(process.pid, signal.SIGKILL)
        tree.empty_scans = 0 if living else tree.empty_scans + 1
        alive += len(living)
    return alive
