"""Expire: what a limit ends that no worker watches. A leader's duty, once a second.

Queued runs whose start time-out or deadline has passed end here, like a cancel of a queued run: SQL first, then the
broker forgets what is not queued any more, with a second look into SQL. Runs with a step past its limit are marked;
their owners are told to look and end them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oah.core.model.ids import EpochId
from oah.ports.broker import Broker
from oah.ports.steps import Expired, Overdue
from oah.ports.store import Store
from oah.ports.telemetry import Telemetry
from oah.services.decisions import Decisions
from oah.services.place import Places, awake


@dataclass(frozen=True, slots=True)
class ExpireRuns:
    """One bounded pass."""

    store: Store
    broker: Broker
    places: Places
    telemetry: Telemetry
    decisions: Decisions
    limit: int = 500

    def __call__(self, epoch: EpochId) -> int:
        """How many were ended or asked to stop. Raises Unavailable and EpochMismatch; what the broker was not told then
        finds reconcile, and an owner its next mark."""
        expired = self.store.expire_queued(limit=self.limit)
        overdue = self.store.stop_overdue(limit=self.limit)
        for each in expired:
            self.telemetry.count("oah_timeouts_total", code=each.reason.value)
            self.telemetry.count("oah_runs_settled_total", status="timed_out", class_=each.run.run_class.value)
            self.decisions.note("limit", each.run.session_id, "timed_out", each.reason.value, run_id=each.run.id)
        for step in overdue:
            why = f"{step.reason.value} of step {step.step}"
            self.decisions.note("limit", step.session_id, "stopped", why, run_id=step.run_id)
        self._tell_owners(overdue)
        self._forget(epoch, expired)
        return len(expired) + len(overdue)

    def _tell_owners(self, overdue: Sequence[Overdue]) -> None:
        owners = {each.owner for each in overdue if each.owner is not None}
        if owners:
            self.broker.look(owners)

    def _forget(self, epoch: EpochId, expired: Sequence[Expired]) -> None:
        if not expired:
            return
        self.broker.publish([(each.run.session_id, each.after.event_number) for each in expired])
        deferred = [each.run.id for each in expired if each.run.due_at is not None]
        if deferred:
            self.broker.undue(epoch, deferred)
        unheld = sorted({each.run.session_id for each in expired if each.unheld})
        if unheld:
            self.places.put(epoch, [awake(one) for one in self.store.queued_sessions_of(unheld, epoch)])
        # Read again: the look that each was answered with may be older than another member's end.
        touched = sorted({each.run.session_id for each in expired})
        empty = [one.session_id for one in self.store.queued_sessions_of(touched, epoch) if one.ready_class is None]
        if empty:
            self.broker.cancel(epoch, empty)
            self.places.put(epoch, self.store.queued_sessions_of(empty, epoch))
