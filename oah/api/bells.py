"""Who is to look when something happens in a mailbox: every reader has a bell, and nobody waits in a thread.

The watch (``runtime/mail_watch.py``) calls from whatever thread it has; here it becomes the ringing of bells in the
event loop. A bell says that something may be new, never what: who hears it reads the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from oah.core.model.ids import MailboxId
from oah.errors import LimitReached, Unavailable
from oah.ports.mailboxes import Head
from oah.ports.telemetry import Telemetry
from oah.runtime.mail_watch import MailWatch

MOST_READERS = 5_000
"""Streams and waiting receives of one process."""
MOST_OF_ONE = 1_000
"""Of one key."""
MOST_OF_RUN = 32
"""Of the agent of one attempt."""


class Bell:
    """One reader's."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Something may be new."""
        self._rung.set()

    @property
    def rung(self) -> bool:
        """Whether it rang since ``hush``."""
        return self._rung.is_set()

    def hush(self) -> None:
        """Before the store is read: what happens from now on rings again."""
        self._rung.clear()

    async def wait(self, timeout: float) -> bool:
        """Whether it rings within ``timeout`` seconds."""
        try:
            await asyncio.wait_for(self._rung.wait(), timeout)
        except TimeoutError:
            return False
        return True


class Share:
    """The receives of one group that wait for one mailbox. They look one after the other, and when one has found
    nothing since it rang last, the others need not look."""

    def __init__(self) -> None:
        self.one = asyncio.Lock()
        self.empty_at = -1


class Box:
    """One mailbox that somebody reads. ``turn`` grows with every ringing: two readers that stand at the same place and
    have heard the same may share what one of them read."""

    def __init__(self) -> None:
        self.bells: set[Bell] = set()
        self.turn = 0
        self.shares: dict[object, Share] = {}
        self.unwatch: Callable[[], None] = lambda: None

    def ring(self) -> None:
        """All of its bells."""
        self.turn += 1
        for bell in self.bells:
            bell.ring()


class Bells:
    """All of the process. Everything but ``close`` happens in the event loop given to ``attach``."""

    def __init__(self, watch: MailWatch, telemetry: Telemetry) -> None:
        self._watch = watch
        self._telemetry = telemetry
        self._boxes: dict[MailboxId, Box] = {}
        self._readers: dict[str, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.closing = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop that readers live in."""
        self._loop = loop

    def close(self) -> None:
        """The process goes away: every reader looks, and ends. From any thread, repeatable."""
        self.closing = True
        self._call(self._ring_all)

    @contextmanager
    def reader(self, mailbox_id: MailboxId, by: str, *, most: int) -> Iterator[tuple[Box, Bell]]:
        """A bell for as long as the block lasts. Raises LimitReached ``too_many_readers``, Unavailable."""
        self.admits(by, most=most)
        self._readers[by] = self._readers.get(by, 0) + 1
        bell = Bell()
        box = self._boxes.get(mailbox_id)
        if box is None:
            box = self._boxes[mailbox_id] = Box()
            box.unwatch = self._watch.watch(mailbox_id, self._heard)
        box.bells.add(bell)
        self._gauge()
        try:
            yield box, bell
        finally:
            box.bells.discard(bell)
            if not box.bells and self._boxes.get(mailbox_id) is box:
                del self._boxes[mailbox_id]
                box.unwatch()
            self._readers[by] -= 1
            if not self._readers[by]:
                del self._readers[by]
            self._gauge()

    def admits(self, by: str, *, most: int) -> None:
        """Whether one more may read. Raises as ``reader``."""
        if self.closing:
            raise Unavailable("this process goes away", hint="connect again")
        if sum(self._readers.values()) >= MOST_READERS:
            raise Unavailable("too many readers wait at this process", code="too_many_readers")
        if self._readers.get(by, 0) >= most:
            raise LimitReached(
                f"{most} readers of this key wait already", code="too_many_readers", hint="end some of them first"
            )

    def _gauge(self) -> None:
        self._telemetry.gauge("oah_mail_readers", sum(self._readers.values()))

    def _heard(self, mailbox_id: MailboxId, _: Head) -> None:
        """From the watch, in any thread."""
        self._call(self._ring, mailbox_id)

    def _ring(self, mailbox_id: MailboxId) -> None:
        box = self._boxes.get(mailbox_id)
        if box is not None:
            box.ring()

    def _ring_all(self) -> None:
        for box in self._boxes.values():
            box.ring()

    def _call(self, function: Callable[..., None], *args: object) -> None:
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return  # the loop has ended, and its readers with it
