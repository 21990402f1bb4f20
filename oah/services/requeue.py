"""Requeue by hand: ended runs wait again, at the end of their sessions' queues, their counters anew.

A few go at once; many, and whatever a filter finds, go as a job: their list is written down first, then they are put
back in chunks. What the broker does not hear of at once, the relay lets it hear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from oah.core.model.ids import EpochId, RunId, SessionId, WorkspaceId
from oah.core.model.run import RecoveryState, RunStatus
from oah.errors import InvalidRequest, LeaseError, Unavailable
from oah.ports.broker import Broker
from oah.ports.clock import Ids
from oah.ports.jobs import Job, JobFence, JobQueue
from oah.ports.requeue import Requeued, RequeueFilter
from oah.ports.store import Accepted, Store
from oah.services.jobs import ask
from oah.services.place import Places
from oah.services.submit import hear

KIND = "requeue"
"""Of its jobs."""
AT_ONCE = 100
"""Runs by id that are put back while the caller waits; also the runs of one transaction."""
MOST = 10_000
"""Runs by id in one request; a filter has no such limit."""


def requeue(
    store: Store,
    broker: Broker,
    epoch: EpochId | None,
    run_id: RunId,
    workspace_id: WorkspaceId | None,
    *,
    by: str,
    reason: str | None = None,
) -> Accepted:
    """The run as it waits now. Raises NotFound, Conflict ``run_requeue_invalid_status``, Unavailable (the store)."""
    accepted = store.requeue(run_id, workspace_id, by=by, reason=reason)
    _tell(broker, store, epoch, [accepted])
    return accepted


def requeue_some(
    store: Store,
    broker: Broker,
    epoch: EpochId | None,
    run_ids: Sequence[RunId],
    workspace_id: WorkspaceId | None,
    *,
    by: str,
    reason: str | None = None,
    dry_run: bool = False,
) -> list[Requeued]:
    """At most ``AT_ONCE``, an answer each in the order given; a dry run only judges. Raises Unavailable (the store)."""
    done = store.requeue_runs(run_ids, workspace_id, by=by, reason=reason, dry_run=dry_run)
    _tell(broker, store, epoch, [each.accepted for each in done if each.accepted is not None])
    return done


def ask_requeue(
    store: Store,
    queue: JobQueue,
    ids: Ids,
    *,
    workspace_id: WorkspaceId | None,
    by: str,
    run_ids: Sequence[RunId] = (),
    where: RequeueFilter | None = None,
    reason: str | None = None,
) -> Job:
    """A job for many runs, or for what a filter finds. ``workspace_id``: who may see the job, and whose runs it may
    touch. Raises InvalidRequest."""
    if len(run_ids) > MOST:
        raise InvalidRequest(f"at most {MOST} runs by id", hint="use a filter")
    arguments: dict[str, Any] = {"reason": reason}
    if where is None:
        arguments["run_ids"] = list(run_ids)
    else:
        arguments["filter"] = written(checked(where))
    return ask(store, queue, ids, KIND, workspace_id=workspace_id, arguments=arguments, by=by)


def checked(where: RequeueFilter) -> RequeueFilter:
    """A filter that says something, about runs that have failed. Raises InvalidRequest."""
    if where == RequeueFilter(workspace_id=where.workspace_id):
        raise InvalidRequest("the filter says nothing", hint="name at least a status: failed, timed_out or cancelled")
    wrong = [status for status in where.status if not status.terminal or status is RunStatus.COMPLETED]
    if wrong or not where.status:
        names = ", ".join(wrong) or "no status"
        raise InvalidRequest(
            f"a filter cannot requeue {names}", code="run_requeue_invalid_status", hint="completed runs go by id only"
        )
    return where


def written(where: RequeueFilter) -> dict[str, Any]:
    """A filter as a job keeps it."""
    moments = {name: getattr(where, name) for name in ("created_after", "since", "until")}
    return {
        "workspace_id": where.workspace_id,
        "session_id": where.session_id,
        "agent": where.agent,
        "status": [status.value for status in where.status],
        "error_code": where.error_code,
        "recovery_state": where.recovery_state and where.recovery_state.value,
        **{name: moment and moment.isoformat() for name, moment in moments.items()},
    }


def read(kept: Mapping[str, Any]) -> RequeueFilter:
    """The filter of a job's arguments."""

    def moment(name: str) -> datetime | None:
        return datetime.fromisoformat(kept[name]) if kept.get(name) else None

    workspace_id, session_id, state = kept.get("workspace_id"), kept.get("session_id"), kept.get("recovery_state")
    return RequeueFilter(
        workspace_id=None if workspace_id is None else WorkspaceId(workspace_id),
        session_id=None if session_id is None else SessionId(session_id),
        agent=kept.get("agent"),
        status=tuple(RunStatus(status) for status in kept["status"]),
        error_code=kept.get("error_code"),
        recovery_state=None if state is None else RecoveryState(state),
        created_after=moment("created_after"),
        since=moment("since"),
        until=moment("until"),
    )


LISTED = "listed"
"""The cursor of a job whose list is complete; before, it is the store's."""


@dataclass(frozen=True, slots=True)
class RequeueWork:
    """The work of a requeue job: its list page by page, then its items in chunks. ``epoch``: the one believed in;
    ``broker`` None: the relay tells it."""

    store: Store
    broker: Broker | None
    epoch: Callable[[], EpochId | None]

    def __call__(self, job: Job, fence: JobFence) -> bool:
        """One page or one chunk. Raises Unavailable, LeaseError ``job_lost``."""
        if job.cursor != LISTED:
            self._list(job, fence)
            return False
        accepted = self.store.requeue_items(
            fence, job.workspace_id, by=job.created_by, reason=job.arguments.get("reason"), limit=AT_ONCE
        )
        if accepted is None:
            return True
        if self.broker is not None:
            _tell(self.broker, self.store, self._epoch(), accepted)
        return False

    def _list(self, job: Job, fence: JobFence) -> None:
        if (kept := job.arguments.get("filter")) is not None:
            self.store.list_requeue(fence, read(kept), last=LISTED)
            return
        run_ids = [RunId(run_id) for run_id in job.arguments["run_ids"]]
        self.store.list_requeue_of(fence, run_ids, job.workspace_id, last=LISTED)

    def _epoch(self) -> EpochId | None:
        try:
            return self.epoch()
        except (LeaseError, Unavailable):
            return None


def _tell(broker: Broker, store: Store, epoch: EpochId | None, accepted: Sequence[Accepted]) -> None:
    if not accepted:
        return
    try:
        under = hear(broker, store, epoch, accepted)
        if under is not None:  # who hears of a run does not hear that its session waits for no retry any more
            places, sessions = Places(store, broker), {each.run.session_id for each in accepted}
            places.put(under, store.queued_sessions_of(list(sessions), under))
            places.heard(under, [each.run.id for each in accepted])
    except (Unavailable, LeaseError):
        return  # committed: the relay lets the broker hear of it, reconcile repairs the rest
