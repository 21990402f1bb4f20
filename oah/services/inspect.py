"""Look at the queue, the fleet and recovery. Reads only; figures of one look, never added up.

`readySessionCount` and the other names are fixed by the outside interface; their meaning stands at the fields below.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.epoch import EpochView
from oah.core.model.ids import EpochId, WorkerId, WorkspaceId
from oah.core.model.run import ReadyClass, RecoveryState, Run
from oah.core.model.worker import WorkerReport, WorkerState
from oah.errors import Unavailable
from oah.ports.broker import Broker, QueueFigures
from oah.ports.figures import RecoveryFigures
from oah.ports.store import RunFilter, Store, StoreCounts

SHOWN = 20
"""Quarantined runs that the overview shows; the list of runs has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSnapshot:
    """Queue and fleet at one moment. `ready` sessions are in a ready set; local means this process's workers."""

    ready_session_count: int
    """Ready sessions that a live worker, neither cordoned nor draining, could take."""
    ready_queue_depth: int
    """Eligible runs of sessions that no worker owns and nothing holds."""
    unique_ready_session_count: int
    subagent_ready_session_count: int
    subagent_ready_queue_depth: int
    locked_ready_session_count: int
    """Leased or parked sessions with eligible runs."""
    stale_ready_session_count: int
    """Sessions that are ready in the broker and have nothing eligible in SQL, as far as counts can tell."""
    oldest_schedulable_ready_age: timedelta | None
    busy_workers: int
    idle_workers: int
    slot_capacity: int
    busy_slots: int
    idle_slots: int
    global_active_workers: int
    global_busy_workers: int
    remote_active_workers: int
    remote_busy_workers: int
    global_slot_capacity: int
    global_busy_slots: int
    available_idle_capacity: int
    """Free slots of live workers that take new runs, all processes."""
    ready_sessions_per_active_worker: float
    subagent_reserve_target: int
    subagent_reserve_deficit: int
    counts: StoreCounts
    figures: QueueFigures


def queue_snapshot(
    store: Store,
    broker: Broker,
    *,
    local: frozenset[WorkerId],
    lease: timedelta,
    subagent_reserve: int = 1,
) -> QueueSnapshot:
    """The health snapshot. Raises Unavailable when either store is away: half a picture misleads."""
    counts = store.counts(None, lease=lease)
    figures = broker.figures()
    workers = [worker for worker in broker.workers() if worker.state is not WorkerState.STOPPING]
    mine = [worker for worker in workers if worker.id in local]
    taking = [worker for worker in workers if not (worker.cordoned or worker.draining)]
    served = {lane for worker in taking for lane in worker.lanes}
    ready = sum(depth.sessions for depth in figures.ready)
    schedulable = sum(depth.sessions for depth in figures.ready if depth.lane in served)
    subagents = sum(depth.sessions for depth in figures.ready if depth.ready_class is ReadyClass.SUBAGENT)
    idle = sum(max(0, worker.slots - worker.busy) for worker in taking)
    target = subagent_reserve if subagents else 0
    busy = [worker for worker in workers if worker.busy]
    return QueueSnapshot(
        ready_session_count=schedulable,
        ready_queue_depth=counts.ready_runs,
        unique_ready_session_count=ready,
        subagent_ready_session_count=subagents,
        subagent_ready_queue_depth=counts.ready_subagent_runs,
        locked_ready_session_count=counts.locked_sessions,
        stale_ready_session_count=max(0, ready - counts.ready_sessions),
        oldest_schedulable_ready_age=figures.oldest_ready if schedulable else None,
        busy_workers=sum(1 for worker in mine if worker.busy),
        idle_workers=sum(1 for worker in mine if not worker.busy),
        slot_capacity=sum(worker.slots for worker in mine),
        busy_slots=sum(worker.busy for worker in mine),
        idle_slots=sum(max(0, worker.slots - worker.busy) for worker in mine),
        global_active_workers=len(workers),
        global_busy_workers=len(busy),
        remote_active_workers=len(workers) - len(mine),
        remote_busy_workers=sum(1 for worker in busy if worker.id not in local),
        global_slot_capacity=sum(worker.slots for worker in workers),
        global_busy_slots=sum(worker.busy for worker in workers),
        available_idle_capacity=idle,
        ready_sessions_per_active_worker=schedulable / len(workers) if workers else float(schedulable),
        subagent_reserve_target=target,
        subagent_reserve_deficit=max(0, target - idle),
        counts=counts,
        figures=figures,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOverview:
    """What recovery has done with the runs that exist now."""

    figures: RecoveryFigures
    quarantine: tuple[Run, ...]
    """The newest of them."""
    stale_owners: int


def recovery_overview(store: Store, workspace_id: WorkspaceId | None, *, lease: timedelta) -> RecoveryOverview:
    """Counts by state, quarantine, latest times, main reasons. Raises Unavailable."""
    figures = store.recovery_figures(workspace_id)
    latest = store.runs(RunFilter(workspace_id=workspace_id, recovery_state=RecoveryState.QUARANTINED, limit=SHOWN))
    return RecoveryOverview(
        figures=figures,
        quarantine=latest.items,
        stale_owners=store.counts(workspace_id, lease=lease).stale_owners,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerView:
    """Who leads, and which epoch both stores believe in."""

    leader: str | None
    epoch: EpochId | None
    broker: EpochView
    workers: int


def controller_view(store: Store, broker: Broker) -> ControllerView:
    """Raises Unavailable."""
    return ControllerView(
        leader=broker.leader(), epoch=store.current_epoch(), broker=broker.view(), workers=len(broker.workers())
    )


def agents(profiles: Sequence[str], broker: Broker) -> dict[str, int]:
    """Agents that sessions may be created for → live workers that serve them now (0 when the broker is away)."""
    known = Counter(dict.fromkeys(profiles, 0))
    for worker in live_workers(broker):
        known.update(set(worker.profiles))
    return dict(sorted(known.items()))


def live_workers(broker: Broker) -> list[WorkerReport]:
    """Workers by their own report; none while the broker is away."""
    try:
        return broker.workers()
    except Unavailable:
        return []
