"""Event streams (SSE): what is in SQL first, then what the tailer brings; no gap, no repeat.

A stream owns one number: the last event of its session that it has dealt with. A tailed event at or below it is old;
one that does not follow it directly, or a feed that ran over, sends the stream back to SQL. Everything but the reading
happens in the event loop, so nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from starlette.concurrency import run_in_threadpool

from oah.api.bells import MOST_OF_RUN
from oah.api.context import ApiContext
from oah.api.render import event_document, json_bytes
from oah.api.tail import Tailer
from oah.api.waiting import Waiters
from oah.core.model.event import Event, EventType
from oah.core.model.ids import SessionId
from oah.errors import LimitReached, NotFound, Unavailable
from oah.services import stream
from oah.services.stream import Subject

FEED = 1_000
"""Events a slow reader may be behind before it is sent back to SQL."""

ENDS = frozenset(kind.value for kind in EventType if kind.ends_run)
RESUMES = frozenset({EventType.RUN_QUEUED.value, EventType.RUN_STARTED.value})


class Feed:
    """What the tailer brought for one stream."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._changed = asyncio.Event()
        self.overrun = False

    def push(self, event: Event) -> None:
        """One more event; a full feed is emptied and marked."""
        if len(self._events) >= FEED:
            self._events.clear()
            self.overrun = True
        if not self.overrun:
            self._events.append(event)
        self._changed.set()

    def wake(self) -> None:
        """Make a waiting reader look."""
        self._changed.set()

    def restart(self) -> None:
        """The reader goes back to SQL and needs nothing of what is here."""
        self._events.clear()
        self.overrun = False

    async def take(self, timeout: float) -> list[Event]:
        """What there is; empty when `timeout` seconds passed without anything."""
        if not self._events and not self.overrun:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), timeout)
            except TimeoutError:
                return []
        events = list(self._events)
        self._events.clear()
        return events


