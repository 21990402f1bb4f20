"""How an API process reaches the private endpoints of workers: one connection a terminal, one a writer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from oah.core.dialogue.frames import LONGEST_FRAME, Frame, Note, decoded, encoded
from oah.errors import Conflict, NotFound, OahError, Unavailable
from oah.ports.viewing import Line, WorkerPlace

_OPEN_SECONDS = 5.0
_QUEUED = 64


class SocketLine:
    """ports.viewing.Line."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def receive(self) -> Frame | None:
        """See ports.viewing.Line."""
        while True:
            try:
                frame = decoded(await self._connection.recv())
            except (ConnectionClosed, OSError):
                return None
            if frame is not None:
                return frame

    async def note(self, kind: str, data: Mapping[str, Any]) -> None:
        """See ports.viewing.Line."""
        await self._send(encoded(Note(kind, data)))

    async def keys(self, data: bytes) -> None:
        """See ports.viewing.Line."""
        await self._send(data)

    async def _send(self, message: bytes | str) -> None:
        try:
            await self._connection.send(message)
        except (ConnectionClosed, OSError) as error:
            raise _gone() from error


class SocketLines:
    """ports.viewing.WorkerLines."""

    @asynccontextmanager
    async def terminal(self, place: WorkerPlace) -> AsyncIterator[Line]:
        """See ports.viewing.WorkerLines."""
        async with self._open(place, "terminal", {}) as line:
            yield line

    @asynccontextmanager
    async def keyboard(self, place: WorkerPlace, *, by: str, takeover: bool) -> AsyncIterator[Line]:
        """See ports.viewing.WorkerLines."""
        query = {"by": by, **({"takeover": "1"} if takeover else {})}
        async with self._open(place, "keyboard", query) as line:
            yield line

    async def screen(self, place: WorkerPlace) -> Mapping[str, Any]:
        """See ports.viewing.WorkerLines. The worker shows it as the first note of a conversation, so that one client
        library is enough."""
        async with self._open(place, "screen", {}) as line:
            frame = await line.receive()
        if not isinstance(frame, Note):
            raise _gone()
        return frame.data

    @asynccontextmanager
    async def _open(self, place: WorkerPlace, what: str, query: Mapping[str, str]) -> AsyncIterator[SocketLine]:
        path = f"/sessions/{quote(place.session_id, safe='')}/{what}"
        url = f"ws://{place.address}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            connection = await connect(
                url,
                additional_headers={"Authorization": f"Bearer {place.token}"},
                compression=None,
                proxy=None,
                open_timeout=_OPEN_SECONDS,
                close_timeout=1,
                max_size=LONGEST_FRAME,
                max_queue=_QUEUED,
            )
        except InvalidStatus as error:
            raise _refused(error) from error
        except (OSError, InvalidHandshake, TimeoutError) as error:
            raise _gone() from error
        try:
            yield SocketLine(connection)
        finally:
            await connection.close()


def _gone() -> Unavailable:
    return Unavailable("the worker does not answer", code="worker_unreachable")


def _refused(error: InvalidStatus) -> OahError:
    status = error.response.status_code
    try:
        said = json.loads(error.response.body or b"{}")
        code, message = str(said["code"]), str(said["title"])
    except (ValueError, KeyError, TypeError):
        return _gone()
    if status == 404:
        return NotFound(message, code=code)
    if status == 409:
        return Conflict(message, code=code)
    return _gone()
