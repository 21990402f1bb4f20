"""Audit: every few seconds, look at all owner rows whose mark is stale, whatever the broker lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.ids import EpochId, SessionId
from oah.ports.store import RecoveryStore
from oah.services.orphans import Judged, JudgeOwners


@dataclass(frozen=True, slots=True)
class AuditOwners:
    """Finds owners whose lease is in no list any more (flushed, lost, another's)."""

    store: RecoveryStore
    judge: JudgeOwners
    lease: timedelta
    page: int = 1_000

    def __call__(self, epoch: EpochId, going_on: Callable[[], bool]) -> Judged:
        """One pass over all stale rows. Raises Unavailable and EpochMismatch."""
        total = Judged()
        after: SessionId | None = None
        while going_on():
            rows = self.store.owners(stale_for=self.lease, limit=self.page, after=after)
            judged = self.judge(epoch, rows)
            total = Judged(total.restored + judged.restored, total.recovered + judged.recovered)
            if len(rows) < self.page:
                break
            after = rows[-1].session_id
        return total