class Streams:
    """All streams of the process. `open` and `close` end in the event loop given to `attach`."""

    def __init__(self, context: ApiContext, waiters: Waiters | None = None) -> None:
        self._context = context
        self._waiters = waiters or Waiters()
        self.tailer = Tailer(context.store, context.broker, context.clock, self._deliver)
        self._feeds: dict[SessionId, set[Feed]] = {}
        self._of_runs: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.closing = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop that streams live in. Before the tailer starts."""
        self._loop = loop

    def close(self) -> None:
        """End all streams; clients connect again elsewhere. From any thread, repeatable."""
        self.closing = True
        self._call(self._wake_all)

    def _call(self, function: Callable[..., None], *args: object) -> None:
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return  # the loop has ended, and its streams with it

    def _wake_all(self) -> None:
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.wake()

    def _deliver(self, events: Sequence[Event]) -> None:
        self._waiters.tell(events)
        self._call(self._spread, events)

    def _spread(self, events: Sequence[Event]) -> None:
        for event in events:
            for feed in self._feeds.get(event.session_id, ()):
                feed.push(event)

    def subscribe(self, session_id: SessionId, position: int) -> tuple[Feed, int]:
        """A feed, and the number after which it begins."""
        feed = Feed()
        self._feeds.setdefault(session_id, set()).add(feed)
        self._gauge()
        return feed, self.tailer.tail(session_id, position)

    def unsubscribe(self, session_id: SessionId, feed: Feed) -> None:
        """The stream has ended."""
        feeds = self._feeds.get(session_id, set())
        feeds.discard(feed)
        if not feeds:
            self._feeds.pop(session_id, None)
        self.tailer.leave(session_id)
        self._gauge()

    def _gauge(self) -> None:
        self._context.telemetry.gauge("oah_streams_open", sum(len(feeds) for feeds in self._feeds.values()))

    @contextmanager
    def counted(self, by: str | None) -> Iterator[None]:
        """A stream of the agent of a run for as long as the block lasts, from before it is looked for; None: of
        somebody else. Raises LimitReached ``too_many_readers``."""
        if by is None:
            yield
            return
        if self._of_runs[by] >= MOST_OF_RUN:
            raise LimitReached(
                f"{MOST_OF_RUN} streams of this run's key are open", code="too_many_readers", hint="end some of them"
            )
        self._of_runs[by] += 1
        try:
            yield
        finally:
            self._of_runs[by] -= 1
            if not self._of_runs[by]:
                del self._of_runs[by]

    def open(self, about: Subject, *, after: int | None, keep_alive: timedelta) -> AsyncGenerator[bytes, None]:
        """The bytes of one stream."""
        return _Stream(self, self._context, about, after, keep_alive).frames()


class _Stream:
    """One client's stream."""

    def __init__(
        self, streams: Streams, context: ApiContext, about: Subject, after: int | None, keep_alive: timedelta
    ) -> None:
        self._streams = streams
        self._store = context.store
        self._about = about
        self._after = after
        self._last = after or 0
        self._pause = keep_alive.total_seconds()
        self._feed: Feed | None = None
        self._over = False

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Everything until the run's end, the client's or ours."""
        yield b"retry: 1000\n: connected\n\n"
        try:
            async for frame in self._reset():
                yield frame
            while not self._finished:
                async for frame in self._catch_up():
                    yield frame
                async for frame in self._live():
                    yield frame
        except (Unavailable, NotFound):
            return  # the client comes back with its Last-Event-ID, and is then told why
        finally:
            if self._feed is not None:
                self._streams.unsubscribe(self._about.session_id, self._feed)

    async def _reset(self) -> AsyncIterator[bytes]:
        if self._after is None:
            return
        lost = await run_in_threadpool(stream.lost_before, self._store, self._about, after=self._after)
        if lost is not None:
            self._last = lost
            yield _frame("reset", lost, {"type": "reset", "number": lost})

    async def _catch_up(self) -> AsyncIterator[bytes]:
        """What SQL has beyond our number, then a place behind the tailer."""
        while not self._finished:
            about = self._about
            async for part in self._pages():
                yield part
            self._last = max(self._last, about.seen)
            if about.run is not None and about.run.status.terminal:
                self._over = True
            if self._feed is None and not self._over:
                self._feed, position = self._streams.subscribe(about.session_id, self._last)
            else:
                position = self._last
            if position <= self._last:
                return
            await self._look()

    async def _pages(self) -> AsyncIterator[bytes]:
        while True:
            events = await run_in_threadpool(stream.page, self._store, self._about, after=self._last)
            for event in events:
                self._last = event.number
                yield self._render(event)
            if len(events) < stream.PAGE:
                return

    async def _live(self) -> AsyncIterator[bytes]:
        """What the tailer brings, until there is a hole; comments while there is nothing."""
        feed = self._feed
        while feed is not None and not self._finished:
            events = await feed.take(self._pause)
            for frame in self._following(events, feed):
                yield frame
            if feed.overrun:
                feed.restart()
                await self._look()
                return
            if not events:
                yield b": keep-alive\n\n"

    def _following(self, events: Sequence[Event], feed: Feed) -> Iterator[bytes]:
        """Those that follow what was sent, one by one; a hole marks the feed."""
        for event in events:
            if self._over or event.number <= self._last:
                continue
            if event.number != self._last + 1:
                feed.overrun = True
                return
            self._last = event.number
            if self._about.run is None or event.run_id == self._about.run.id:
                yield self._render(event)

    async def _look(self) -> None:
        run = self._about.run
        self._about = await run_in_threadpool(
            stream.subject, self._store, self._about.session_id, run.id if run else None, None
        )

    @property
    def _finished(self) -> bool:
        if self._streams.closing:
            self._over = True
        return self._over

    def _render(self, event: Event) -> bytes:
        run = self._about.run
        if run is not None and event.run_id == run.id:
            if event.type in ENDS:
                self._over = True
            elif event.type in RESUMES:
                self._over = False  # read from SQL: the run had ended and was requeued since
        return _frame(event.type, event.number, event_document(event))


def _frame(name: str, number: int, document: object) -> bytes:
    return b"event: %s\nid: %d\ndata: %s\n\n" % (name.encode(), number, json_bytes(document))
