"""Live terminals: as a WebSocket, and as one screen"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Annotated, cast

from fastapi import APIRouter, Query, WebSocket
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from oah.api import problems
from oah.api.auth import Caller, Principal, needs, own_origin
from oah.api.render import answer
from oah.api.schemas import Named
from oah.api.state import ApiState, Desk
from oah.api.viewing import View, Wish
from oah.core.dialogue.frames import SUBPROTOCOL
from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.run import Run
from oah.core.model.workspace import Scope
from oah.errors import Forbidden, OahError, Unavailable
from oah.ports.viewing import WorkerPlace
from oah.services.attach import no_terminal, place_of, viewable

router = APIRouter(prefix="/v1", tags=["terminals"])
log = logging.getLogger(__name__)

Flag = Annotated[bool, Query()]


@router.get("/runs/{run_id}/screen", **needs(Scope.READ))
async def run_screen(run_id: Named, desk: Desk, caller: Caller) -> Response:
    """What the terminal of a run shows now. 404 `no_terminal` while its agent has none, 409 once it has ended."""
    run = await run_in_threadpool(viewable, desk.context.store, RunId(run_id), caller.workspace_id)
    shown = await _screen(desk, run.session_id, f"run {run.id}")
    if shown["run_id"] != run.id or shown["attempt"] != run.attempt:
        raise no_terminal(f"run {run.id}")
    return answer(shown)


@router.get("/sessions/{session_id}/screen", **needs(Scope.READ))
async def session_screen(session_id: Named, desk: Desk, caller: Caller) -> Response:
    """What the terminal of a session's agent shows now, also between two runs. 404 `no_terminal` while it has none."""
    store = desk.context.store
    session = await run_in_threadpool(store.session, SessionId(session_id), caller.workspace_id)
    return answer(await _screen(desk, session.id, f"session {session.id}"))


async def _screen(desk: ApiState, session_id: SessionId, what: str) -> dict[str, object]:
    context = desk.context

    def find() -> WorkerPlace | None:
        return place_of(context.store, context.broker, session_id)

    place = await run_in_threadpool(find)
    if place is None:
        raise no_terminal(what)
    return {"session_id": session_id, "worker_id": place.worker_id, **await context.lines.screen(place)}


@router.websocket("/runs/{run_id}/terminal")
async def run_terminal(socket: WebSocket, run_id: str, *, write: Flag = False, takeover: Flag = False) -> None:
    """Ends with the run."""

    def find(desk: ApiState, caller: Principal) -> tuple[SessionId, Run | None]:
        run = viewable(desk.context.store, RunId(run_id), caller.workspace_id)
        return run.session_id, run

    await _talk(socket, find, write=write, takeover=takeover)


@router.websocket("/sessions/{session_id}/terminal")
async def session_terminal(socket: WebSocket, session_id: str, *, write: Flag = False, takeover: Flag = False) -> None:
    """Follows the session from run to run."""

    def find(desk: ApiState, caller: Principal) -> tuple[SessionId, Run | None]:
        return desk.context.store.session(SessionId(session_id), caller.workspace_id).id, None

    await _talk(socket, find, write=write, takeover=takeover)


Find = Callable[[ApiState, Principal], tuple[SessionId, Run | None]]


async def _talk(socket: WebSocket, find: Find, *, write: bool, takeover: bool) -> None:
    """What is refused, is refused as a problem, before the handshake."""
    desk = cast(ApiState, socket.app.state.oah)
    caller = cast(Principal, socket.state.principal)
    try:
        own_origin(socket, desk.context.auth)
        for scope in (Scope.READ, Scope.RUN) if write else (Scope.READ,):
            if not caller.may(scope):
                raise Forbidden(f"the key has no scope '{scope}'", hint="ask an admin for a key that has it")
        session_id, run = await run_in_threadpool(find, desk, caller)
        workspace_id: WorkspaceId = await run_in_threadpool(desk.workspace_of, session_id)
        room, woken = desk.rooms.enter(session_id)
    except OahError as error:
        await socket.send_denial_response(problems.of(error))
        return
    check = None if caller.key is None else partial(desk.keyring.check, caller.digest)
    wish = Wish(run=run, workspace_id=workspace_id, by=caller.by, write=write, takeover=takeover, check=check)
    try:
        offered = socket.scope.get("subprotocols", [])
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        await View(socket, desk.context, desk.rooms, room, woken, wish).run()
    except Unavailable as error:
        log.info("a viewer of %s is lost: %s", session_id, error)
    finally:
        desk.rooms.leave(room, woken)
