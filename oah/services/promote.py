"""Promote: what time has brought. SQL first (a due run becomes eligible, an ended hold goes), then the broker.

Repeatable and anybody's: an ear whose block ends runs it when nobody has for two seconds. Entries stay listed in the
broker until SQL has cleared them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from oah.core.model.ids import EpochId
from oah.core.model.run import ReadyClass
from oah.ports.broker import TickReply
from oah.ports.store import QueuedSession, Store
from oah.services.place import Places


@dataclass(frozen=True, slots=True)
class PromoteRuns:
    """``tick`` in the broker, promotion in SQL, ``ensure`` in the broker."""

    store: Store
    places: Places
    limit: int = 1_000

    def __call__(self, epoch: EpochId) -> TickReply:
        """One pass. Raises Unavailable and EpochMismatch: what was not finished is listed again."""
        broker = self.places.broker
        reply = broker.tick(epoch, limit=self.limit)
        if not reply.due and not reply.holds_ended:
            return reply
        runs = [each.run_id for each in reply.due]
        sessions = self.store.promote(runs, reply.holds_ended, epoch)
        ended = set(reply.holds_ended)
        self.places.put(epoch, [_awake(each) if each.session_id in ended else each for each in sessions])
        if runs:
            broker.undue(epoch, runs)
        return reply


def _awake(session: QueuedSession) -> QueuedSession:
    """A session whose hold ended with nothing eligible is ready all the same: the claim finds nothing and frees it."""
    if session.holds or session.ready_class is not None:
        return session
    return replace(session, ready_class=ReadyClass.BACKGROUND)
