"""/v1/pauses, /v1/caps: what takes no new runs, or only so many at once."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from oah.api.auth import Caller, Principal, needs
from oah.api.render import answer, moment, page
from oah.api.schemas import Body
from oah.api.state import ApiState, Desk
from oah.core.model.group import Cap, Group, GroupKind, Pause
from oah.core.model.workspace import Scope
from oah.services.pauses import Govern, named

router = APIRouter(prefix="/v1", tags=["governance"])


class GroupBody(Body):
    """A group of sessions: ``name`` of a workspace (the caller's own when absent), a pool or a profile."""

    kind: GroupKind
    name: str | None = None


class PauseBody(GroupBody):
    """POST /pauses"""

    reason: str | None = None


class CapBody(GroupBody):
    """PUT /caps; ``max_active_runs`` null: no cap."""

    max_active_runs: int | None = Field(ge=1)


def _group_document(group: Group) -> dict[str, Any]:
    return {"kind": group.kind, "name": group.name or None}


def _pause_document(pause: Pause) -> dict[str, Any]:
    return {**_group_document(pause.group), "reason": pause.reason, "by": pause.by, "at": moment(pause.at)}


def _cap_document(cap: Cap) -> dict[str, Any]:
    of = _group_document(cap.group)
    return {**of, "max_active_runs": cap.max_active_runs, "by": cap.by, "at": moment(cap.at)}


def _govern(desk: ApiState, caller: Principal) -> Govern:
    return Govern(desk.context.store, desk.context.broker, desk.epoch(), caller.by)


@router.get("/pauses", **needs(Scope.OPERATE))
def pauses(desk: Desk, caller: Caller) -> Response:
    """What is paused: of the caller's workspace, or all. Sessions are not among them: they are held."""
    found = desk.context.store.pauses()
    ours = Group(GroupKind.WORKSPACE, caller.workspace_id or "")
    return page(_pause_document(each) for each in found if caller.workspace_id is None or each.group == ours)


@router.post("/pauses", status_code=201, **needs(Scope.OPERATE))
def pause(body: PauseBody, desk: Desk, caller: Caller) -> Response:
    """Start no run of a group; what runs goes on. Pools, profiles and all need a key of all workspaces."""
    group = named(desk.context.store, body.kind, body.name, bound_to=caller.workspace_id)
    return answer(_pause_document(_govern(desk, caller).pause(group, body.reason)), 201)


@router.post("/pauses/resume", **needs(Scope.OPERATE))
def resume(body: GroupBody, desk: Desk, caller: Caller) -> Response:
    """Undo a pause."""
    group = named(desk.context.store, body.kind, body.name, bound_to=caller.workspace_id)
    return answer({**_group_document(group), "was_paused": _govern(desk, caller).resume(group)})


@router.get("/caps", **needs(Scope.OPERATE))
def caps(desk: Desk, caller: Caller) -> Response:
    """Caps of profiles and of all; a workspace's stands with the workspace. Keys of one workspace see none."""
    found = desk.context.store.caps() if caller.workspace_id is None else []
    return page(map(_cap_document, found))


@router.put("/caps", **needs(Scope.ADMIN))
def cap(body: CapBody, desk: Desk, caller: Caller) -> Response:
    """How many runs of a profile, or of all, may hold a slot at once."""
    group = named(desk.context.store, body.kind, body.name, bound_to=None)
    made = _govern(desk, caller).cap(group, body.max_active_runs)
    return answer({**_group_document(group), "max_active_runs": None} if made is None else _cap_document(made))
