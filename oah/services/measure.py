"""Measure: the figures that only the leader shows, counted in the stores every few seconds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta

from oah.core.model.run import ReadyClass, RunStatus
from oah.core.model.worker import WorkerState
from oah.ports.broker import Broker
from oah.ports.store import Store
from oah.ports.telemetry import Telemetry

_LEADERS = (
    "oah_queued_runs",
    "oah_deferred_runs",
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
)


@dataclass(slots=True)
class MeasureQueues:
    """One pass. Raises Unavailable: old figures stay, their loop's failures are counted."""

    store: Store
    broker: Broker
    telemetry: Telemetry
    lease: timedelta
    _lanes: frozenset[tuple[str, ReadyClass]] = field(default_factory=frozenset)

    def __call__(self) -> None:
        """SQL, then the broker, then the registry."""
        counts = self.store.counts(None, lease=self.lease)
        gauge = self.telemetry.gauge
        gauge("oah_queued_runs", counts.runs.get(RunStatus.QUEUED, 0))
        gauge("oah_deferred_runs", counts.deferred)
        gauge("oah_running_runs_without_heartbeat", counts.stale_owners)
        for status in (RunStatus.RUNNING, RunStatus.WAITING_TOOL):
            gauge("oah_active_runs", counts.runs.get(status, 0), status=str(status))
        self._queues()
        states = Counter(worker.state for worker in self.broker.workers())
        for state in WorkerState:
            gauge("oah_workers_active", states[state], state=str(state))
        self._webhooks()

    def _queues(self) -> None:
        figures = self.broker.figures()
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
        self._lanes = frozenset()
