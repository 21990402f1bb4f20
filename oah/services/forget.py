"""Forget: remove the lists of worker incarnations that are gone, once SQL names none of them as an owner."""

from __future__ import annotations

from dataclasses import dataclass

from oah.ports.broker import Broker
from oah.ports.store import Store
from oah.ports.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class ForgetWorkers:
    """Recovery comes first: a record that somebody may still need is never removed. Raises Unavailable."""

    store: Store
    broker: Broker
    telemetry: Telemetry

    def __call__(self) -> int:
        """How many were forgotten."""
        departed = self.broker.departed()
        if not departed:
            return 0
        owning = {row.worker_id for row in self.store.owners_by_worker(departed)}
        gone = [worker_id for worker_id in departed if worker_id not in owning]
        for worker_id in gone:
            self.broker.forget(worker_id)
        self.telemetry.count("oah_reconcile_repairs_total", len(gone), repair="stale_key")
        return len(gone)
