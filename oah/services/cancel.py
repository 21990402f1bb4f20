"""Cancel a run: SQL decides, then the broker forgets the session or its owner is told to look.

A queued run ends here; of an active one only the mark is set, its owner ends it. A cancel that empties a session's
queue takes the session out of the ready set, then SQL is looked at once more: a submit may have come between.
"""

from __future__ import annotations

from oah.core.model.ids import EpochId, RunId, WorkspaceId
from oah.errors import LeaseError, Unavailable
from oah.ports.broker import Broker
from oah.ports.store import Cancelled, CancelResult, Store
from oah.services.place import Places, awake


def cancel(
    store: Store, broker: Broker, epoch: EpochId | None, run_id: RunId, workspace_id: WorkspaceId | None, *, by: str
) -> Cancelled:
    """What the cancel found. Raises NotFound, Unavailable (of the store; the broker's absence repairs itself)."""
    found = store.cancel(run_id, workspace_id, by=by)
    try:
        _tell(store, broker, epoch, found)
    except (Unavailable, LeaseError):
        # The mark is in SQL: the owner's next mark reads it, a start finds nothing, reconcile repairs the ready set.
        return found
    return found


def _tell(store: Store, broker: Broker, epoch: EpochId | None, found: Cancelled) -> None:
    if found.after is not None and found.after.event_number:
        broker.publish([(found.run.session_id, found.after.event_number)])
    match found.result:
        case CancelResult.SIGNALLED:
            broker.look([found.owner] if found.owner is not None else [])
        case CancelResult.REMOVED if epoch is not None:
            _forget(store, broker, epoch, found)
        case _:
            return


def _forget(store: Store, broker: Broker, epoch: EpochId, found: Cancelled) -> None:
    session_id = found.run.session_id
    if found.run.deferred:
        broker.undue(epoch, [found.run.id])
    if found.unheld:
        Places(store, broker).put(epoch, [awake(each) for each in store.queued_sessions_of([session_id], epoch)])
    elif found.after is not None and found.after.waiting is None:
        broker.cancel(epoch, [session_id])
        Places(store, broker).put(epoch, store.queued_sessions_of([session_id], epoch))
