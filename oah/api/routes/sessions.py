"""/v1/sessions"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from oah.api.auth import Caller, demand, needs, needs_family
from oah.api.family import lineage, seen_session
from oah.api.render import answer, page, run_document, session_document
from oah.api.schemas import Cursor, Filter, Limit, Named, SecretRef, SessionBody, SessionChanges
from oah.api.state import Desk
from oah.core.model.home import Worktree
from oah.core.model.ids import SessionId, WorkspaceId
from oah.core.model.session import EnvValue, Session, SessionState
from oah.core.model.workspace import Scope
from oah.errors import InvalidRequest
from oah.services import explain, inspect, sessions, workspaces

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])

IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key")]


@router.post("", status_code=201, **needs_family(Scope.RUN))
def create(body: SessionBody, desk: Desk, caller: Caller, key: IdempotencyKey = None) -> Response:
    """A new conversation with an agent; pool and agent fix its lane. With the key of a run it is one for children of
    that run, and an idempotency key finds the one that the run has opened before."""
    context = desk.context

    def agents() -> frozenset[str]:
        return frozenset(inspect.agents(context.profiles(), context.broker))

    if caller.fence is not None:
        below = lineage(desk, caller.fence)
        asked = _asked(body, workspaces.resolve(context.store, body.workspace, below.workspace_id), below.own)
        session, before = below.open(
            asked, key, clock=context.clock, ids=context.ids, agents=agents, rules=context.rules
        )
        return _opened(session, before=before)
    asked = _asked(body, workspaces.resolve(context.store, body.workspace, caller.workspace_id), None)
    session = sessions.create(context.store, context.clock, context.ids, asked, agents=agents, rules=context.rules)
    return _opened(session, before=False)


def _opened(session: Session, *, before: bool) -> Response:
    headers = {"location": f"/v1/sessions/{session.id}"}
    if before:
        headers["idempotent-replayed"] = "true"
    return answer(session_document(session), 201, headers)


def _asked(body: SessionBody, workspace_id: WorkspaceId, own: Session | None) -> sessions.AskedSession:
    """`own`: the session whose agent asks; its agent and pool are those of what it opens."""
    agent, pool = body.agent, body.pool
    if own is not None:
        agent, pool = agent or own.lane.profile, pool or own.lane.pool
    if agent is None:
        raise InvalidRequest("a session needs an agent")
    return sessions.AskedSession(
        agent=agent,
        pool=pool or sessions.DEFAULT_POOL,
        workspace_id=workspace_id,
        title=body.title,
        cwd=body.cwd,
        worktree=None if body.worktree is None else Worktree(repo=body.worktree.repo, ref=body.worktree.ref),
        env=_named(body.env),
        labels=body.labels,
        metadata=body.metadata,
        wake=body.wake,
    )


def _named(env: Mapping[str, str | SecretRef]) -> dict[str, EnvValue]:
    """Of secrets only what they are called."""
    return {name: {"secret": value.secret} if isinstance(value, SecretRef) else value for name, value in env.items()}


@router.get("", **needs(Scope.READ))
def listing(
    desk: Desk,
    caller: Caller,
    workspace: Filter = None,
    state: SessionState | None = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Sessions, newest first."""
    store = desk.context.store
    where = caller.workspace_id if workspace is None else workspaces.resolve(store, workspace, caller.workspace_id)
    found = store.sessions(where, state=state, cursor=cursor, limit=limit)
    return page(map(session_document, found.items), found.next_cursor)


@router.get("/{session_id}", **needs_family(Scope.READ))
def show(session_id: Named, desk: Desk, caller: Caller) -> Response:
    """One session."""
    return answer(session_document(seen_session(desk, caller, session_id)))


@router.patch("/{session_id}", **needs(Scope.RUN))
def change(session_id: Named, body: SessionChanges, desk: Desk, caller: Caller) -> Response:
    """Change title, labels, metadata."""
    changes = body.model_dump(exclude_unset=True)
    context = desk.context
    session = sessions.change(context.store, SessionId(session_id), caller.workspace_id, changes, rules=context.rules)
    return answer(session_document(session))


@router.delete("/{session_id}", **needs_family(Scope.RUN))
def close(session_id: Named, desk: Desk, caller: Caller, *, cancel: Annotated[bool, Query()] = False) -> Response:
    """Take no more runs; 409 while one is active, unless `?cancel=true`."""
    context = desk.context
    found = seen_session(desk, caller, session_id)
    session = sessions.close(
        context.store,
        context.broker,
        desk.epoch(),
        found.id,
        found.workspace_id,
        cancelling=cancel,
        by=caller.by,
        children_of=None if caller.fence is None else caller.fence.run_id,
    )
    return answer(session_document(session))


@router.get("/{session_id}/queue", **needs(Scope.READ))
def queue(session_id: Named, desk: Desk, caller: Caller, limit: Limit = 100) -> Response:
    """Queued and active runs in the order in which they will run, each with the reason why it waits."""
    context = desk.context
    session = context.store.session(SessionId(session_id), caller.workspace_id)
    runs = context.store.queue_of(session.id, limit=limit)
    reasons = explain.wait_reasons(context.store, desk.look, runs)
    return page(run_document(run, wait_reason=reasons.get(run.id), excerpt=True) for run in runs)


@router.post("/{session_id}/pause", **needs(Scope.RUN))
def pause(session_id: Named, desk: Desk, caller: Caller) -> Response:
    """Start no further run of this session."""
    context = desk.context
    session = sessions.pause(context.store, context.broker, desk.epoch(), SessionId(session_id), caller.workspace_id)
    return answer(session_document(session))


@router.post("/{session_id}/resume", **needs(Scope.RUN))
def resume(session_id: Named, desk: Desk, caller: Caller, *, unkillable: Annotated[bool, Query()] = False) -> Response:
    """Undo a pause; with `?unkillable=true` also the hold for a process that could not be killed: you have looked
    (scope `operate`)."""
    if unkillable:
        demand(caller, Scope.OPERATE)
    context = desk.context
    session = sessions.resume(
        context.store,
        context.broker,
        desk.epoch(),
        SessionId(session_id),
        caller.workspace_id,
        unkillable=unkillable,
    )
    return answer(session_document(session))
