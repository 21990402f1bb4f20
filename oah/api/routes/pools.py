"""/v1/queue, /v1/pools, /v1/controller/decisions"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from oah.api.auth import Caller, needs
from oah.api.render import answer, page, worker_document
from oah.api.render_fleet import pool_document, pool_metric_document, queue_document, scale_decision_document
from oah.api.schemas import Cursor, Filter, Limit, Named
from oah.api.state import ApiState, Desk
from oah.core.model.workspace import Scope
from oah.ports.scaling import DecisionFilter
from oah.services import inspect
from oah.services.pools import Pools
from oah.services.signals import Said

router = APIRouter(prefix="/v1", tags=["fleet"])


def _pools(desk: ApiState) -> Pools:
    context = desk.context
    return Pools(context.store, context.broker, context.clock, context.lease, context.weigh)


@router.get("/queue", **needs(Scope.OPERATE))
def queue(desk: Desk, caller: Caller) -> Response:
    """The health snapshot of queue and fleet, with the pools. What is counted in SQL (depths, runs) is anew each time
    while counting is quick; else it is at most twenty times as old as counting takes."""
    context = desk.context
    counted = desk.counts()
    said = Said(context.broker.figures(), context.broker.workers())
    snapshot = inspect.queue_snapshot(
        counted,
        said.figures,
        said.workers,
        local=context.local_workers(),
        subagent_reserve=context.subagent_reserve,
    )
    return answer({**queue_document(snapshot), "pools": [pool_document(pool) for pool in _pools(desk).all(said)]})


@router.get("/pools", **needs(Scope.OPERATE))
def pools(desk: Desk, caller: Caller) -> Response:
    """Pools in which anything waits, runs or serves: load, slots, and what was wanted last. The cost is that of lanes,
    workers and active runs, whatever the backlog."""
    return page(pool_document(pool) for pool in _pools(desk).all())


@router.get("/pools/{pool}", **needs(Scope.OPERATE))
def pool(pool: Named, desk: Desk, caller: Caller) -> Response:
    """One pool, with its workers and the last decisions about its size, newest first."""
    found = _pools(desk).one(pool)
    return answer(
        {
            **pool_document(found),
            "members": [worker_document(worker, sessions=caller.admin) for worker in found.workers],
            "decisions": [scale_decision_document(decision) for decision in found.decisions],
        }
    )


@router.get("/pools/{pool}/metric", **needs(Scope.OPERATE))
def pool_metric(pool: Named, desk: Desk, caller: Caller) -> Response:
    """For an autoscaler: `value` is what waits for a slot plus what runs in one, at least 1 while an agent waits for an
    answer, and 0 only when nothing would be interrupted. 503 while it could be too little: an autoscaler then holds."""
    return answer(pool_metric_document(_pools(desk).measured(pool)))


@router.get("/controller/decisions", **needs(Scope.OPERATE))
def decisions(desk: Desk, caller: Caller, pool: Filter = None, cursor: Cursor = None, limit: Limit = 100) -> Response:
    """What was decided about the sizes of pools, newest first: what the policy was shown, why it decided so, and what
    came of it. One row per decision that changes something; they age out."""
    found = desk.context.store.scale_decisions(DecisionFilter(pool=pool, cursor=cursor, limit=limit))
    return page(map(scale_decision_document, found.items), found.next_cursor)
