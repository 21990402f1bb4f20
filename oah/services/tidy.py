"""Tidy: take away what sessions that are over have left in directories.

SQL says which are over: closed for long and without an owner, so no agent of theirs lives; a closed session never
opens again. What no row tells of any more goes when it is as old itself, so that a database that was put back to an
older state costs no home that is young.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from oah.ports.homes import Leftovers
from oah.ports.retention import RetentionStore
from oah.ports.telemetry import Telemetry


@dataclass(slots=True)
class Tidy:
    """``window`` sessions at a time. ``age`` None: everything stays."""

    store: RetentionStore
    at: Leftovers
    telemetry: Telemetry
    age: timedelta | None
    window: int = 64

    def __call__(self) -> int:
        """One pass; how many sessions went. Raises Unavailable: the next pass looks at others first."""
        if self.age is None:
            return 0
        self.at.clear()
        found = self.at.window(self.window)
        if not found:
            return 0
        over = self.store.over([each.session_id for each in found], self.age)
        old = {each.session_id for each in found if each.age >= self.age}
        going = over.closed | (over.unknown & old)
        gone = sum(self.at.remove(session_id) for session_id in sorted(going))
        if gone:
            self.telemetry.count("oah_pruned_total", gone, what="directories")
        return gone
