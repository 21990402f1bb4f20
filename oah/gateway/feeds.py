"""A subscriber of a mailbox: first all that is in it, then what comes, each once, the highest priority first.

There is one way for both: read what this subscriber has not had, a little at a time, write it, read again. A watch was
set before the first read, so nothing falls between. No more is read than the client takes: what is written waits in the
connection's small buffer, and a critical message that comes meanwhile is in the next read, before all the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from oah.core.model.mailbox import Mailbox
from oah.core.model.message import Message, Priority
from oah.errors import NotFound, OahError
from oah.gateway import letters
from oah.gateway.mail import Mail
from oah.gateway.subjects import message_subject
from oah.gateway.subscription import Subscription
from oah.ports.mailboxes import Head, Watermarks

log = logging.getLogger(__name__)

FEWEST, MOST = 4, 256
"""Messages read at once."""
BYTES = 65_536
"""Of payloads read at once; a message larger than that comes alone."""
STALE = 0.5
"""Seconds after which what was read is read again: it may have expired."""
PAUSE = 0.5
"""Seconds before a store that is away is asked again."""


class Pump:
    """Runs `work` while there may be something to do; many rings are one. For the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Awaitable[None]]) -> None:
        self._loop = loop
        self._work = work
        self._again = False
        self._task: asyncio.Task[None] | None = None
        self.closed = False

    def ring(self) -> None:
        """There may be something."""
        self._again = True
        if self._task is None and not self.closed:
            self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._again and not self.closed:
                self._again = False
                await self._once()
        finally:
            self._task = None

    async def _once(self) -> None:
        try:
            await self._work()
        except OahError as error:
            log.warning("a mailbox cannot be read, again soon: %s", error, extra={"code": error.code})
            self._again = True
            await asyncio.sleep(PAUSE)


class Feed:
    """Of one plain subscription."""

    def __init__(
        self, mail: Mail, subscription: Subscription, mailbox: Mailbox, priorities: Sequence[Priority]
    ) -> None:
        self._mail = mail
        self._subscription = subscription
        self._mailbox = mailbox
        self._priorities = priorities
        self._had = Watermarks()
        self._limit = FEWEST
        self._pump = Pump(mail.loop, self._work)
        self._unwatch = mail.watch(mailbox.id, self._told, seen=mailbox)
        self._pump.ring()

    def leave(self, subscription: Subscription) -> None:
        """It wants no more."""
        self._pump.closed = True
        self._unwatch()

    def _told(self, head: Head) -> None:
        if head.gone:
            self._gone()
        else:
            self._pump.ring()

    def _gone(self) -> None:
        """The mailbox has expired or was deleted: the subscriber is told in the form of a refusal."""
        subscription = self._subscription
        if not subscription.gone:
            subscription.connection.refuse(subscription)
            subscription.connection.drop(subscription)

    async def _work(self) -> None:
        while not self._subscription.gone:
            read_at = self._mail.now()
            try:
                found = await self._mail.read(self._mailbox.id, self._had, self._limit, self._priorities, BYTES)
            except NotFound:
                self._gone()
                return
            if not found:
                return
            self._write(found, read_at)
            self._limit = min(MOST, self._limit * 2) if len(found) == self._limit else max(FEWEST, len(found))
            await self._subscription.connection.room()

    def _write(self, found: Sequence[Message], read_at: float) -> None:
        connection = self._subscription.connection
        for message in found:
            if connection.full or self._mail.now() - read_at > STALE:
                return
            subject = message_subject(self._mailbox.address, message.priority)
            if not self._subscription.deliver(subject, message.payload, block=letters.block(message)):
                return
            self._had = self._had.after(message)
            self._mail.pushed()
