"""Measure: figures of the pools and of waiting times, which only the leader shows."""

from __future__ import annotations

from dataclasses import dataclass, field

from oah.core.policy.quantiles import merged, quantile
from oah.ports.telemetry import Telemetry
from oah.services.inspect import class_waits
from oah.services.signals import PoolSignals, PoolView

_POOL = (
    "oah_pool_load",
    "oah_pool_ready",
    "oah_pool_capped_sessions",
    "oah_pool_running",
    "oah_pool_waiting",
    "oah_pool_slots",
    "oah_pool_idle_slots",
    "oah_pool_workers",
    "oah_pool_oldest_wait_seconds",
)
_WAIT = "oah_queue_wait_seconds"
_POOL_WAIT = "oah_pool_wait_seconds"
_QUANTILES = {"0.5": 0.5, "0.95": 0.95}


@dataclass(slots=True)
class MeasurePools:
    """One pass. Raises Unavailable: old figures stay, their loop's failures are counted. A load that could be too
    little is not shown at all: whoever scales by it holds."""

    telemetry: Telemetry
    signals: PoolSignals
    _shown: set[tuple[str, tuple[tuple[str, str], ...]]] = field(default_factory=set)

    def __call__(self) -> None:
        """Broker, SQL and registry, once."""
        views = self.signals.views()
        before, self._shown = self._shown, set()
        for view in views:
            self._pool(view)
        workers = [worker for view in views for worker in view.workers]
        for run_class, waits in class_waits(workers, ()).items():
            for label, value in (("0.5", waits.p50), ("0.95", waits.p95)):
                if value is not None:
                    self._show(_WAIT, value.total_seconds(), class_=str(run_class), quantile=label)
        for name, labels in before - self._shown:
            self.telemetry.forget(name, **dict(labels))

    def _pool(self, view: PoolView) -> None:
        signals = view.signals
        values = {
            "oah_pool_load": view.load if signals.sure else None,
            "oah_pool_ready": signals.ready,
            "oah_pool_capped_sessions": view.capped,
            "oah_pool_running": signals.running,
            "oah_pool_waiting": signals.waiting,
            "oah_pool_slots": signals.slots,
            "oah_pool_idle_slots": signals.idle_slots,
            "oah_pool_workers": len(view.workers),
            "oah_pool_oldest_wait_seconds": signals.oldest_wait.total_seconds(),
        }
        for name in _POOL:
            value = values[name]
            if value is not None:
                self._show(name, value, pool=view.pool)
        waits = merged(buckets for worker in view.workers for buckets in worker.waits.values())
        for label, share in _QUANTILES.items():
            wait = quantile(waits, share)
            if wait is not None:
                self._show(_POOL_WAIT, wait.total_seconds(), pool=view.pool, quantile=label)

    def _show(self, name: str, value: float, **labels: str) -> None:
        self.telemetry.gauge(name, value, **labels)
        self._shown.add((name, tuple(sorted(labels.items()))))

    def clear(self) -> None:
        """No longer leader: better no figure than an old one."""
        for name in (*_POOL, _WAIT, _POOL_WAIT):
            self.telemetry.forget(name)
        self._shown.clear()
