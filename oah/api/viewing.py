"""One viewer of a terminal: what it is shown, what it types, and how it ends.

A viewer of a run sees the terminal while it is at that run's attempt, follows it to the next attempt wherever that is,
and ends with the run. A viewer of a session stays until it goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from oah.api.auth import KEY_CHECK
from oah.api.context import ApiContext
from oah.api.rooms import Room, Rooms
from oah.core.dialogue.frames import LONGEST_INPUT, PIECE, Frame, Note, Output, decoded, encoded
from oah.core.model.ids import RunId, WorkspaceId
from oah.core.model.run import Run
from oah.core.model.session import SessionState
from oah.errors import Conflict, NotFound, OahError, Unauthorized, Unavailable
from oah.ports.viewing import Line, WriterNote
from oah.services.attach import place_of

ENDED, AWAY, RESTARTS = 1000, 4503, 1012
REVOKED, NO_TERMINAL, WRITER_PRESENT = 4401, 4404, 4409
"""Close codes: those of HTTP with a 4 before them."""
PATIENCE_LEASES = 3
"""So many leases an active run may be without a terminal: its worker was lost and recovery takes its time."""
CHECK = 2.0
"""Seconds between looks into SQL while a run shows no terminal."""
SOON = 0.2
"""And at first: a run's end is recorded a moment after its terminal has gone."""
SNAPSHOT_PAUSE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Who wants to see what. ``run`` None: the session. ``write``: its keys are typed, ``takeover``: even if somebody
    else is typing. ``check``: raises Unauthorized once the caller's key is revoked or has expired; None: there is
    none."""

    run: Run | None
    workspace_id: WorkspaceId
    by: str
    write: bool = False
    takeover: bool = False
    check: Callable[[], None] | None = None


class _Over(Exception):  # an end is no error
    def __init__(self, code: int, reason: str, **data: Any) -> None:
        self.code, self.reason, self.data = code, reason, data


class View:
    """``run`` until it ends."""

    def __init__(
        self, socket: WebSocket, context: ApiContext, rooms: Rooms, room: Room, woken: asyncio.Event, wish: Wish
    ) -> None:
        self._socket = socket
        self._context = context
        self._rooms = rooms
        self._room = room
        self._woken = woken
        self._wish = wish
        self._sending = asyncio.Lock()
        self._at: int | None = None
        self._generation = -1
        self._told: dict[str, Note] = {}
        self._dark_since: float | None = None
        self._checked_at = float("-inf")
        self._painted_at = float("-inf")
        self._keyboard: Line | None = None

    async def run(self) -> None:
        """The whole conversation after the handshake."""
        tasks = [asyncio.create_task(self._show()), asyncio.create_task(self._hear())]
        if self._wish.write:
            tasks.append(asyncio.create_task(self._write()))
        if self._wish.check is not None:
            tasks.append(asyncio.create_task(self._stay(self._wish.check)))
        over = _Over(AWAY, "broken")
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                error = task.exception()
                if isinstance(error, _Over):
                    over = error
                elif error is not None and not self._has_left(error):
                    raise error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._end(over)

    def _has_left(self, error: BaseException) -> bool:
        gone = self._socket.client_state is WebSocketState.DISCONNECTED
        return isinstance(error, WebSocketDisconnect) or (gone and isinstance(error, (RuntimeError, OSError)))

    async def _end(self, over: _Over) -> None:
        if self._socket.application_state is not WebSocketState.CONNECTED:
            return
        with suppress(WebSocketDisconnect, RuntimeError, OSError):
            await asyncio.wait_for(self._send(Note("end", {"reason": over.reason, **over.data})), 2)
            await asyncio.wait_for(self._socket.close(over.code, over.reason[:100]), 2)

    async def _stay(self, check: Callable[[], None]) -> None:
        """As long as the key may: a store that is away ends nothing."""
        while True:
            await asyncio.sleep(KEY_CHECK)
            try:
                await run_in_threadpool(check)
            except Unauthorized as error:
                raise _Over(REVOKED, error.message) from error
            except Unavailable:
                continue

    # -- what it is shown -------------------------------------------------------------------------------------------

    async def _show(self) -> None:
        while True:
            self._woken.clear()
            if self._rooms.closing:
                raise _Over(RESTARTS, "the API restarts")
            if not self._lit:
                await self._dark()
                continue
            self._dark_since = None
            await self._tell()
            frame = self._next()
            if frame is None:
                await self._wait(CHECK)
            elif isinstance(frame, Output) and not frame.data:
                await self._wait(CHECK * 5)
            else:
                await self._send(frame)

    @property
    def _lit(self) -> bool:
        """Whether there is something to see for this one."""
        room, run = self._room, self._wish.run
        if not room.connected:
            return False
        return run is None or room.bound[0] == run.id or self._is_behind

    @property
    def _is_anothers(self) -> bool:
        """Whether the terminal is at another run by now, though not all of this one's output was sent."""
        return self._wish.run is not None and self._room.bound[0] != self._wish.run.id

    @property
    def _is_behind(self) -> bool:
        """The terminal has left the run, and not all of the run's output was sent."""
        room = self._room
        return self._generation == room.generation and self._at is not None and self._at < room.bound_since

    def _next(self) -> Frame | None:
        """The next frame to send, an empty Output when there is nothing new. None: a snapshot is on its way."""
        room = self._room
        if self._generation != room.generation:
            self._generation, self._at = room.generation, None
        limit = PIECE
        if self._wish.run is not None and room.bound[0] != self._wish.run.id and self._at is not None:
            limit = min(PIECE, room.bound_since - self._at)
        if self._at is not None and (data := room.tape.read(self._at, limit)) is not None:
            begin, self._at = self._at, self._at + len(data)
            return Output(begin, data)
        snapshot = room.snapshot
        if snapshot is None or room.tape.read(snapshot.offset, 0) is None:
            room.snapshot = None
            asyncio.get_running_loop().create_task(room.ask())
            return None
        missed = 0 if self._at is None else snapshot.offset - self._at
        if missed > 0:
            self._context.telemetry.count("oah_terminal_skipped_bytes_total", missed)
            self._at = None
            return Note("skipped", {"bytes": missed})
        self._at = snapshot.offset
        return snapshot

    async def _tell(self) -> None:
        for kind, note in list(self._room.notes.items()):
            if self._told.get(kind) != note:
                self._told[kind] = note
                await self._send(note)

    async def _dark(self) -> None:
        """Nothing to see: is it over, or will there be something again?"""
        now = asyncio.get_running_loop().time()
        if self._dark_since is None:
            self._dark_since, self._checked_at = now, float("-inf")
            self._generation = -1
        pause = SOON if now - self._dark_since < CHECK else CHECK
        if now - self._checked_at >= pause:
            self._checked_at = now
            if self._wish.run is not None:
                await self._look_after(self._wish.run.id, now - self._dark_since)
            else:
                await self._look_after_session()
        await self._wait(pause)

    async def _look_after_session(self) -> None:
        try:
            session = await run_in_threadpool(self._context.store.session, self._room.session_id, None)
        except NotFound:
            raise _Over(ENDED, "the session is gone") from None
        except Unavailable:
            return
        if session.state is SessionState.CLOSED:
            raise _Over(ENDED, "the session is closed")
        await self._tell_waiting(session.state.value, 0)

    async def _look_after(self, run_id: RunId, dark: float) -> None:
        try:
            run = await run_in_threadpool(self._context.store.run, run_id, None)
        except NotFound:
            raise _Over(ENDED, "the run is gone") from None
        except Unavailable:
            return
        if run.status.terminal:
            error = None if run.error is None else run.error.code
            raise _Over(ENDED, f"the run is {run.status}", status=run.status.value, error=error)
        if not run.status.active:
            self._dark_since = None  # it waits for its turn, however long
        elif dark > self._context.lease.total_seconds() * PATIENCE_LEASES:
            raise _Over(NO_TERMINAL, "the run shows no terminal: its worker is gone, or its agent has none")
        await self._tell_waiting(run.status.value, run.attempt)

    async def _tell_waiting(self, status: str, attempt: int) -> None:
        note = Note("waiting", {"status": status, "attempt": attempt})
        if self._told.get("waiting") != note:
            self._told = {"waiting": note}
            await self._send(note)

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)

    async def _send(self, frame: Frame) -> None:
        """Waits while the viewer does not read; nobody else does."""
        message = encoded(frame)
        async with self._sending:
            if isinstance(message, bytes):
                await self._socket.send_bytes(message)
            else:
                await self._socket.send_text(message)

    # -- what it says -----------------------------------------------------------------------------------------------

    async def _hear(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", 1005))
            keys, text = message.get("bytes"), message.get("text")
            if keys:
                await self._type(keys)
            elif text:
                await self._say(text)

    async def _type(self, keys: bytes) -> None:
        if len(keys) > LONGEST_INPUT:
            await self._refuse("too_much", f"at most {LONGEST_INPUT} bytes at a time")
        elif self._keyboard is None or not self._lit or self._is_anothers:
            await self._refuse("not_writing", "keys are not typed: this viewer does not write, or there is no terminal")
        else:
            with suppress(Unavailable):
                await self._keyboard.keys(keys)

    async def _say(self, text: str) -> None:
        note = decoded(text)
        if not isinstance(note, Note):
            await self._refuse("invalid_frame", "no frame of ours")
        elif note.type == "snapshot":
            now = asyncio.get_running_loop().time()
            if now - self._painted_at >= SNAPSHOT_PAUSE:
                self._painted_at, self._at, self._room.snapshot = now, None, None
                self._woken.set()
        elif note.type == "resize" and self._keyboard is not None and not self._is_anothers:
            with suppress(Unavailable):
                await self._keyboard.note("resize", note.data)
        elif note.type == "resize":
            await self._refuse("not_writing", "only who writes resizes")

    async def _refuse(self, code: str, message: str) -> None:
        await self._send(Note("refused", {"code": code, "message": message}))

    # -- the writer's lease -----------------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Keep the lease, on whichever worker the terminal is, until somebody takes over."""
        takeover = self._wish.takeover  # once: who comes back after its line broke takes nothing from anybody
        while True:
            while not self._lit:
                await asyncio.sleep(0.1)
            try:
                async with self._lease(takeover=takeover) as line:
                    takeover = False
                    if await self._held(line):
                        return
            except Conflict as error:
                await self._refuse("writer_present", error.message)
                raise _Over(WRITER_PRESENT, error.message) from error
            except (NotFound, Unavailable):
                pass
            await asyncio.sleep(0.5)

    @asynccontextmanager
    async def _lease(self, *, takeover: bool) -> AsyncIterator[Line]:
        context = self._context
        place = await run_in_threadpool(place_of, context.store, context.broker, self._room.session_id)
        if place is None:
            raise NotFound("no worker has the session")
        async with context.lines.keyboard(place, by=self._wish.by, takeover=takeover) as line:
            yield line

    async def _held(self, line: Line) -> bool:
        """Whether somebody has taken over; else the line broke."""
        first = await line.receive()
        if not isinstance(first, Note) or first.type != "granted":
            raise Conflict("somebody else is typing there", code="writer_present")
        self._rooms.count("write", 1)
        self._keyboard = line
        taken = False
        try:
            await self._note(first.data.get("before"))
            await self._send(first)
            while (frame := await line.receive()) is not None:
                if isinstance(frame, Note):
                    taken = frame.type == "taken_over"
                    await self._send(frame)
                if taken:
                    return True
            return False
        finally:
            self._keyboard = None
            self._rooms.count("write", -1)
            if not taken:
                await asyncio.shield(self._record(WriterNote.DETACHED, None))

    async def _note(self, before: str | None) -> None:
        await self._record(WriterNote.ATTACHED if before is None else WriterNote.TAKEN_OVER, before)

    async def _record(self, note: WriterNote, before: str | None) -> None:
        run_id, attempt = self._room.bound
        context, session_id = self._context, self._room.session_id

        def write() -> None:
            with suppress(OahError):
                number = context.store.note_writer(
                    session_id,
                    note,
                    by=self._wish.by,
                    workspace_id=self._wish.workspace_id,
                    run_id=None if run_id is None else RunId(run_id),
                    attempt=attempt,
                    before=before,
                )
                context.broker.publish([(session_id, number)])

        await run_in_threadpool(write)
