"""Look at the queue, the fleet and recovery. Reads only; figures of one look, never added up.

`readySessionCount` and the other names are fixed by the outside interface; their meaning stands at the fields below.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.epoch import EpochView
from oah.core.model.ids import EpochId, WorkerId, WorkspaceId
from oah.core.model.run import ReadyClass, RecoveryState, Run, RunClass
from oah.core.model.worker import WorkerReport, WorkerState
from oah.core.policy.quantiles import merged, quantile
from oah.errors import Unavailable
from oah.ports.broker import Broker, LaneDepth, QueueFigures
from oah.ports.figures import RecoveryFigures
from oah.ports.store import RunFilter, Store, StoreCounts

SHOWN = 20
"""Quarantined runs that the overview shows; the list of runs has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassWaits:
    """How long runs of one class wait for their start: of those started in the last five minutes (``LATELY``), by the
    reports of the workers that live, right within five per cent; and of the sessions that wait now."""

    started: int = 0
    p50: timedelta | None = None
    p95: timedelta | None = None
    ready_sessions: int = 0
    oldest: timedelta | None = None
    """Of the ready sessions that a worker may take."""


LATELY = timedelta(minutes=5)


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
    capped_ready_session_count: int
    """Ready sessions that a cap or a pause keeps out."""
    oldest_schedulable_ready_age: timedelta | None
    busy_workers: int
    idle_workers: int
    slot_capacity: int
    """Slots that workers may open; where agents weigh more than one, busy ones are what the agents take."""
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
    waits: Mapping[RunClass, ClassWaits]
    counts: StoreCounts
    figures: QueueFigures


@dataclass(frozen=True, slots=True)
class Counted:
    """What counting SQL found, and how many sessions were ready in the broker a moment before: compared with those of
    another moment, the counts would tell of sessions that only came or went meanwhile."""

    counts: StoreCounts
    ready_sessions: int

    @property
    def stale(self) -> int:
        """Sessions that are ready in the broker and have nothing eligible in SQL, as far as counts can tell."""
        return max(0, self.ready_sessions - self.counts.ready_sessions)


def count(store: Store, broker: Broker, *, lease: timedelta) -> Counted:
    """Count, at the cost of what is queued. Raises Unavailable."""
    ready = sum(depth.sessions for depth in broker.figures().ready)
    return Counted(store.counts(None, lease=lease), ready)


def queue_snapshot(
    counted: Counted,
    figures: QueueFigures,
    reports: Sequence[WorkerReport],
    *,
    local: frozenset[WorkerId],
    subagent_reserve: int = 1,
) -> QueueSnapshot:
    """The health snapshot, out of what SQL, broker and registry say: half a picture would mislead."""
    counts = counted.counts
    workers = [worker for worker in reports if worker.state is not WorkerState.STOPPING]
    mine = [worker for worker in workers if worker.id in local]
    served = {lane for worker in workers if not (worker.cordoned or worker.draining) for lane in worker.lanes}
    schedulable = [depth for depth in figures.ready if depth.lane in served]
    ready = sum(depth.sessions for depth in figures.ready)
    could = sum(depth.sessions for depth in schedulable)
    subagents = sum(depth.sessions for depth in figures.ready if depth.ready_class is ReadyClass.SUBAGENT)
    idle = sum(worker.free for worker in workers)
    target = subagent_reserve if subagents else 0
    busy = [worker for worker in workers if worker.busy]
    return QueueSnapshot(
        ready_session_count=could,
        ready_queue_depth=counts.ready_runs,
        unique_ready_session_count=ready,
        subagent_ready_session_count=subagents,
        subagent_ready_queue_depth=counts.ready_subagent_runs,
        locked_ready_session_count=counts.locked_sessions,
        stale_ready_session_count=counted.stale,
        capped_ready_session_count=sum(depth.capped for depth in figures.ready),
        oldest_schedulable_ready_age=_oldest(schedulable),
        busy_workers=sum(1 for worker in mine if worker.busy),
        idle_workers=sum(1 for worker in mine if not worker.busy),
        slot_capacity=sum(worker.capacity for worker in mine),
        busy_slots=sum(worker.taken for worker in mine),
        idle_slots=sum(max(0, worker.capacity - worker.taken) for worker in mine),
        global_active_workers=len(workers),
        global_busy_workers=len(busy),
        remote_active_workers=len(workers) - len(mine),
        remote_busy_workers=sum(1 for worker in busy if worker.id not in local),
        global_slot_capacity=sum(worker.capacity for worker in workers),
        global_busy_slots=sum(worker.taken for worker in workers),
        available_idle_capacity=idle,
        ready_sessions_per_active_worker=could / len(workers) if workers else float(could),
        subagent_reserve_target=target,
        subagent_reserve_deficit=max(0, target - idle),
        waits=class_waits(workers, figures.ready),
        counts=counts,
        figures=figures,
    )


def class_waits(workers: Sequence[WorkerReport], ready: Sequence[LaneDepth]) -> dict[RunClass, ClassWaits]:
    """By class; what is ready as `resume` or `suspect` is of any class, and counts in none."""
    found = {}
    for run_class in RunClass:
        lately = merged(worker.waits.get(run_class, {}) for worker in workers)
        now = [depth for depth in ready if depth.ready_class.value == run_class.value]
        found[run_class] = ClassWaits(
            started=sum(lately.values()),
            p50=quantile(lately, 0.5),
            p95=quantile(lately, 0.95),
            ready_sessions=sum(depth.sessions for depth in now),
            oldest=_oldest(now),
        )
    return found


def _oldest(depths: Iterable[LaneDepth]) -> timedelta | None:
    return max((depth.oldest for depth in depths if depth.oldest is not None), default=None)


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
