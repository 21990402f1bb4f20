"""A viewer that writes: whom it may take over from, and whose terminal its keys reach."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.websockets import WebSocketState

from oah.api import viewing
from oah.api.rooms import Room
from oah.core.dialogue.frames import Frame, Note, decoded
from oah.core.model.ids import SessionId, WorkspaceId
from oah.errors import Conflict
from tests.support import eventually

GRANTED = Note("granted", {"by": "ann", "before": "bob"})


class Socket:
    """A browser's end."""

    client_state = application_state = WebSocketState.CONNECTED

    def __init__(self) -> None:
        self.typed: asyncio.Queue[bytes] = asyncio.Queue()
        self.said: list[Note] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.pieces = 0
        self.code = 0

    async def receive(self) -> Mapping[str, Any]:
        return {"type": "websocket.receive", "bytes": await self.typed.get()}

    async def send_bytes(self, data: bytes) -> None:
        self.pieces += 1
        await self.reads.wait()

    async def send_text(self, text: str) -> None:
        note = decoded(text)
        assert isinstance(note, Note)
        self.said.append(note)

    async def close(self, code: int, reason: str) -> None:
        self.code = code

    def refused(self) -> list[str]:
        return [note.data["code"] for note in self.said if note.type == "refused"]


class Line:
    """To a worker: what it says, and the keys that it was given."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[Frame | None] = asyncio.Queue()
        self.frames.put_nowait(GRANTED)
        self.keyed: list[bytes] = []

    async def receive(self) -> Frame | None:
        return await self.frames.get()

    async def keys(self, data: bytes) -> None:
        self.keyed.append(data)


class Desk:
    """One view of run_1 and the worlds around it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, takeover: bool = False) -> None:
        self.socket, self.line = Socket(), Line()
        self.asked: list[bool] = []
        self.taken = False
        monkeypatch.setattr(viewing, "place_of", lambda *_: object())
        quiet: Callable[..., int] = lambda *_, **__: 1  # noqa: E731
        context = SimpleNamespace(
            lines=SimpleNamespace(keyboard=self._keyboard),
            store=SimpleNamespace(note_writer=quiet),
            broker=SimpleNamespace(publish=quiet),
            telemetry=SimpleNamespace(count=quiet),
        )
        self.room = Room(cast(Any, context), SessionId("s"))
        self.room.connected = True
        self.bind("run_1", 0)
        rooms = SimpleNamespace(closing=False, count=quiet)
        run = SimpleNamespace(id="run_1")
        wish = viewing.Wish(run=cast(Any, run), workspace_id=WorkspaceId("w"), by="ann", write=True, takeover=takeover)
        woken = asyncio.Event()
        self.room.viewers.add(woken)
        self.view = viewing.View(cast(Any, self.socket), cast(Any, context), cast(Any, rooms), self.room, woken, wish)

    def bind(self, run_id: str, offset: int) -> None:
        self.room.notes["bound"] = Note("bound", {"run_id": run_id, "attempt": 1, "offset": offset})

    @asynccontextmanager
    async def _keyboard(self, place: object, *, by: str, takeover: bool) -> AsyncIterator[Line]:
        self.asked.append(takeover)
        if self.taken and not takeover:
            raise Conflict("bob is typing", code="writer_present")
        yield self.line

    async def until(self, condition: Callable[[], object]) -> None:
        await asyncio.to_thread(eventually, condition, within=20)


def run(play: Coroutine[Any, Any, None]) -> None:
    asyncio.run(play)


def test_who_comes_back_after_its_line_broke_takes_over_from_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        desk = Desk(monkeypatch, takeover=True)
        task = asyncio.create_task(desk.view.run())
        await desk.until(lambda: any(note.type == "granted" for note in desk.socket.said))
        desk.taken = True
        desk.line.frames.put_nowait(None)  # it broke, and somebody else types by now
        async with asyncio.timeout(20):
            await task
        assert desk.asked == [True, False]
        assert desk.socket.refused() == ["writer_present"]
        assert desk.socket.code == viewing.WRITER_PRESENT

    run(play())


def test_keys_of_a_writer_that_lags_behind_reach_no_other_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        desk = Desk(monkeypatch)
        desk.view._generation, desk.view._at = desk.room.generation, 0
        desk.room.tape.append(b"x")
        task = asyncio.create_task(desk.view.run())
        await desk.until(lambda: desk.view._keyboard is not None and desk.view._at == 1)
        desk.socket.typed.put_nowait(b"for this run")
        await desk.until(lambda: desk.line.keyed)
        desk.socket.reads.clear()  # a slow reader: the terminal goes on to another run before it has seen all
        desk.room.tape.append(b"y" * 200_000)
        desk.bind("run_2", 200_001)
        before = desk.socket.pieces
        desk.room.wake()
        await desk.until(lambda: desk.socket.pieces > before)
        assert desk.view._lit, "there is more for it to see"
        desk.socket.typed.put_nowait(b"rm -r .")
        await desk.until(desk.socket.typed.empty)
        for _ in range(10):
            await asyncio.sleep(0)
        desk.socket.reads.set()
        await desk.until(desk.socket.refused)
        assert (desk.line.keyed, desk.socket.refused()) == ([b"for this run"], ["not_writing"])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(play())
