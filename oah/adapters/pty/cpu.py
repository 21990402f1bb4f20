"""What a tree has used of the processors, where that counts as progress."""

from __future__ import annotations

import os
from pathlib import Path

from oah.adapters.pty.hostside.tree import Scanner, Tree

_TICKS = os.sysconf("SC_CLK_TCK")
_UTIME, _CSTIME = 11, 15
"""Positions after the name in /proc/PID/stat: utime, stime, and both of children that were waited for."""


def cpu_seconds(tree: Tree) -> float:
    """Of all its living processes, and of those of their children that ended."""
    # A copy: the host's side keeps its own account of the members.
    [members] = Scanner(os.getsid(0)).members([Tree(tree.pid, tree.start, tree.tag)]).values()
    return sum(_ticks(process.pid) for process in members) / _TICKS


def _ticks(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()
    return sum(map(int, fields[_UTIME:_CSTIME]))
