"""Requeue one run by hand: eligible now, with a new place in its session's queue; its counters restart."""

from __future__ import annotations

from oah.core.model.ids import EpochId, RunId, WorkspaceId
from oah.errors import LeaseError, Unavailable
from oah.ports.broker import Broker
from oah.ports.store import Accepted, Store
from oah.services.submit import hear


def requeue(
    store: Store, broker: Broker, epoch: EpochId | None, run_id: RunId, workspace_id: WorkspaceId | None, *, by: str
) -> Accepted:
    """The run as it waits now. Raises NotFound, Conflict ``run_requeue_invalid_status``, Unavailable (the store)."""
    accepted = store.requeue(run_id, workspace_id, by=by)
    try:
        hear(broker, store, epoch, [accepted])
    except (Unavailable, LeaseError):
        return accepted  # committed: the relay lets the broker hear of it
    return accepted
