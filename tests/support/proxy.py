"""A man in the middle of a store's Unix socket: stalls, cuts, delays, and loses every n-th reply.

It runs in a thread of its own. What a reply is depends on the protocol: ``RedisReplies`` counts every answer,
``Commits`` the answers to COMMIT. A reply is never dropped out of the middle of a connection, which no network does:
the connection is cut in its place (the client learns at once that it will not come), or goes mute from there on (the
client waits for its own time-out).
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

PIECE = 1 << 16


class Replies(Protocol):
    """Cuts what one server connection says into pieces: (bytes, whether they end a reply that counts)."""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]: ...


class RedisReplies:
    """RESP2: every whole answer counts."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        self._rest += data
        while (end := _redis_end(self._rest, 0)) is not None:
            reply, self._rest = self._rest[:end], self._rest[end:]
            yield reply, True


def _redis_end(data: bytes, at: int) -> int | None:
    """Where the answer that begins at ``at`` ends; None when it is not all there."""
    line = data.find(b"\r\n", at)
    if line < 0:
        return None
    kind, end = data[at : at + 1], line + 2
    if kind == b"$":
        size = int(data[at + 1 : line])
        end += size + 2 if size >= 0 else 0
        return end if end <= len(data) else None
    if kind == b"*":
        for _ in range(int(data[at + 1 : line])):
            inner = _redis_end(data, end)
            if inner is None:
                return None
            end = inner
    return end


class Commits:
    """PostgreSQL: "command complete" of a COMMIT counts; everything else passes."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        self._rest += data
        while len(self._rest) >= 5 and len(self._rest) >= (end := 1 + int.from_bytes(self._rest[1:5])):
            message, self._rest = self._rest[:end], self._rest[end:]
            yield message, message[:1] == b"C" and message[5:] == b"COMMIT\0"


class Loss(StrEnum):
    """How a lost reply looks to the client."""

    CUT = "cut"
    MUTE = "mute"


class Proxy:
    """Listens on ``listen`` and speaks to ``target``: from ``heal`` on, before nothing is there to connect to. All
    methods are for the test's thread."""

    def __init__(self, listen: Path, target: Path, *, replies: Callable[[], Replies] = RedisReplies) -> None:
        self.listen = listen
        self.replies = 0
        """Replies that counted, lost ones included."""
        self.lost = 0
        self._target = target
        self._make = replies
        self._every = 0
        self._how: Iterator[Loss] = itertools.repeat(Loss.CUT)
        self._delay = 0.0
        self._open: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{listen.name}", daemon=True)
        self._thread.start()
        self._gate = asyncio.Event()
        self._gate.set()
        self._never = asyncio.Event()

    def start(self) -> Proxy:
        """Heal it, for one expression."""
        self.heal()
        return self

    @property
    def url(self) -> str:
        """Of a Redis behind it."""
        return f"unix://{self.listen}"

    def stall(self) -> None:
        """A black hole: connections stay and open, nothing passes. With ``heal`` what was sent arrives, late."""
        self._loop.call_soon_threadsafe(self._gate.clear)

    def cut(self) -> None:
        """End every connection and take no new ones, until ``heal``."""
        self._call(self._cut())

    def heal(self) -> None:
        """Listen, and undo ``stall``, ``cut``, ``lose`` and ``delay``."""
        self._every, self._delay = 0, 0.0
        self._call(self._start())
        self._loop.call_soon_threadsafe(self._gate.set)

    def lose(self, *, every: int, how: Sequence[Loss] = (Loss.CUT,)) -> None:
        """From now on every n-th reply is lost, in these ways in turn."""
        self._how = itertools.cycle(how)
        self._every = every

    def delay(self, seconds: float) -> None:
        """From now on everything arrives so much later."""
        self._delay = seconds

    def close(self) -> None:
        """End everything, for good."""
        self._call(self._cut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _start(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_unix_server(self._serve, self.listen)
            self.listen.chmod(0o777)

    async def _cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self.listen.unlink(missing_ok=True)
        serving = list(self._open)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        ends = self._open[task] = [to_client]
        try:
            await self._gate.wait()
            from_server, to_server = await asyncio.open_unix_connection(self._target)
            ends.append(to_server)
            asked = asyncio.create_task(self._pump(from_client, to_server))
            answered = asyncio.create_task(self._answer(from_server, to_client))
            try:
                await asyncio.wait({asked, answered}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                asked.cancel()
                answered.cancel()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            del self._open[task]
            for end in ends:
                end.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Client to server. When the client has gone, what it has sent still arrives."""
        with suppress(OSError):
            while data := await source.read(PIECE):
                await self._pass(data, target)
            await target.drain()
            target.write_eof()
            await target.drain()

    async def _answer(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        replies = self._make()
        mute = False
        with suppress(OSError):
            while data := await source.read(PIECE):
                for piece, counts in replies.feed(data):
                    how = self._count() if counts else None
                    if how is Loss.CUT:
                        return
                    mute = mute or how is Loss.MUTE
                    if not mute:
                        await self._pass(piece, target)

    async def _pass(self, data: bytes, target: asyncio.StreamWriter) -> None:
        if self._delay:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._never.wait(), self._delay)
        await self._gate.wait()
        target.write(data)
        await target.drain()

    def _count(self) -> Loss | None:
        self.replies += 1
        if not self._every or self.replies % self._every:
            return None
        self.lost += 1
        return next(self._how)
