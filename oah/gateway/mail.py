"""The mailboxes as the loop uses them: every call goes to a thread and comes back, every hint comes into the loop.

Also who holds leases, because those of a member that answers are extended and those of one that has gone are given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from oah.core.model.ids import MailboxId, WorkspaceId
from oah.core.model.mailbox import Mailbox
from oah.core.model.message import Message, Priority
from oah.errors import OahError, RequestError
from oah.gateway.subscription import Client
from oah.ports.clock import Clock, Ids
from oah.ports.mailboxes import Head, Leased, MailboxStore, NewMailbox, Outgoing, Sent, Watermarks
from oah.ports.telemetry import Telemetry
from oah.runtime.mail_watch import MailWatch
from oah.services.post import Post

log = logging.getLogger(__name__)

THREADS = 8
"""Store calls at once."""
FETCHES = ".fetch"
"""Ends the name of a holder that asks instead of being pushed to."""

P = ParamSpec("P")
T = TypeVar("T")


class News:
    """Whether something has happened to a mailbox since the last look. For the loop's thread."""

    def __init__(self, mail: Mail, mailbox_id: MailboxId) -> None:
        self._event = asyncio.Event()
        self._unwatch = mail.watch(mailbox_id, lambda _head: self._event.set())

    def clear(self) -> None:
        """What comes now counts."""
        self._event.clear()

    async def wait(self, seconds: float) -> None:
        """At most so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)

    def close(self) -> None:
        """No more."""
        self._unwatch()


class Mail:
    """One of the process; made in the loop's thread and for it."""

    def __init__(
        self, post: Post, store: MailboxStore, watch: MailWatch, clock: Clock, ids: Ids, telemetry: Telemetry
    ) -> None:
        self.post = post
        self.telemetry = telemetry
        self.loop = asyncio.get_running_loop()
        self.holders: dict[str, Client] = {}
        """Who holds leases, by the name in them."""
        self._handed = 0
        """Times that somebody was handed something."""
        self._store = store
        self._watch = watch
        self._clock = clock
        self._ids = ids
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="gateway-store")
        self._tasks: set[asyncio.Task[Any]] = set()

    def now(self) -> float:
        """Seconds that never go back."""
        return self._clock.monotonic()

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Something that waits for a store, in a thread."""
        return await self.loop.run_in_executor(self._threads, partial(function, *args, **kwargs))

    def later(self, waiting: Coroutine[Any, Any, None]) -> None:
        """Do it besides."""
        task = self.loop.create_task(waiting)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Until what was begun besides is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # Messages

    async def send(self, batch: Sequence[Outgoing]) -> Sequence[Sent | RequestError]:
        """A batch, in one commit."""
        return await self.call(self.post.send, batch)

    async def read(
        self, mailbox_id: MailboxId, had: Watermarks, limit: int, priorities: Sequence[Priority], most_bytes: int
    ) -> list[Message]:
        """What a reader has not had. Raises NotFound."""
        return await self.call(
            self.post.ready, mailbox_id, had, limit=limit, priorities=priorities, most_bytes=most_bytes
        )

    def pushed(self) -> None:
        """A message of a mailbox was written to a client."""
        self.telemetry.count("oah_gateway_pushed_total")

    def watch(
        self, mailbox_id: MailboxId, call: Callable[[Head], None], *, seen: Mailbox | None = None
    ) -> Callable[[], None]:
        """Be told, in the loop, until what is returned is called. ``seen``: as it was read a moment ago, where all of
        it is read next."""

        def told(_mailbox_id: MailboxId, head: Head) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody wants to know
                self.loop.call_soon_threadsafe(call, head)

        head = None if seen is None else Head(seen.last_seq, gone=False, turn=seen.turn)
        return self._watch.watch(mailbox_id, told, seen=head)

    def news(self, mailbox_id: MailboxId) -> News:
        """To wait for."""
        return News(self, mailbox_id)

    def standing(self, workspace_id: WorkspaceId, address: str) -> None:
        """Make a mailbox that is always there. In a thread."""
        new = NewMailbox(
            id=MailboxId(self._ids.new("mbx")),
            workspace_id=workspace_id,
            address=address,
            public=True,
            ttl=None,
            max_messages=self.post.rules.max_messages,
        )
        self._store.create_mailbox(new, most=self.post.rules.max_mailboxes)

    # Leases

    async def lease(
        self,
        client: Client,
        holder: str,
        mailbox_id: MailboxId,
        group: str,
        *,
        limit: int,
        priorities: Sequence[Priority],
        most_bytes: int,
    ) -> list[Leased]:
        """For a member of a group. Raises NotFound, RequestError."""
        leased = await self.call(
            self.post.receive,
            mailbox_id,
            group,
            holder,
            limit=limit,
            priorities=priorities,
            most_bytes=most_bytes,
        )
        if leased and client.ended is None:
            self._handed += 1
            self.holders[holder] = client
        return leased

    async def give_back(self, mailbox_id: MailboxId, leased: Sequence[Leased]) -> None:
        """What a member was never shown: no attempt."""
        for each in leased:
            try:
                await self.call(self.post.settle, mailbox_id, each.lease_id, ack=False, untried=True)
            except OahError as error:
                log.warning("a message is given back late: %s", error, extra={"code": error.code})

    def left(self, client: Client) -> None:
        """A client has gone: what it was pushed is free for others. What it had asked for may still be acknowledged
        from another connection, until the lease ends."""
        for holder in [name for name, who in self.holders.items() if who is client]:
            del self.holders[holder]
            if not holder.endswith(FETCHES):
                self.later(self._give_up(holder))

    async def _give_up(self, holder: str) -> None:
        try:
            await self.call(self.post.leave, holder)
        except OahError as error:  # its leases end by themselves
            log.warning("a member's messages are given back late: %s", error, extra={"code": error.code})

    async def extend(self, holder: str) -> None:
        """Keep what it holds; one that holds nothing is asked for no more."""
        handed = self._handed
        if not await self.call(self.post.extend, holder) and handed == self._handed:
            self.holders.pop(holder, None)  # not where it may have been handed something meanwhile
