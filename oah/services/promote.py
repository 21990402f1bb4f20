"""Promote: what time has brought. SQL first (a due run becomes eligible, an ended hold goes), then the broker.

Repeatable and anybody's: an ear whose block ends runs it when nobody has for two seconds. Entries stay listed in the
broker until SQL has cleared them.
"""

from __future__ import annotations

from dataclasses import dataclass

from oah.core.model.ids import EpochId
from oah.ports.broker import TickReply
from oah.ports.store import Store
from oah.services.host_bound import HostBound
from oah.services.place import Places, awake


@dataclass(frozen=True, slots=True)
class PromoteRuns:
    """``tick`` in the broker, promotion in SQL, ``ensure`` in the broker."""

    store: Store
    places: Places
    bound: HostBound | None = None
    """Who asks about hosts that are waited for."""
    limit: int = 1_000

    def __call__(self, epoch: EpochId) -> TickReply:
        """One pass. Raises Unavailable and EpochMismatch: what was not finished is listed again."""
        broker = self.places.broker
        reply = broker.tick(epoch, limit=self.limit)
        if self.bound is not None:
            self.bound.look(epoch, reply.bound)
        if not reply.due and not reply.holds_ended:
            return reply
        runs = [each.run_id for each in reply.due]
        sessions = self.store.promote(runs, reply.holds_ended, epoch)
        ended = set(reply.holds_ended)
        self.places.put(epoch, [awake(each) if each.session_id in ended else each for each in sessions])
        if runs:
            broker.undue(epoch, runs)
        return reply
