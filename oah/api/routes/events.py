"""Event streams of sessions and runs (SSE)"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack, aclosing
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Send
from starlette.types import Scope as Circumstances

from oah.api.auth import KEY_CHECK, Caller, Principal, needs, needs_family
from oah.api.family import where_to_look
from oah.api.mail import permission
from oah.api.schemas import Named
from oah.api.state import ApiState, Desk
from oah.core.model.ids import RunId, SessionId
from oah.core.model.workspace import Scope
from oah.errors import InvalidRequest, Unauthorized, Unavailable
from oah.services import stream

router = APIRouter(prefix="/v1", tags=["events"])

LAST = 2**62

After = Annotated[int | None, Query(ge=0, le=LAST)]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID")]
KeepAlive = Annotated[int | None, Query(ge=1, le=60, description="seconds between comments on an idle stream")]

NOTHING_MORE = 204
"""What a browser's EventSource understands as "do not connect again"."""


@router.get("/sessions/{session_id}/events", **needs(Scope.READ))
async def of_session(
    session_id: Named,
    desk: Desk,
    caller: Caller,
    after: After = None,
    last_event_id: LastEventId = None,
    keep_alive: KeepAlive = None,
) -> Response:
    """Everything that happens in a session, without end."""
    return await _open(desk, caller, SessionId(session_id), None, _position(after, last_event_id), keep_alive)


@router.get("/runs/{run_id}/events", **needs_family(Scope.READ))
async def of_run(
    run_id: Named,
    desk: Desk,
    caller: Caller,
    after: After = None,
    last_event_id: LastEventId = None,
    keep_alive: KeepAlive = None,
) -> Response:
    """What happens to a run; ends after its terminal event. 204: that was sent before."""
    return await _open(desk, caller, None, RunId(run_id), _position(after, last_event_id), keep_alive)


def _position(after: int | None, last_event_id: str | None) -> int | None:
    """The header wins: a browser that reconnects repeats the query of its first connection."""
    if last_event_id is None or not last_event_id.strip():
        return after
    if not (last_event_id.isascii() and last_event_id.isdigit()) or int(last_event_id[:20]) > LAST:
        raise InvalidRequest("Last-Event-ID is no number of an event")
    return int(last_event_id)


async def _open(
    desk: ApiState,
    caller: Principal,
    session_id: SessionId | None,
    run_id: RunId | None,
    after: int | None,
    keep_alive: int | None,
) -> Response:
    if desk.streams.closing:
        raise Unavailable("this process goes away", hint="connect again")
    store = desk.context.store
    with ExitStack() as place:
        place.enter_context(desk.streams.counted(None if caller.fence is None else caller.by))
        about = await run_in_threadpool(_about, desk, caller, session_id, run_id)
        if after is not None and await run_in_threadpool(stream.exhausted, store, about, after=after):
            return Response(status_code=NOTHING_MORE)
        pause = desk.context.keep_alive if keep_alive is None else timedelta(seconds=keep_alive)
        frames = desk.streams.open(about, after=after, keep_alive=pause)
        unchecked = caller.key is None and caller.fence is None
        return _Placed(frames if unchecked else _while_it_may(frames, permission(desk, caller)), place.pop_all())


class _Placed(StreamingResponse):
    """A stream that has its place until it has been sent."""

    def __init__(self, frames: AsyncIterator[bytes], place: ExitStack) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(frames, media_type="text/event-stream", headers=headers)
        self._place = place

    async def __call__(self, scope: Circumstances, receive: Receive, send: Send) -> None:
        with self._place:
            await super().__call__(scope, receive, send)


def _about(desk: ApiState, caller: Principal, session_id: SessionId | None, run_id: RunId | None) -> stream.Subject:
    where = caller.workspace_id if run_id is None else where_to_look(desk, caller, run_id)
    return stream.subject(desk.context.store, session_id, run_id, where)


async def _while_it_may(frames: AsyncGenerator[bytes, None], check: Callable[[], None]) -> AsyncIterator[bytes]:
    """As long as the caller's key is good: what comes after that is not sent. A store that is away ends nothing."""
    clock = asyncio.get_running_loop().time
    checked_at = clock()
    async with aclosing(frames):
        async for frame in frames:
            if clock() - checked_at >= KEY_CHECK:
                checked_at = clock()
                try:
                    await run_in_threadpool(check)
                except Unauthorized:
                    return
                except Unavailable:
                    pass
            yield frame
