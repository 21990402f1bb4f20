"""Readers of mailboxes: streams that get all of one, and receives that wait for the next message of a group.

A stream owns its watermarks: per priority the number up to which it has sent everything. It asks the store for what is
beyond them, sends that, and sleeps until its bell rings; so a message is never sent twice and none is left out, however
often the bell rings or does not. What it holds of a slow client's is one small batch, looked up anew when it has grown
old or when something happened meanwhile: what has expired or was deleted is not sent, what is more urgent comes first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from starlette.concurrency import run_in_threadpool

from oah.api.bells import Bell, Bells, Box, Share
from oah.api.mail_render import frame, message_frame
from oah.core.model.ids import MailboxId
from oah.core.model.mailbox import Mailbox
from oah.core.model.message import Message, Priority
from oah.errors import NotFound, RequestError, Unauthorized, Unavailable
from oah.ports.clock import Clock
from oah.ports.mailboxes import Leased, Watermarks
from oah.services.post import Post

BATCH = 32
BATCH_BYTES = 1_048_576
STALE = 1.0
"""Seconds after which what was read is asked for again instead of being sent."""
HASTE = 0.05
"""The same once something has happened meanwhile: not at once, or a busy mailbox would be read for each message."""
ALLOWED = 5.0
"""Seconds that a permission to read is believed: a key may be revoked, an agent's ends with its attempt."""
LOOK_ANYWAY = 60.0
"""Seconds after which a stream reads the store without having heard of anything."""
LOOK_AGAIN = 5.0
"""Seconds after which a receive looks without having heard of anything."""

