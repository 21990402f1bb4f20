"""The heartbeat: what a worker tells the registry, and its figures with it."""

from __future__ import annotations

from datetime import datetime

from oah.core.model.cordon import Cordon
from oah.core.model.worker import WorkerReport, WorkerState
from oah.worker.context import WorkerContext
from oah.worker.elastic import Elastic
from oah.worker.recent import LATELY, NOW, RecentWaits


def beat(
    context: WorkerContext,
    state: WorkerState,
    elastic: Elastic,
    *,
    parked: int,
    cordoned: bool,
    cordon: Cordon | None,
    draining: bool,
    started_at: datetime,
    waits: RecentWaits,
) -> None:
    """One report. Raises Unavailable."""
    slots, usage = elastic.slots, elastic.usage
    working = slots.working
    figures, telemetry = context.figures(), context.telemetry
    for each in WorkerState:
        telemetry.gauge("oah_worker_state", 1 if each is state else 0, state=str(each))
    telemetry.gauge("oah_worker_slots", slots.size)
    telemetry.gauge("oah_worker_slots_max", context.rules.slots)
    telemetry.gauge("oah_worker_slots_weight", slots.used)
    telemetry.gauge("oah_worker_slots_busy", slots.busy)
    telemetry.gauge("oah_worker_cordoned", int(cordoned))
    report = WorkerReport(
        id=context.worker_id,
        name=context.name,
        host=context.host,
        pid=context.pid,
        pool=context.pool,
        profiles=tuple(lane.profile for lane in context.lanes),
        state=state,
        slots=slots.size,
        busy=slots.busy,
        parked=parked,
        cordoned=cordoned,
        draining=draining,
        version=context.version,
        started_at=started_at,
        address=context.address(),
        token=context.token,
        cpu_percent=figures.cpu_percent,
        rss_bytes=figures.rss_bytes,
        sessions={a.fence.session_id: a.fence.run_id for a in working},
        withdrawn=context.withdrawn,
        embedded=context.embedded,
        waits=waits.within(LATELY),
        waits_now=waits.within(NOW),
        slots_max=context.rules.slots,
        weight=slots.used,
        weights=elastic.shares.weights,
        pressure=elastic.pressure.names,
        memory_ratio=usage.memory or 0.0,
        load_ratio=usage.load or 0.0,
        disk_ratio=usage.disk or 0.0,
        cordon=cordon,
    )
    serves = () if cordoned or draining else context.home_lanes
    context.broker.report(report, ttl=max(context.rules.heartbeat * 3, context.rules.lease), serves=serves)
