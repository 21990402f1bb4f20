"""/v1/workers, /v1/cordons, /v1/recovery, /v1/diagnosis, /v1/controller, /v1/agents"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from oah.api.auth import Caller, Principal, needs
from oah.api.render import answer, cordon_document, page, recovery_overview_document, seconds, worker_document
from oah.api.schemas import CordonBody, DrainBody, Limit, Named
from oah.api.state import ApiState, Desk
from oah.core.model.drain import Drain
from oah.core.model.workspace import Scope
from oah.ports.commands import CommandKind
from oah.services import commands, cordons, explain, inspect

router = APIRouter(prefix="/v1", tags=["fleet"])


@router.get("/workers", **needs(Scope.OPERATE))
def workers(desk: Desk, caller: Caller) -> Response:
    """Workers that are alive by their own report."""
    found = sorted(desk.context.broker.workers(), key=lambda worker: worker.id)
    return page(worker_document(worker, sessions=caller.admin) for worker in found)


@router.get("/workers/{worker_id}", **needs(Scope.OPERATE))
def worker(worker_id: Named, desk: Desk, caller: Caller) -> Response:
    """One worker, by id or name."""
    return answer(worker_document(commands.find(desk.context.broker, worker_id), sessions=caller.admin))


@router.get("/cordons", **needs(Scope.OPERATE))
def list_cordons(desk: Desk, caller: Caller) -> Response:
    """Workers that an operator has cordoned, by name and host, also those that are gone (`alive`)."""
    context = desk.context
    return page(
        {
            "name": each.name,
            "host": each.host,
            "pool": each.pool,
            "worker_id": each.worker_id,
            "alive": alive,
            **cordon_document(each),
        }
        for each, alive in cordons.listed(context.store, context.broker)
    )


def _lasting(body: CordonBody | None) -> timedelta | None:
    return None if body is None or body.for_seconds is None else timedelta(seconds=body.for_seconds)


def _told(told: cordons.Told, kind: CommandKind) -> Response:
    return answer({"id": told.worker_id, "name": told.name, "command": kind, "alive": told.alive}, 202)


def _told_pool(pool: str, told: Sequence[cordons.Told], kind: CommandKind) -> Response:
    alive, gone = ([each for each in told if each.alive is there] for there in (True, False))
    return answer(
        {
            "pool": pool,
            "workers": [each.worker_id for each in alive],
            "gone": [each.name for each in gone],
            "command": kind,
        },
        202,
    )


def _command(
    desk: ApiState, caller: Principal, named: str, kind: CommandKind, drain: Drain = commands.AS_SET
) -> Response:
    context = desk.context
    report = commands.command(context.store, context.broker, named, kind, by=caller.by, drain=drain)
    return answer({"id": report.id, "name": report.name, "command": kind}, 202)


def _command_pool(
    desk: ApiState, caller: Principal, pool: str, kind: CommandKind, drain: Drain = commands.AS_SET
) -> Response:
    context = desk.context
    reports = commands.command_pool(context.store, context.broker, pool, kind, by=caller.by, drain=drain)
    return answer({"pool": pool, "workers": [report.id for report in reports], "command": kind}, 202)


@router.post("/workers/{worker_id}/cordon", status_code=202, **needs(Scope.ADMIN))
def cordon(worker_id: Named, desk: Desk, caller: Caller, body: CordonBody | None = None) -> Response:
    """Take no new runs, in this life and the next ones of that name, until it is uncordoned or `for_seconds` are
    over."""
    context = desk.context
    told = cordons.cordon(context.store, context.broker, worker_id, lasting=_lasting(body), by=caller.by)
    return _told(told, CommandKind.CORDON)


@router.post("/workers/{worker_id}/uncordon", status_code=202, **needs(Scope.ADMIN))
def uncordon(worker_id: Named, desk: Desk, caller: Caller) -> Response:
    """Take new runs again; of a worker that is gone, what was kept for its successor."""
    context = desk.context
    return _told(cordons.uncordon(context.store, context.broker, worker_id, by=caller.by), CommandKind.UNCORDON)


@router.post("/workers/{worker_id}/drain", status_code=202, **needs(Scope.ADMIN))
def drain(worker_id: Named, desk: Desk, caller: Caller, body: DrainBody | None = None) -> Response:
    """Finish current runs, then stop. Runs that still run at the deadline may go on (`wait`), go back to the head of
    their queue with nothing counted (`requeue`), or fail (`fail`). With `stay` the worker takes nothing and does not
    end."""
    return _command(desk, caller, worker_id, CommandKind.DRAIN, commands.AS_SET if body is None else body.drain)


@router.post("/pools/{pool}/cordon", status_code=202, **needs(Scope.ADMIN))
def cordon_pool(pool: Named, desk: Desk, caller: Caller, body: CordonBody | None = None) -> Response:
    """Every worker of the pool that is alive now takes no new runs, nor do those of their names that follow."""
    context = desk.context
    told = cordons.cordon_pool(context.store, context.broker, pool, lasting=_lasting(body), by=caller.by)
    return _told_pool(pool, told, CommandKind.CORDON)


@router.post("/pools/{pool}/uncordon", status_code=202, **needs(Scope.ADMIN))
def uncordon_pool(pool: Named, desk: Desk, caller: Caller) -> Response:
    """Every worker of the pool takes new runs again; what was kept for those that are gone is taken back, too."""
    context = desk.context
    return _told_pool(
        pool, cordons.uncordon_pool(context.store, context.broker, pool, by=caller.by), CommandKind.UNCORDON
    )


@router.post("/pools/{pool}/drain", status_code=202, **needs(Scope.ADMIN))
def drain_pool(pool: Named, desk: Desk, caller: Caller, body: DrainBody | None = None) -> Response:
    """Every worker of the pool finishes its runs, then stops, all at once; one batch after the other: a rollout."""
    return _command_pool(desk, caller, pool, CommandKind.DRAIN, commands.AS_SET if body is None else body.drain)


@router.get("/recovery", **needs(Scope.READ))
def recovery(desk: Desk, caller: Caller) -> Response:
    """What recovery did with the runs of the caller's workspace, or of all."""
    context = desk.context
    return answer(
        recovery_overview_document(inspect.recovery_overview(context.store, caller.workspace_id, lease=context.lease))
    )


