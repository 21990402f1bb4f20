"""Tend the ready sets: page after page, entries that nothing confirms go, and torn ones are made whole.

Sessions that lack their place are reconcile's, owners are the audit's; this is what stands in the sets and should not:
it would be counted, waited for, and scaled for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from oah.core.policy.ready_faults import LEADERS
from oah.ports.broker import Broker
from oah.ports.clock import Clock
from oah.ports.store import Store
from oah.ports.telemetry import Telemetry
from oah.services.decisions import Decisions
from oah.services.ready_queue import PAGE, SECOND_LOOK, Doubts, Part, ReadyQueue

FIRST = f"{Part.READY},"


@dataclass(slots=True)
class TendReady:
    """``look`` every few seconds, ``look_again`` every two. One thread at a time. Raises Unavailable, EpochMismatch."""

    store: Store
    broker: Broker
    clock: Clock
    telemetry: Telemetry
    decisions: Decisions
    lease: timedelta
    page: int = PAGE
    _cursor: str = FIRST
    _doubts: Doubts | None = None
    _since: float = field(default=0.0)

    def restart(self) -> None:
        """A new leadership: what was seen before it is old."""
        self._cursor, self._doubts = FIRST, None

    def look(self) -> int:
        """The next page; how many entries. While one is in doubt, none."""
        if self._doubts is not None or self.store.current_epoch() is None:
            return 0
        doubts = self._queue().begin(self._cursor, limit=self.page)
        if doubts.found.faults:
            self._doubts, self._since = doubts, self.clock.monotonic()
        else:
            self._cursor = self._queue().confirm(doubts).next_cursor or FIRST
        return doubts.found.looked

    def look_again(self) -> int:
        """Mend what was wrong two seconds ago and still is; how many sessions."""
        doubts = self._doubts
        if doubts is None or self.clock.monotonic() - self._since < SECOND_LOOK:
            return 0
        self._doubts = None
        queue = self._queue()
        look = queue.confirm(doubts)
        mended = queue.mend(look)
        self._cursor = look.next_cursor or FIRST
        for fault, names in look.faults.items():
            for name in names:
                if fault not in LEADERS:
                    self.decisions.note("repair", name, str(fault), "in a ready set on two looks")
        if mended:
            self.telemetry.count("oah_queue_repairs_total", len(mended), by="leader")
        return len(mended)

    def _queue(self) -> ReadyQueue:
        return ReadyQueue(self.store, self.broker, lease=self.lease, pause=lambda seconds: None)
