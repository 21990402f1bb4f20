"""Clocks, ids and chance, as the shell hands them to services and components.

Three clocks, never mixed: rows are stamped by the database, leases are judged by Redis, deadlines of processes by
CLOCK_BOOTTIME (which, unlike CLOCK_MONOTONIC, goes on while a machine sleeps). Times cross from one to another only as
durations.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """This process's clocks."""

    def now(self) -> datetime:
        """The moment, aware, UTC. For display and logs; never for leases, deadlines or order."""

    def monotonic(self) -> float:
        """Seconds that never go back; may stand still while the machine sleeps. For waits and measured durations."""

    def boottime(self) -> float:
        """CLOCK_BOOTTIME in seconds: one for all processes of this machine, goes on during sleep. For deadlines."""


class Ids(Protocol):
    """Where new names come from."""

    def new(self, kind: str) -> str:
        """A unique id `<kind>_<26 characters>`, e.g. `run_01j…`: sortable by the millisecond it was made in, and by
        order of making inside one process."""

    def nonce(self) -> str:
        """128 random bits as 32 hex digits: claim tokens, request ids, boot nonces. Compared for equality only."""

    def chance(self) -> float:
        """A random number in [0, 1), for jitter and weighted choices of pure policies."""
