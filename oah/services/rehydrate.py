"""Rehydrate: rebuild the broker's data from SQL under a new epoch (I9).

While the shard is `rebuilding` nothing can be claimed: the leases of all owner rows and the holds come back first, so
that no claim meets a session whose owner lives, and with them caps and pauses. Then it opens and the ready sets fill,
oldest first. Nothing that runs is interrupted, nothing is wiped, and whoever dies midway is continued by the next
leader: every step is repeatable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.ids import EpochId, RunId, SessionId
from oah.ports.broker import Hear
from oah.ports.store import QueuedSession, Store
from oah.services import caps
from oah.services.decisions import Decisions
from oah.services.place import Places

BEFORE_ALL = 1e10
"""Seconds. A score of "moment queued less this" is below all that the broker's counter gives, and orders by age."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What came back. ``opened`` False: the caller had to stop; the next leader continues."""

    owners: int
    held: int
    ready: int
    deferred: int
    opened: bool


@dataclass(frozen=True, slots=True)
class Rehydrate:
    """``keep``: so many sessions are sorted by age before the first is made ready; their scores order the rest."""

    store: Store
    places: Places
    lease: timedelta
    decisions: Decisions
    page: int = 1_000
    keep: int = 100_000

    def __call__(self, epoch: EpochId, going_on: Callable[[], bool]) -> Rebuilt:
        """All of it. Raises Unavailable and EpochMismatch: the next pass begins again."""
        owners = self._restore_owners(epoch, going_on)
        held, waiting, rest = self._hold(epoch, going_on)
        caps.tell(self.store, self.places.broker, epoch)
        opened = going_on() and self.places.broker.open(epoch)
        ready = deferred = 0
        if opened:
            self.decisions.note("epoch", epoch, "opened", f"{owners} owners, {held} held")
            waiting.sort(key=lambda each: each.oldest_age, reverse=True)
            ready = self._fill(epoch, waiting, going_on)
            ready += self._fill_rest(epoch, rest, going_on)
            deferred = self._hear_deferred(epoch, going_on)
        return Rebuilt(owners, held, ready, deferred, opened)

    def _restore_owners(self, epoch: EpochId, going_on: Callable[[], bool]) -> int:
        """A whole lease for each: nobody is judged before the shard has been open for one anyway."""
        count = 0
        after: SessionId | None = None
        while going_on():
            rows = self.store.owners(limit=self.page, after=after)
            count += sum(self.places.restore(epoch, rows, {row.session_id: self.lease for row in rows}))
            if len(rows) < self.page:
                break
            after = rows[-1].session_id
        return count

    def _hold(self, epoch: EpochId, going_on: Callable[[], bool]) -> tuple[int, list[QueuedSession], SessionId | None]:
        """Hold what is held; how many, the first sessions to fill, and after which id the others begin."""
        held = 0
        waiting: list[QueuedSession] = []
        after: SessionId | None = None
        rest: SessionId | None = None
        while going_on():
            sessions = self.store.queued_sessions(epoch, after=after, limit=self.page)
            holding = [each for each in sessions if each.holds]  # with an owner: parked, and held where it stands
            self.places.put(epoch, holding)
            held += len(holding)
            if rest is None:
                waiting += [each for each in sessions if each.ready_class is not None and not each.holds]
                if len(waiting) >= self.keep:
                    rest = sessions[-1].session_id
            if len(sessions) < self.page:
                break
            after = sessions[-1].session_id
        return held, waiting, rest

    def _fill(self, epoch: EpochId, sessions: Sequence[QueuedSession], going_on: Callable[[], bool]) -> int:
        now = self.store.now()
        count = 0
        for begin in range(0, len(sessions), self.page):
            if not going_on():
                break
            part = sessions[begin : begin + self.page]
            scores = {each.session_id: now - each.oldest_age.total_seconds() - BEFORE_ALL for each in part}
            self.places.put_unheard(epoch, part, scores)
            count += len(part)
        return count

    def _fill_rest(self, epoch: EpochId, after: SessionId | None, going_on: Callable[[], bool]) -> int:
        count = 0
        while after is not None and going_on():
            sessions = self.store.queued_sessions(epoch, after=after, limit=self.page)
            waiting = [each for each in sessions if each.ready_class is not None and not each.holds]
            waiting.sort(key=lambda each: each.oldest_age, reverse=True)
            count += self._fill(epoch, waiting, going_on)
            after = sessions[-1].session_id if len(sessions) == self.page else None
        return count

    def _hear_deferred(self, epoch: EpochId, going_on: Callable[[], bool]) -> int:
        count = 0
        after: RunId | None = None
        while going_on():
            runs = self.store.deferred(after=after, limit=self.page)
            self.places.hear(
                epoch,
                [Hear(r.hear_session, r.run_id, r.lane, r.workspace_id, r.ready_class, due_in=r.due_in) for r in runs],
            )
            self.places.heard(epoch, [each.run_id for each in runs])
            count += len(runs)
            if len(runs) < self.page:
                break
            after = runs[-1].run_id
        return count
