"""After the commit of a run that goes before all others: make the active one end, and what waits in its place.

The mark on the active run is in SQL with the new run, so what happens here only makes it quick; but for a run that
waits for its retry. It is the session's current work as well, though nobody runs it: it is cancelled here, in a
transaction of its own. Should that fail, the new run is next once the back-off has passed.
"""

from __future__ import annotations

import contextlib

from oah.core.model.ids import EpochId
from oah.core.model.run import OnBusy, Run, RunStatus, StopReason
from oah.core.model.session import HoldReason, Session
from oah.errors import LeaseError, NotFound, Unavailable
from oah.ports.broker import Broker
from oah.ports.store import Accepted, NewRun, Store
from oah.services.cancel import cancel_children, cancel_one

LOOKED_AT = 1_000
"""As many runs as a session may have queued (details.md, Defaults)."""


def make_way(store: Store, broker: Broker, epoch: EpochId | None, new: NewRun, accepted: Accepted) -> None:
    """Tell the owner of the run that was asked to stop, and its children. Raises nothing that has to be answered."""
    if accepted.replayed or not new.on_busy.stops:
        return
    stopped = accepted.stopped
    with contextlib.suppress(Unavailable, LeaseError, NotFound):
        if stopped is None:
            _end_retry(store, broker, epoch, new)
            return
        if stopped.worker_id is not None:
            with contextlib.suppress(Unavailable):  # its next mark says it
                broker.look([stopped.worker_id], quick=True)
        cancel_children(store, broker, epoch, stopped.run_id)


def _end_retry(store: Store, broker: Broker, epoch: EpochId | None, new: NewRun) -> None:
    session = store.session(new.session_id, None)
    if HoldReason.BACKOFF not in session.holds:
        return
    reason = StopReason.ROLLBACK if new.on_busy is OnBusy.ROLLBACK else StopReason.INTERRUPT
    for run in store.queue_of(new.session_id, limit=LOOKED_AT):
        if _waits_for_retry(run, session) and (new.parent is None or run.parent_run_id == new.parent.run_id):
            cancel_one(store, broker, epoch, run.id, None, by=new.by, reason=reason)
            cancel_children(store, broker, epoch, run.id)


def _waits_for_retry(run: Run, session: Session) -> bool:
    """The session is held until the moment at which this run is due."""
    due = session.holds[HoldReason.BACKOFF]
    return run.status is RunStatus.QUEUED and run.failed_attempts > 0 and due is not None and run.due_at == due
