"""Cancel a run: SQL decides, then the broker forgets the session or its owner is told to look.

A queued run ends here; of an active one only the mark is set, its owner ends it. A cancel that empties a session's
queue takes the session out of the ready set, then SQL is looked at once more: a submit may have come between.

Children go with their parent as soon as it is asked to stop: parent first, then level by level, each in a transaction
of its own. Whatever is left of that (a crash, a store that is away, a great many of them) a leader does
(``CancelChildren``), also for children that a parent still started between the cancel and its end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.ids import EpochId, RunId, WorkspaceId
from oah.core.model.run import StopReason
from oah.errors import LeaseError, NotFound, Unavailable
from oah.ports.broker import Broker
from oah.ports.children import Child
from oah.ports.commands import CommandKind
from oah.ports.store import Cancelled, CancelResult, Store
from oah.services.place import Places, awake

WITH_THE_PARENT = 200
"""Children that are cancelled before the cancel of their parent is answered; a leader goes on with the rest."""

PAGE = 500


def cancel(
    store: Store,
    broker: Broker,
    epoch: EpochId | None,
    run_id: RunId,
    workspace_id: WorkspaceId | None,
    *,
    by: str,
    kill_after: timedelta | None = None,
) -> Cancelled:
    """What the cancel found. ``kill_after``: an active run's agent is killed then, should it take longer to end.

    Raises NotFound, Unavailable (of the store; the broker's absence repairs itself).
    """
    found = cancel_one(store, broker, epoch, run_id, workspace_id, by=by, reason=StopReason.CANCEL)
    if found.result is CancelResult.SIGNALLED and kill_after is not None:
        _hurry(store, broker, found, kill_after, by=by)
    if found.result is not CancelResult.TOO_LATE:
        cancel_children(store, broker, epoch, run_id)
    return found


def cancel_children(store: Store, broker: Broker, epoch: EpochId | None, parent: RunId) -> int:
    """Cancel what descends from a run that was just asked to stop; how many. What fails is left to the leader."""
    level, done = [parent], 0
    with contextlib.suppress(Unavailable):
        while level and done < WITH_THE_PARENT:
            children = store.children_to_cancel(level, limit=WITH_THE_PARENT - done)
            for child in children:
                _cancel_child(store, broker, epoch, child)
            done += len(children)
            level = [child.run_id for child in children]
    return done


@dataclass(frozen=True, slots=True)
class CancelChildren:
    """The leader's duty: live children of cancelled parents, in pages over all parents with live children."""

    store: Store
    broker: Broker

    def __call__(self, epoch: EpochId, going_on: Callable[[], bool] = lambda: True) -> int:
        """One walk; how many were cancelled. Those of a next level come with the next walk. Raises Unavailable."""
        after: RunId | None = None
        cancelled = 0
        while going_on():
            parents = self.store.parents_of_live(after=after, limit=PAGE)
            children = self.store.children_to_cancel(parents, limit=PAGE)
            for child in children:
                cancelled += _cancel_child(self.store, self.broker, epoch, child)
            if len(children) == PAGE:
                continue  # the same parents may have more
            if len(parents) < PAGE:
                break
            after = parents[-1]
        return cancelled


def _hurry(store: Store, broker: Broker, found: Cancelled, kill_after: timedelta, *, by: str) -> None:
    if found.owner is None:
        return
    data = {"after_ms": kill_after // timedelta(milliseconds=1)}
    store.command_run(found.owner, CommandKind.KILL, found.run.id, found.run.attempt, by=by, data=data)
    with contextlib.suppress(Unavailable):  # it reads its commands with every heartbeat
        broker.look([found.owner], quick=True)


def _cancel_child(store: Store, broker: Broker, epoch: EpochId | None, child: Child) -> bool:
    try:
        found = cancel_one(store, broker, epoch, child.run_id, None, by=child.by, reason=StopReason.PARENT)
    except NotFound:
        return False  # retention was faster
    return found.result is not CancelResult.TOO_LATE


def cancel_one(
    store: Store,
    broker: Broker,
    epoch: EpochId | None,
    run_id: RunId,
    workspace_id: WorkspaceId | None,
    *,
    by: str,
    reason: StopReason,
) -> Cancelled:
    """Without its children. Raises NotFound, Unavailable (of the store)."""
    found = store.cancel(run_id, workspace_id, by=by, reason=reason)
    # Should this fail: the mark is in SQL. The owner's next mark reads it, a start finds nothing, reconcile repairs the
    # ready set.
    with contextlib.suppress(Unavailable, LeaseError):
        _tell(store, broker, epoch, found)
    return found


def _tell(store: Store, broker: Broker, epoch: EpochId | None, found: Cancelled) -> None:
    if found.after is not None and found.after.event_number:
        broker.publish([(found.run.session_id, found.after.event_number)])
    match found.result:
        case CancelResult.SIGNALLED:
            broker.look([found.owner] if found.owner is not None else [], quick=True)
        case CancelResult.REMOVED if epoch is not None:
            _forget(store, broker, epoch, found)
        case _:
            return


def _forget(store: Store, broker: Broker, epoch: EpochId, found: Cancelled) -> None:
    session_id = found.run.session_id
    if found.run.due_at is not None:  # it may have waited for its time; it does not any more
        broker.undue(epoch, [found.run.id])
    if found.unheld:
        Places(store, broker).put(epoch, [awake(each) for each in store.queued_sessions_of([session_id], epoch)])
    elif found.after is not None and found.after.waiting is None:
        broker.cancel(epoch, [session_id])
        Places(store, broker).put(epoch, store.queued_sessions_of([session_id], epoch))
