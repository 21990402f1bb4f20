"""/v1/workspaces, /v1/keys"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from oah.api.auth import Caller, needs
from oah.api.render import answer, key_document, page, workspace_document
from oah.api.schemas import Cursor, Filter, KeyBody, Limit, Named, WorkspaceBody, WorkspaceChanges, key_id
from oah.api.state import Desk
from oah.core.model.workspace import Scope
from oah.services import keys as keyring
from oah.services import workspaces
from oah.services.caps import tell_now

router = APIRouter(prefix="/v1", tags=["tenancy"])


@router.post("/workspaces", status_code=201, **needs(Scope.ADMIN))
def create_workspace(body: WorkspaceBody, desk: Desk, caller: Caller) -> Response:
    """A new workspace."""
    made = workspaces.create(
        desk.context.store,
        desk.context.ids,
        body.name,
        weight=body.weight,
        max_active_runs=body.max_active_runs,
        max_queued_runs=body.max_queued_runs,
        runs_per_minute=body.runs_per_minute,
        runs_burst=body.runs_burst,
        recovery_strategy=body.recovery_strategy,
        recovery_max_attempts=body.recovery_max_attempts,
        by=caller.by,
    )
    tell_now(desk.context.store, desk.context.broker, desk.epoch())
    return answer(workspace_document(made), 201, {"location": f"/v1/workspaces/{made.id}"})


@router.get("/workspaces", **needs(Scope.READ))
def list_workspaces(desk: Desk, caller: Caller, cursor: Cursor = None, limit: Limit = 100) -> Response:
    """The workspaces that the caller sees."""
    found = desk.context.store.workspaces()
    return page(workspace_document(one) for one in found if caller.workspace_id in (None, one.id))


@router.get("/workspaces/{workspace}", **needs(Scope.READ))
def show_workspace(workspace: Named, desk: Desk, caller: Caller) -> Response:
    """One workspace, by id or name."""
    store = desk.context.store
    return answer(workspace_document(store.workspace(workspaces.resolve(store, workspace, caller.workspace_id))))


@router.patch("/workspaces/{workspace}", **needs(Scope.ADMIN))
def change_workspace(workspace: Named, body: WorkspaceChanges, desk: Desk, caller: Caller) -> Response:
    """Change weight, caps, the rate of submits, and what it says about recovery."""
    store = desk.context.store
    found = workspaces.resolve(store, workspace, caller.workspace_id)
    changes = body.model_dump(exclude_unset=True)
    desk.context.answer_rules(changes.get("answers") or ())
    changed = workspaces.change(store, found, changes, by=caller.by)
    tell_now(store, desk.context.broker, desk.epoch())
    return answer(workspace_document(changed))


@router.post("/keys", status_code=201, **needs(Scope.ADMIN))
def create_key(body: KeyBody, desk: Desk, caller: Caller) -> Response:
    """A new key; its secret is in this answer and nowhere else."""
    store = desk.context.store
    scopes = frozenset(body.scopes)
    named = body.workspace
    bound = None if named is None and Scope.ADMIN in scopes else workspaces.resolve(store, named, caller.workspace_id)
    made = keyring.create(
        store,
        desk.context.ids,
        name=body.name,
        workspace_id=bound,
        scopes=scopes,
        expires_at=body.expires_at,
        by=caller.by,
    )
    return answer({**key_document(made.key), "secret": made.secret}, 201, {"cache-control": "no-store"})


@router.get("/keys", **needs(Scope.ADMIN))
def list_keys(desk: Desk, caller: Caller, workspace: Filter = None) -> Response:
    """Keys without their secrets, revoked ones included."""
    store = desk.context.store
    where = caller.workspace_id if workspace is None else workspaces.resolve(store, workspace, caller.workspace_id)
    return page(map(key_document, store.keys(where)))


@router.delete("/keys/{key}", **needs(Scope.ADMIN))
def revoke_key(key: Named, desk: Desk, caller: Caller) -> Response:
    """End a key: here at once, in other processes within two seconds."""
    revoked = keyring.revoke(desk.context.store, key_id(key), by=caller.by)
    desk.keyring.forget(revoked.id)
    return answer(key_document(revoked))
