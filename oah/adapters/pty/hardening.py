"""Keeping a process's secrets from others of its user."""

from __future__ import annotations

from oah.adapters.pty.hostside import forking


def make_undumpable() -> None:
    """No core dump, and /proc/PID/{environ,fd,mem} closed to processes of the same user. Each process does it itself,
    first thing
    after it has read its settings: exec resets it. It protects secrets, not the process: kill() by the same user still
    works."""
    forking.prctl(forking.PR_SET_DUMPABLE, 0)
