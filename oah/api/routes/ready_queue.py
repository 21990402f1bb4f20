"""/v1/queue/faults, /v1/queue/repair, /v1/queue/sessions/{session_id}: SQL against the broker, shown and mended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from oah.api.auth import Caller, needs
from oah.api.render import Document, answer, seconds
from oah.api.schemas import Body, Cursor, Limit, Named
from oah.api.state import ApiState, Desk
from oah.core.model.ids import SessionId
from oah.core.model.workspace import Scope
from oah.services.ready_queue import Look, ReadyQueue, of_session

router = APIRouter(prefix="/v1/queue", tags=["fleet"])

REPAIRED = "queue.repaired"


class QueueRepairBody(Body):
    """One page of the walk. ``reconcile``: tell the broker of every session of it once more, wrong or not."""

    cursor: str | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 500
    reconcile: bool = False


def _queue(desk: ApiState) -> ReadyQueue:
    context = desk.context
    return ReadyQueue(context.store, context.broker, lease=context.lease, pause=desk.stopping.wait)


def _document(look: Look, repaired: Sequence[SessionId] = (), reconciled: int = 0) -> Document:
    return {
        "part": look.part,
        "looked": look.looked,
        "faults": {str(fault): list(names) for fault, names in look.faults.items()},
        "repaired": list(repaired),
        "reconciled": reconciled,
        "next_cursor": look.next_cursor,
    }


@router.get("/faults", **needs(Scope.ADMIN))
def faults(desk: Desk, caller: Caller, cursor: Cursor = None, limit: Limit = 500) -> Response:
    """A page of the walk over sessions with queued runs, owners and entries of the ready sets, of all workspaces: what
    was wrong on two looks two seconds apart."""
    return answer(_document(_queue(desk).look(cursor, limit=limit)))


@router.post("/repair", **needs(Scope.ADMIN))
def repair(desk: Desk, caller: Caller, body: QueueRepairBody) -> Response:
    """The same page, with what is wrong put right: sessions get their place again, entries that nothing confirms go.
    Faults of ownership are the leader's."""
    queue = _queue(desk)
    reconciled = queue.reconcile(body.cursor, limit=body.limit) if body.reconcile else 0
    look = queue.look(body.cursor, limit=body.limit)
    repaired = queue.mend(look)
    if repaired or reconciled:
        data = {"part": look.part, "repaired": len(repaired), "reconciled": reconciled, "sessions": repaired[:20]}
        desk.context.store.note_action(caller.by, REPAIRED, "queue", data)
        desk.context.telemetry.count("oah_queue_repairs_total", len(repaired), by="operator")
    return answer(_document(look, repaired, reconciled))


@router.get("/sessions/{session_id}", **needs(Scope.OPERATE))
def session(session_id: Named, desk: Desk, caller: Caller) -> Response:
    """Where both stores have a session: its owner in SQL, its place in the broker."""
    context = desk.context
    found = context.store.session(SessionId(session_id), caller.workspace_id)
    owner, view = of_session(context.store, context.broker, found.id)
    return answer(
        {
            "session_id": found.id,
            "owner": owner
            and {
                "worker_id": owner.worker_id,
                "parked": owner.parked,
                "mark_age_seconds": seconds(owner.age),
                "run_id": owner.run_id,
            },
            "broker": view
            and {
                "place": view.place,
                "class": view.ready_class,
                "worker_id": view.worker_id,
                "lease_seconds": seconds(view.life),
            },
        }
    )
