"""One SUB of one connection: what it listens to, and how much it has had."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from oah.gateway.access import Identity


class Client(Protocol):
    """A connection, as those see it who have something for it. All of it is for the loop's thread."""

    name: str
    """Unique over all gateways and for ever."""
    identity: Identity | None
    verbose: bool
    echo: bool
    no_responders: bool
    ended: str | None
    """Why it was let go; None: it is here."""

    @property
    def full(self) -> bool:
        """Whether more would only wait here."""

    async def room(self) -> None:
        """Until there is room (or nobody to need it)."""

    def write(self, data: bytes) -> None:
        """Bytes to the client."""

    def ok(self) -> None:
        """A verbose client hears of each command that was taken."""

    def keep(self, subscription: Subscription) -> None:
        """It counts from now on."""

    def drop(self, subscription: Subscription) -> None:
        """It gets nothing any more."""

    def refuse(self, subscription: Subscription) -> None:
        """Say no in the form that lets the connection live."""

    def push(self, subscription: Subscription, subject: str, payload: bytes, reply: str | None, block: bytes) -> None:
        """One MSG or HMSG."""

    def beside(self, waiting: Awaitable[None]) -> bool:
        """Do it while further commands are handled. False: too much is done so already."""

    def sending(self, size: int) -> Awaitable[None] | None:
        """One more message of it, of so many bytes, is on its way into the store; something to wait for when they are
        too many."""

    def stored(self, size: int) -> None:
        """One less."""

    async def settled(self, most: int = 0) -> None:
        """Until at most so many are on their way."""


class Source(Protocol):
    """What pushes messages of a mailbox into a subscription."""

    def leave(self, subscription: Subscription) -> None:
        """It wants no more."""


class Subscription:
    """Its frames go out in the order of the calls; after the last one that it asked for it is gone."""

    __slots__ = ("connection", "delivered", "gone", "most", "queue", "sid", "source", "subject")

    def __init__(self, connection: Client, sid: str, subject: str, queue: str | None) -> None:
        self.connection = connection
        self.sid = sid
        self.subject = subject
        self.queue = queue
        self.most: int | None = None
        self.delivered = 0
        self.gone = False
        self.source: Source | None = None
        """None: an ordinary subject."""

    @property
    def holder(self) -> str:
        """How leases name it."""
        return f"{self.connection.name}.{self.sid}"

    @property
    def wants(self) -> int | None:
        """How many more it takes; None: no end."""
        return None if self.most is None else max(0, self.most - self.delivered)

    def deliver(self, subject: str, payload: bytes, *, reply: str | None = None, block: bytes = b"") -> bool:
        """Write one message. False: it takes no more."""
        if self.gone:
            return False
        self.delivered += 1
        self.connection.push(self, subject, payload, reply, block)
        if self.most is not None and self.delivered >= self.most:
            self.connection.drop(self)
        return True