@router.get("/diagnosis", **needs(Scope.READ))
def diagnosis(
    desk: Desk,
    caller: Caller,
    waiting_seconds: Annotated[float, Query(ge=0, le=2_592_000)] = explain.LONG.total_seconds(),
    limit: Limit = 20,
) -> Response:
    """What has not moved for too long in the caller's workspace, or in all: silent owners, unheeded cancels, sessions
    held for an unkillable process, and runs that are eligible and wait, each with its reason."""
    context = desk.context
    found = explain.diagnose(
        context.store,
        context.broker,
        caller.workspace_id,
        lease=context.lease,
        waiting_for=timedelta(seconds=waiting_seconds),
        limit=limit,
    )
    document = explain.told(found)
    if not caller.admin:
        document["unserved_lanes"] = []  # of all workspaces together
    return answer(document)


@router.get("/controller", **needs(Scope.OPERATE))
def controller(desk: Desk, caller: Caller) -> Response:
    """Who leads, and the epoch both stores believe in."""
    view = inspect.controller_view(desk.context.store, desk.context.broker)
    return answer(
        {
            "leader": view.leader,
            "workers": view.workers,
            "epoch": {
                "id": view.epoch,
                "broker_id": view.broker.id,
                "state": view.broker.state,
                "schema": view.broker.schema,
                "open_for_seconds": seconds(view.broker.open_for),
            },
        }
    )


@router.get("/agents", **needs(Scope.READ))
def agents(desk: Desk, caller: Caller) -> Response:
    """Agents that sessions may be created for, and how many live workers serve each."""
    known = inspect.agents(desk.context.profiles(), desk.context.broker)
    return page({"name": name, "workers": count} for name, count in known.items())
