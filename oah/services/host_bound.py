"""Sessions whose home is on one host wait for that host's workers, and begin anew elsewhere once it is gone.

Whoever has claimed one for another host hands it to a lane of that host alone, in which nobody else looks: it is
claimed elsewhere once, not again and again. Workers report which lanes of their host they serve; a lane that nobody has
reported for ``wait`` is given up: SQL forgets where the home was, and any worker may start the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.ids import EpochId
from oah.core.model.lane import Lane
from oah.ports.broker import Bind, Bound, Broker, Claimed, Release, Unbind
from oah.ports.store import Store

SOONEST = timedelta(seconds=1)
"""A host is asked about at most so often."""


@dataclass(frozen=True, slots=True)
class HostBound:
    """Raises Unavailable and EpochMismatch: what was not finished is met again."""

    store: Store
    broker: Broker
    wait: timedelta

    def hand_over(self, epoch: EpochId, claims: Sequence[tuple[Claimed, Lane]]) -> None:
        """Claimed here, at home there: to its host's workers, or at once to all if it has been gone for long."""
        if not claims:
            return
        given_up = self._given_up([lane for _, lane in claims])
        self.store.unbind_homes([(claim.session_id, lane.host) for claim, lane in claims if lane in given_up])
        binds = [
            Bind(claim.session_id, claim.token, claim.ready_class, lane.host, self.wait)
            for claim, lane in claims
            if lane not in given_up
        ]
        releases = [Release(c.session_id, c.token, c.ready_class) for c, lane in claims if lane in given_up]
        if binds:
            self.broker.bind(epoch, binds)
        if releases:
            self.broker.release(epoch, releases)

    def look(self, epoch: EpochId, bound: Sequence[Bound]) -> int:
        """Those that have waited: is their host there? How many wait no longer."""
        if not bound:
            return 0
        lanes = sorted({each.lane for each in bound if each.lane.host})
        ages = dict(zip(lanes, self.broker.served(lanes), strict=True)) if lanes else {}
        gone = {lane for lane in lanes if self._is_gone(ages[lane], unheard=True)}
        lost = [(each.session_id, each.lane.host) for each in bound if each.lane in gone]
        self.store.unbind_homes(lost)
        waits = [Unbind(each.session_id, self._left(each, ages.get(each.lane), gone)) for each in bound]
        self.broker.unbind(epoch, waits)
        return len(lost)

    def _left(self, each: Bound, age: timedelta | None, gone: set[Lane]) -> timedelta | None:
        if each.lane in gone or not each.lane.host or age is None:
            return None
        return max(self.wait - age, SOONEST)

    def _given_up(self, lanes: Sequence[Lane]) -> set[Lane]:
        """One of which nothing is known is waited for: Redis may have been emptied."""
        known = sorted(set(lanes))
        ages = self.broker.served(known)
        return {lane for lane, age in zip(known, ages, strict=True) if self._is_gone(age, unheard=False)}

    def _is_gone(self, age: timedelta | None, *, unheard: bool) -> bool:
        return unheard if age is None else age >= self.wait
