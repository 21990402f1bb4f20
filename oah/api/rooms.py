"""One connection to a worker for each terminal that somebody watches, whatever the number of viewers.

A room holds the terminal's last bytes and one snapshot; a viewer is a number, the offset up to which it was sent
everything. Nobody waits for anybody: the room reads on while a viewer is slow, and a viewer that has fallen too far
behind starts again from a snapshot. Everything happens in the event loop, so nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
import logging

from starlette.concurrency import run_in_threadpool

from oah.api.context import ApiContext
from oah.core.dialogue.frames import Frame, Note, Output, Snapshot
from oah.core.dialogue.tape import Tape
from oah.core.model.ids import SessionId
from oah.errors import NotFound, Unavailable
from oah.ports.viewing import Line
from oah.services.attach import place_of

log = logging.getLogger(__name__)

LOOK = 0.5
"""Seconds between looks for the terminal of a session that has none."""
MOST_VIEWERS = 1_000
KEPT_NOTES = ("size", "bound", "writer")


class Room:
    """The terminal of one session, as long as somebody watches."""

    def __init__(self, context: ApiContext, session_id: SessionId) -> None:
        self._context = context
        self.session_id = session_id
        self.viewers: set[asyncio.Event] = set()
        self.tape = Tape()
        self.snapshot: Snapshot | None = None
        self.notes: dict[str, Note] = {}
        """The latest of each kind that describes the terminal as it is."""
        self.generation = 0
        """Grows with every terminal that the session gets; offsets of one say nothing about another's."""
        self.connected = False
        self._line: Line | None = None
        self._asked = False
        self.task: asyncio.Task[None] | None = None

    @property
    def bound(self) -> tuple[str | None, int]:
        """Which run and attempt the terminal is at."""
        note = self.notes.get("bound")
        return (None, 0) if note is None else (note.data.get("run_id"), int(note.data.get("attempt") or 0))

    @property
    def bound_since(self) -> int:
        """The offset from which on it is."""
        note = self.notes.get("bound")
        return 0 if note is None else int(note.data.get("offset") or 0)

    def wake(self) -> None:
        """Make every viewer look."""
        for viewer in self.viewers:
            viewer.set()

    async def ask(self) -> None:
        """A fresh snapshot, once for all who need one."""
        line = self._line
        if line is None or self._asked:
            return
        self._asked = True
        try:
            await line.note("snapshot", {})
        except Unavailable:
            return  # the line has ended, and everything begins anew

    async def run(self) -> None:
        """Until it is cancelled: nobody watches any more."""
        while True:
            try:
                place = await run_in_threadpool(place_of, self._context.store, self._context.broker, self.session_id)
                if place is not None:
                    async with self._context.lines.terminal(place) as line:
                        await self._follow(line)
            except (NotFound, Unavailable) as error:
                log.debug("no terminal of %s: %s", self.session_id, error)
            await asyncio.sleep(LOOK)

    async def _follow(self, line: Line) -> None:
        self.generation += 1
        self._line, self._asked = line, False
        self.tape, self.snapshot = Tape(), None
        try:
            while (frame := await line.receive()) is not None:
                if isinstance(frame, Note) and frame.type == "end":
                    return
                self._take(frame)
        finally:
            self._line, self.connected, self.snapshot = None, False, None
            self.notes.clear()
            self.wake()

    def _take(self, frame: Frame) -> None:
        match frame:
            case Snapshot():
                self.snapshot, self.connected, self._asked = frame, True, False
                if self.tape.read(frame.offset, 0) is None:
                    self.tape.restart(frame.offset)
            case Output():
                self.tape.put(frame.offset, frame.data)
            case Note():
                if frame.type in KEPT_NOTES:
                    self.notes[frame.type] = frame
        self.wake()


class Rooms:
    """All rooms of the process. ``close`` may be called from any thread."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._rooms: dict[SessionId, Room] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._viewers = {"read": 0, "write": 0}
        self.closing = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop that rooms live in."""
        self._loop = loop

    def close(self) -> None:
        """End all of them; viewers come back elsewhere. Repeatable."""
        self.closing = True
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._wake_all)
        except RuntimeError:
            return  # the loop has ended, and its rooms with it

    def _wake_all(self) -> None:
        for room in self._rooms.values():
            room.wake()

    def enter(self, session_id: SessionId) -> tuple[Room, asyncio.Event]:
        """A place in the session's room, and what is set when something happens there. Raises Unavailable."""
        if self.closing:
            raise Unavailable("this process goes away", hint="connect again")
        if self._viewers["read"] >= MOST_VIEWERS:
            raise Unavailable("too many viewers at this process", code="too_many_viewers")
        room = self._rooms.get(session_id)
        if room is None:
            room = self._rooms[session_id] = Room(self._context, session_id)
            room.task = asyncio.create_task(room.run(), name=f"room {session_id}")
        viewer = asyncio.Event()
        room.viewers.add(viewer)
        self.count("read", 1)
        return room, viewer

    def leave(self, room: Room, viewer: asyncio.Event) -> None:
        """The last one turns the light off."""
        room.viewers.discard(viewer)
        self.count("read", -1)
        if not room.viewers and self._rooms.get(room.session_id) is room:
            del self._rooms[room.session_id]
            if room.task is not None:
                room.task.cancel()

    def count(self, kind: str, change: int) -> None:
        """Viewers and writers, for the gauge."""
        self._viewers[kind] += change
        self._context.telemetry.gauge("oah_viewers", self._viewers[kind], kind=kind)
