"""Ending a turn step by step: the program's interrupt key, SIGINT, SIGTERM, and SIGKILL of the tree."""

from __future__ import annotations

from datetime import timedelta
from enum import IntEnum


class Rung(IntEnum):
    """In the order in which they are tried."""

    NONE = 0
    KEY = 1
    INTERRUPT = 2
    TERMINATE = 3
    KILL = 4


def due(elapsed: timedelta, *, key: timedelta, interrupt: timedelta, terminate: timedelta) -> Rung:
    """The highest rung that is due this long after the cancel: each grace is the time its rung gets before the next."""
    if elapsed < key:
        return Rung.KEY
    if elapsed < key + interrupt:
        return Rung.INTERRUPT
    if elapsed < key + interrupt + terminate:
        return Rung.TERMINATE
    return Rung.KILL
