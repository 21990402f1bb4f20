"""What earlier incarnations of a worker left on this host: recorded before the first fork, killed by the next
incarnation.

One file per incarnation below `<directory>`: a line with boot id, worker id and the block of tags its agents carry,
then a line per host and per agent with pid and start time. The tag finds what forked away; the lines find what could
not be tagged. A file is removed only once nothing of it was found alive twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import signal
import threading
import time
from pathlib import Path

from oah.adapters.pty.hostside import tree
from oah.ports.terminal import SweepReport

_SUFFIX = ".incarnation"
_REWRITTEN_AFTER = 1000


def draw_block() -> int:
    """First tag of a random block. Inside another agent it must lie below that one's tag, where there is room."""
    hard = resource.getrlimit(tree.RLIMIT_LOCKS)[1]
    blocks = 1 << 40
    if hard != resource.RLIM_INFINITY and hard // tree.TAG_BLOCK > 16:
        blocks = min(blocks, hard // tree.TAG_BLOCK)
    return (1 + secrets.randbelow(blocks - 1)) * tree.TAG_BLOCK


class Incarnation:
    """This one's file. It is rewritten with what still lives whenever it has grown by a thousand lines."""

    def __init__(self, directory: Path, worker_id: str) -> None:
        self.block = draw_block()
        self._directory = directory
        self._path = directory / f"{self.block:x}{_SUFFIX}"
        self._first = {"boot": _boot_id(), "worker": worker_id, "block": self.block}
        self._lock = threading.Lock()
        self._file: int | None = None
        self._living: dict[int, dict[str, object]] = {}
        self._written = 0

    def begin(self) -> None:
        """Write the first line, durably: it must be there before anything is forked. Repeatable."""
        with self._lock:
            if self._file is None:
                self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._rewrite()

    def record(self, kind: str, pid: int) -> None:
        """A `host` or an `agent` that was started."""
        with self._lock:
            line: dict[str, object] = {kind: pid, "start": tree.start_time(pid)}
            self._living[pid] = line
            if self._file is None:
                return
            os.write(self._file, _encoded(line))
            self._written += 1
            if self._written > _REWRITTEN_AFTER + 2 * len(self._living):
                self._rewrite()

    def forget(self, pid: int) -> None:
        """It and its tree were verified dead."""
        with self._lock:
            self._living.pop(pid, None)

    def end(self) -> None:
        """Everything was verified dead."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None
                self._path.unlink(missing_ok=True)

    def _rewrite(self) -> None:
        partial = self._path.with_suffix(".partial")
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.write(file, b"".join(_encoded(line) for line in (self._first, *self._living.values())))
        os.fsync(file)
        partial.replace(self._path)
        if self._file is not None:
            os.close(self._file)
        self._file, self._written = file, 0


def _encoded(line: dict[str, object]) -> bytes:
    return json.dumps(line).encode() + b"\n"


def sweep(directory: Path, *, limit_seconds: float) -> SweepReport:
    """Kill and verify what the files in `directory` name. Only under the worker name's lock."""
    incarnations, killed, left = 0, 0, set[int]()
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        incarnations += 1
        lines = _lines(path)
        if not lines or lines[0].get("boot") != _boot_id():
            path.unlink(missing_ok=True)
            continue
        died, remaining = _kill(lines, time.monotonic() + limit_seconds)
        killed += died
        left |= remaining
        if not remaining:
            path.unlink(missing_ok=True)
    return SweepReport(incarnations=incarnations, killed=killed, left=tuple(sorted(left)))


def _kill(lines: list[dict[str, object]], end: float) -> tuple[int, set[int]]:
    scanner = tree.Scanner(os.getsid(0))
    block = _number(lines[0].get("block"))
    remains = tree.Tree(0, 0, block, block=True)
    for line in lines[1:]:
        pid, start = _number(line.get("host") or line.get("agent")), _number(line.get("start"))
        process = tree.read_process(pid) if pid else None
        if process is not None and process.start == start:
            remains.known[pid] = start
            if "host" in line:
                tree.send(pid, signal.SIGKILL)
    seen: set[int] = set()
    pause = 0.001
    while True:
        alive = tree.kill_round([remains], scanner)
        seen |= set(remains.known) if alive else set()
        if remains.empty:
            return len(seen), set()
        if time.monotonic() > end:
            return len(seen), set(remains.known)
        time.sleep(pause if alive else 0)
        pause = min(pause * 2, 0.1)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _lines(path: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for text in path.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):  # the last line of a killed process may be torn
            line = json.loads(text)
            if isinstance(line, dict):
                found.append(line)
    return found


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
