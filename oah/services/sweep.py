"""Sweep: every second, look at the leases that have passed, and only at those."""

from __future__ import annotations

from dataclasses import dataclass

from oah.core.model.ids import EpochId
from oah.ports.broker import Broker
from oah.ports.store import RecoveryStore
from oah.services.decisions import Decisions
from oah.services.orphans import Judged, JudgeOwners
from oah.services.place import NO_TOKEN, DeadLease, Places


@dataclass(frozen=True, slots=True)
class SweepLeases:
    """A passed lease with an owner row is judged; without one it is a claim that never started or a lost free."""

    store: RecoveryStore
    broker: Broker
    places: Places
    judge: JudgeOwners
    decisions: Decisions
    limit: int = 1_000

    def __call__(self, epoch: EpochId) -> Judged:
        """One pass. Raises Unavailable and EpochMismatch: nothing more is decided."""
        expired = self.broker.expire(epoch, limit=self.limit, lease=self.judge.rules.lease)
        if not expired:
            return Judged()
        owners = {row.session_id: row for row in self.store.owners_of([each.session_id for each in expired])}
        unowned = [
            DeadLease(each.session_id, each.token or NO_TOKEN) for each in expired if each.session_id not in owners
        ]
        self.places.hand_back(epoch, unowned)
        for lease in unowned:
            self.decisions.note("lease", lease.session_id, "freed", "passed, and SQL names no owner")
        return self.judge(epoch, list(owners.values()))
