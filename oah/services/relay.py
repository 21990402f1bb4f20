"""Relay: make the broker hear of runs that were accepted and not enqueued. Anybody's; repeating is harmless."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.ids import EpochId
from oah.ports.broker import Hear
from oah.ports.store import Accepted, Store
from oah.ports.telemetry import Telemetry
from oah.services.place import Places


def hear(accepted: Accepted) -> Hear:
    """How the broker hears of an accepted run."""
    run = accepted.run
    return Hear(
        run.session_id,
        run.id,
        accepted.lane,
        run.workspace_id,
        accepted.ready_class,
        due_in=accepted.due_in,
        priority=run.priority,
    )


@dataclass(frozen=True, slots=True)
class RelayRuns:
    """``older_than``: younger ones are their submit's own business."""

    store: Store
    places: Places
    telemetry: Telemetry
    older_than: timedelta
    limit: int = 1_000

    def __call__(self, epoch: EpochId) -> int:
        """One page, oldest first; how many. Raises Unavailable, Backpressure, EpochMismatch: the next pass repeats."""
        runs = self.store.unheard(epoch, older_than=self.older_than, limit=self.limit)
        if not runs:
            return 0
        self.places.hear(epoch, [hear(each) for each in runs])
        self.places.heard(epoch, [each.run.id for each in runs])
        self.telemetry.count("oah_relay_enqueued_total", len(runs))
        return len(runs)
