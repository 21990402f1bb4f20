"""Looking at and hurting processes: for tests that kill, stop and count."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path


def state(pid: int) -> str:
    """One letter as in /proc (R, S, T, Z …), '' when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]


def alive(pid: int) -> bool:
    """Whether it runs or could: a zombie is dead."""
    return state(pid) not in ("", "Z", "X")


def with_argument(text: str) -> list[int]:
    """Living processes one of whose arguments is exactly this."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if text.encode() in (entry / "cmdline").read_bytes().split(b"\0") and alive(int(entry.name)):
                    found.append(int(entry.name))
    return found


def command(pid: int) -> str:
    """Its command line, '' when there is no such process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    """Living direct children."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == pid and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


def descriptors(pid: int) -> int:
    """How many it has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """SIGSTOP them, and SIGCONT those that are left afterwards."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
