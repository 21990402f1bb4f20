"""Measure: the figures that only the leader shows, counted in the stores every few seconds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta

from oah.core.model.run import ReadyClass, RunStatus
from oah.core.model.worker import WorkerReport, WorkerState
from oah.core.policy.waiting import WaitCode
from oah.ports.broker import Broker, QueueFigures
from oah.ports.clock import Clock
from oah.ports.store import Store
from oah.ports.telemetry import Telemetry
from oah.services.explain import Dispatch, diagnose
from oah.services.inspect import Counted, count
from oah.services.sparing import Sparing

_LOOKED_AT = 100
_LEADERS = (
    "oah_queued_runs",
    "oah_deferred_runs",
    "oah_ready_runs",
    "oah_locked_ready_sessions",
    "oah_stale_ready_sessions",
    "oah_running_runs_without_heartbeat",
    "oah_recovery_on_hold",
    "oah_active_runs",
    "oah_workers_active",
    "oah_ready_sessions",
    "oah_oldest_ready_age_seconds",
    "oah_poison_values",
    "oah_epoch_state",
    "oah_webhook_deliveries_pending",
    "oah_webhook_oldest_pending_age_seconds",
    "oah_webhooks_off",
    "oah_cancels_unheeded",
    "oah_unkillable_sessions",
    "oah_long_waiting_runs",
    "oah_oldest_waiting_age_seconds",
    "oah_sessions_without_place",
    "oah_lane_without_worker_sessions",
)


@dataclass(slots=True)
class MeasureQueues:
    """One pass. Raises Unavailable: old figures stay, their loop's failures are counted."""

    store: Store
    broker: Broker
    telemetry: Telemetry
    lease: timedelta
    clock: Clock
    _count: Sparing[Counted] = field(init=False)
    _lanes: frozenset[tuple[str, ReadyClass]] = field(default_factory=frozenset)
    _unserved: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        self._count = Sparing(self.clock, lambda: count(self.store, self.broker, lease=self.lease))

    def __call__(self) -> None:
        """SQL, then the broker, then the registry."""
        counted = self._count()
        counts, gauge = counted.counts, self.telemetry.gauge
        gauge("oah_queued_runs", counts.runs.get(RunStatus.QUEUED, 0))
        gauge("oah_deferred_runs", counts.deferred)
        gauge("oah_ready_runs", counts.ready_runs)
        gauge("oah_locked_ready_sessions", counts.locked_sessions)
        gauge("oah_stale_ready_sessions", counted.stale)
        gauge("oah_running_runs_without_heartbeat", counts.stale_owners)
        for status in (RunStatus.RUNNING, RunStatus.WAITING_TOOL):
            gauge("oah_active_runs", counts.runs.get(status, 0), status=str(status))
        figures = self.broker.figures()
        self._queues(figures)
        workers = tuple(self.broker.workers())
        states = Counter(worker.state for worker in workers)
        for state in WorkerState:
            gauge("oah_workers_active", states[state], state=str(state))
        self._stuck(figures, workers)
        self._webhooks()

    def _stuck(self, figures: QueueFigures, workers: tuple[WorkerReport, ...]) -> None:
        """What has not moved for too long."""
        at = Dispatch(workers)
        found = diagnose(self.store, self.broker, None, lease=self.lease, limit=_LOOKED_AT, at=at, figures=figures)
        gauge = self.telemetry.gauge
        gauge("oah_cancels_unheeded", len(found.found.unheeded))
        gauge("oah_unkillable_sessions", len(found.found.unkillable))
        gauge("oah_sessions_without_place", len(found.unplaced))
        reasons = dict(found.dominant)
        for code in WaitCode:
            gauge("oah_long_waiting_runs", reasons.get(str(code), 0), reason=str(code))
        oldest = max((each.age.total_seconds() for each in found.found.waiting), default=0.0)
        gauge("oah_oldest_waiting_age_seconds", oldest)
        unserved = {str(lane): sessions for lane, sessions in found.unserved.items()}
        for lane, sessions in unserved.items():
            gauge("oah_lane_without_worker_sessions", sessions, lane=lane)
        for lane in self._unserved - unserved.keys():
            self.telemetry.forget("oah_lane_without_worker_sessions", lane=lane)
        self._unserved = frozenset(unserved)

    def _queues(self, figures: QueueFigures) -> None:
        now = {(str(depth.lane), depth.ready_class): depth.sessions for depth in figures.ready}
        for (lane, ready_class), sessions in now.items():
            self.telemetry.gauge("oah_ready_sessions", sessions, lane=lane, class_=str(ready_class))
        for lane, ready_class in self._lanes - now.keys():
            self.telemetry.forget("oah_ready_sessions", lane=lane, class_=str(ready_class))
        self._lanes = frozenset(now)
        oldest = figures.oldest_ready.total_seconds() if figures.oldest_ready is not None else 0.0
        self.telemetry.gauge("oah_oldest_ready_age_seconds", oldest)
        self.telemetry.gauge("oah_poison_values", len(self.broker.poison()))

    def _webhooks(self) -> None:
        backlog = self.store.webhook_backlog()
        self.telemetry.gauge("oah_webhook_deliveries_pending", backlog.pending)
        self.telemetry.gauge("oah_webhook_oldest_pending_age_seconds", backlog.oldest.total_seconds())
        self.telemetry.gauge("oah_webhooks_off", backlog.off)

    def clear(self) -> None:
        """No longer leader: better no figure than an old one."""
        for name in _LEADERS:
            self.telemetry.forget(name)
        self._lanes, self._unserved = frozenset(), frozenset()