Allowed = Callable[[], None]
"""Raises Unauthorized when the caller may not read any more."""
Key = tuple[MailboxId, int, tuple[tuple[Priority, int], ...], tuple[Priority, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Who reads what, and from where on."""

    mailbox: Mailbox
    by: str
    most: int
    """Readers that the caller may have at once."""
    had: Watermarks
    priorities: tuple[Priority, ...]
    keep_alive: timedelta
    allowed: Allowed


class Subscriptions:
    """All streams of the process. In the event loop only."""

    def __init__(self, post: Post, clock: Clock, bells: Bells) -> None:
        self._post = post
        self.clock = clock
        self.bells = bells
        self._reads: dict[Key, asyncio.Task[list[Message]]] = {}

    def open(self, reading: Reading) -> AsyncIterator[bytes]:
        """The bytes of one stream, which ends when its mailbox does."""
        return _Stream(self, reading).frames()

    async def read(
        self, mailbox_id: MailboxId, turn: int, had: Watermarks, priorities: tuple[Priority, ...]
    ) -> list[Message]:
        """What comes next; readers that stand at the same place and have heard the same share one look. Raises
        NotFound when the mailbox is gone, Unavailable."""
        key = (mailbox_id, turn, tuple(sorted(had.had.items())), priorities)
        task = self._reads.get(key)
        if task is None:
            task = asyncio.create_task(run_in_threadpool(self._look, mailbox_id, had, priorities))
            self._reads[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)

    def _forget(self, key: Key, done: asyncio.Task[list[Message]]) -> None:
        self._reads.pop(key, None)
        if not done.cancelled():
            done.exception()  # seen, also where every reader has left meanwhile

    def _look(self, mailbox_id: MailboxId, had: Watermarks, priorities: Sequence[Priority]) -> list[Message]:
        return self._post.ready(mailbox_id, had, limit=BATCH, priorities=priorities, most_bytes=BATCH_BYTES)


class _Stream:
    """One client's."""

    def __init__(self, all_: Subscriptions, reading: Reading) -> None:
        self._all = all_
        self._reading = reading
        self._id = reading.mailbox.id
        self._had = reading.had
        self._pause = reading.keep_alive.total_seconds()
        self._asked = self._breath = all_.clock.monotonic()

    async def frames(self) -> AsyncIterator[bytes]:
        """Everything until the mailbox's end, the client's or ours."""
        yield b"retry: 1000\n: connected\n\n"
        reading, bells = self._reading, self._all.bells
        try:
            with bells.reader(self._id, reading.by, most=reading.most) as (box, bell):
                while not bells.closing:
                    sent = False
                    async for part in self._ready(box, bell):
                        sent = True
                        yield part
                    if sent:
                        continue
                    async for comment in self._idle(bell):
                        yield comment
        except NotFound as error:
            yield frame("gone", {"address": reading.mailbox.address, "code": error.code, "message": error.message})
        except (Unavailable, RequestError):
            return  # the client comes back with its Last-Event-ID, and is then told why

    async def _idle(self, bell: Bell) -> AsyncIterator[bytes]:
        """Comments until the bell rings, or it is time to look without having heard anything."""
        now = self._all.clock.monotonic
        until = now() + LOOK_ANYWAY
        while not await bell.wait(max(0.0, min(self._breath + self._pause, until) - now())):
            if now() >= until:
                return
            await self._permitted()
            self._breath = now()
            yield b": keep-alive\n\n"

    async def _ready(self, box: Box, bell: Bell) -> AsyncIterator[bytes]:
        """One batch, as far as nothing happens meanwhile."""
        await self._permitted()
        bell.hush()
        messages = await self._all.read(self._id, box.turn, self._had, self._reading.priorities)
        read = self._all.clock.monotonic()
        for message in messages:
            if self._all.clock.monotonic() - read > (HASTE if bell.rung else STALE):
                return
            self._had = self._had.after(message)
            self._breath = self._all.clock.monotonic()
            yield message_frame(self._id, message, self._had)

    async def _permitted(self) -> None:
        """Whether the caller may still read. Raises Unauthorized."""
        now = self._all.clock.monotonic()
        if now - self._asked >= ALLOWED:
            await run_in_threadpool(self._reading.allowed)
            self._asked = now


class Receiving:
    """One receive that waits for a message of a group."""

    def __init__(self, bells: Bells, clock: Clock, reading: Reading, group: str) -> None:
        self._bells = bells
        self._clock = clock
        self._reading = reading
        self._group = group

    async def first(
        self, take: Callable[[], list[Leased]], *, wait: timedelta, hung_up: Callable[[], Awaitable[object]]
    ) -> list[Leased]:
        """What ``take`` gives as soon as it gives something, at the latest after ``wait``. ``hung_up`` returns when
        the caller has: nothing is taken for it then. Raises what ``take`` raises, Unauthorized."""
        reading, bells = self._reading, self._bells
        end = self._clock.monotonic() + wait.total_seconds()
        with bells.reader(reading.mailbox.id, reading.by, most=reading.most) as (box, bell):
            share = box.shares.setdefault((self._group, reading.priorities), Share())
            gone = asyncio.ensure_future(hung_up())
            gone.add_done_callback(lambda _: bell.ring())
            try:
                rung = False
                while True:
                    bell.hush()
                    taken = await self._look(take, box, share, gone, believe=rung)
                    remaining = end - self._clock.monotonic()
                    if taken or remaining <= 0 or bells.closing or gone.done():
                        return taken
                    rung = await bell.wait(min(remaining, LOOK_AGAIN))
            finally:
                gone.cancel()

    async def _look(
        self, take: Callable[[], list[Leased]], box: Box, share: Share, gone: asyncio.Future[object], *, believe: bool
    ) -> list[Leased]:
        """``believe``: what another one of the group has just found out need not be found out again."""
        async with share.one:
            turn = box.turn
            if gone.done() or (believe and share.empty_at == turn):
                return []
            if self._reading.allowed is not always:
                await run_in_threadpool(self._reading.allowed)
            taken = await run_in_threadpool(take)
            if not taken:
                share.empty_at = turn
            return taken


def always() -> None:
    """Where no keys are asked for, everybody may read until it hangs up."""


def until_over(still: Callable[[], bool]) -> Allowed:
    """An agent may read as long as its attempt lasts."""

    def allowed() -> None:
        if not still():
            raise Unauthorized("the key of the run is unknown, or its attempt is over")

    return allowed
