"""Queue and pools as the JSON documents of the HTTP interface."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

from oah.api.render import Document, moment, seconds
from oah.core.model.run import RunClass
from oah.ports.scaling import ScaleDecision
from oah.services.inspect import LATELY, ClassWaits, QueueSnapshot
from oah.services.pools import PoolSnapshot
from oah.services.signals import PoolView


def queue_document(snapshot: QueueSnapshot) -> Document:
    """The health snapshot; the camelCase names are those of the outside interface."""
    figures, counts = snapshot.figures, snapshot.counts
    return {
        "readySessionCount": snapshot.ready_session_count,
        "readyQueueDepth": snapshot.ready_queue_depth,
        "uniqueReadySessionCount": snapshot.unique_ready_session_count,
        "subagentReadySessionCount": snapshot.subagent_ready_session_count,
        "subagentReadyQueueDepth": snapshot.subagent_ready_queue_depth,
        "lockedReadySessionCount": snapshot.locked_ready_session_count,
        "staleReadySessionCount": snapshot.stale_ready_session_count,
        "cappedReadySessionCount": snapshot.capped_ready_session_count,
        "oldestSchedulableReadyAgeMs": _ms(snapshot.oldest_schedulable_ready_age),
        "busyWorkers": snapshot.busy_workers,
        "idleWorkers": snapshot.idle_workers,
        "slotCapacity": snapshot.slot_capacity,
        "busySlots": snapshot.busy_slots,
        "idleSlots": snapshot.idle_slots,
        "globalActiveWorkers": snapshot.global_active_workers,
        "globalBusyWorkers": snapshot.global_busy_workers,
        "remoteActiveWorkers": snapshot.remote_active_workers,
        "remoteBusyWorkers": snapshot.remote_busy_workers,
        "globalSlotCapacity": snapshot.global_slot_capacity,
        "globalBusySlots": snapshot.global_busy_slots,
        "availableIdleCapacity": snapshot.available_idle_capacity,
        "readySessionsPerActiveWorker": snapshot.ready_sessions_per_active_worker,
        "subagentReserveTarget": snapshot.subagent_reserve_target,
        "subagentReserveDeficit": snapshot.subagent_reserve_deficit,
        "leasedSessionCount": figures.leased,
        "dueRunCount": figures.due,
        "heldSessionCount": figures.held,
        "activeSessionCount": counts.active_sessions,
        "staleOwnerCount": counts.stale_owners,
        "runs": {str(status): count for status, count in counts.runs.items()},
        "queueWaitWindowSeconds": LATELY.total_seconds(),
        "queueWait": {str(run_class): _class_waits(snapshot.waits[run_class]) for run_class in RunClass},
        "lanes": [
            {
                "lane": str(depth.lane),
                "class": depth.ready_class,
                "sessions": depth.sessions,
                "capped": depth.capped,
                "oldest_seconds": seconds(depth.oldest),
            }
            for depth in figures.ready
            if depth.sessions
        ],
    }


def _class_waits(waits: ClassWaits) -> Document:
    return {
        "startedCount": waits.started,
        "p50Ms": _ms(waits.p50),
        "p95Ms": _ms(waits.p95),
        "readySessionCount": waits.ready_sessions,
        "oldestReadyMs": _ms(waits.oldest),
    }


def _ms(value: timedelta | None) -> int | None:
    return None if value is None else round(value.total_seconds() * 1000)


def pool_document(snapshot: PoolSnapshot) -> Document:
    """A pool, without its workers and decisions. What waits and runs counts as the slots that it takes."""
    view, workers = snapshot.view, snapshot.workers
    signals = view.signals
    return {
        "pool": view.pool,
        "load": view.load,
        "ready": signals.ready,
        "subagent_ready": signals.subagent_ready,
        "capped": view.capped,
        "unserved": view.unserved,
        "bound": sum(view.bound.values()),
        "running": signals.running,
        "waiting": signals.waiting,
        "workers": len(workers),
        "cordoned": sum(1 for worker in workers if worker.cordoned or worker.draining),
        "pressed": sum(1 for worker in workers if worker.pressure),
        "slots": signals.slots,
        "idle_slots": signals.idle_slots,
        "desired": snapshot.desired,
        "oldest_wait_seconds": signals.oldest_wait.total_seconds(),
        "wait_p50_seconds": seconds(snapshot.wait_p50),
        "wait_p95_seconds": seconds(snapshot.wait_p95),
        "sure": signals.sure,
        "doubts": list(view.doubts),
    }


def pool_metric_document(view: PoolView) -> Document:
    """What an autoscaler reads; `value` is what it scales by."""
    signals = view.signals
    return {
        "pool": view.pool,
        "value": view.load,
        "ready": signals.ready,
        "running": signals.running,
        "waiting": signals.waiting,
        "slots": signals.slots,
    }


def scale_decision_document(decision: ScaleDecision) -> Document:
    """A decision of scaling with what it was shown and what came of it."""
    return {
        "id": decision.id,
        "at": moment(decision.at),
        "pool": decision.pool,
        "target": decision.target,
        "holder": decision.holder,
        "current": decision.current,
        "desired": decision.desired,
        "reason": decision.reason,
        "outcome": decision.outcome,
        "inputs": dict(decision.inputs),
        "detail": dict(decision.detail),
        "going": {name: asdict(going) for name, going in decision.going.items()},
    }
