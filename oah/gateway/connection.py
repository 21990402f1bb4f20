"""One client: its bytes become commands, each is handled in its turn, what it gets is written in order.

Commands that ask nothing of a store are handled as they are read. One that has to wait stops the reading of further
ones, and with it in the end the client's writing: a client can have no more of this process than its buffers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import Any, cast

from oah.errors import OahError, RequestError
from oah.gateway import frames, subjects
from oah.gateway.access import Identity
from oah.gateway.commands import (
    UNAUTHORIZED,
    Command,
    Connect,
    Ping,
    Pong,
    Publish,
    Subscribe,
    Unsubscribe,
    Violation,
)
from oah.gateway.parser import Parser
from oah.gateway.shared import Shared
from oah.gateway.subscription import Subscription

log = logging.getLogger(__name__)

READ_AHEAD = 262_144
"""Bytes taken from a client while an earlier command of it waits."""
UNSENT = 65_536
"""Bytes on their way to one client above which mailboxes push no more: what is more urgent then overtakes the rest."""
UNSTORED = 512
UNSTORED_BYTES = 4_194_304
"""Messages of one client on their way into the store; then it is read no further."""
MOST_BESIDE = 32
"""Requests of one client that wait for messages while it goes on; then it is read no further."""
MOST_OF_RUN = 32
"""Connections with the key of one run."""


class Connection(asyncio.Protocol):
    """All methods are for the loop's thread."""

    def __init__(self, hub: Shared, number: int) -> None:
        self.hub = hub
        self.number = number
        self.name = f"{hub.name}.{number}"
        self.identity: Identity | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.headers = self.verbose = self.no_responders = False
        self.echo = True
        self.connected = self.asking = False
        self.opened_at = self.heard_at = hub.now()
        self.written = 0
        self.moved = (0, self.opened_at)
        """Bytes that had gone out, and when that number was last another one."""
        self.unstored = 0
        self._unstored_bytes = 0
        self.ended: str | None = None
        self._parser = Parser(max_payload=hub.rules.max_payload)
        self._transport: asyncio.Transport | None = None
        self._busy = False
        self._paused = False
        self._waiters: list[asyncio.Future[None]] = []
        self._stored: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    # Wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say who we are, at once."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT)
        self.identity = self.hub.access.stranger()
        self._parser.locked = self.identity is None
        self.hub.arrived(self)

    def securing(self) -> None:
        """TLS begins: nothing is handled, and so nothing answered in the clear, before it stands."""
        self._busy = True

    def secured(self, transport: asyncio.Transport) -> None:
        """The same client, now in TLS; it may have spoken already."""
        self._transport = transport
        transport.set_write_buffer_limits(high=UNSENT)
        self._busy = False
        self._go_on()

    def data_received(self, data: bytes) -> None:
        """Feed the parser and handle what is whole."""
        if self.ended is not None:
            return
        self.heard_at = self.hub.now()
        self._parser.feed(data)
        self._go_on()

    def eof_received(self) -> bool:
        """A client that writes no more is gone: the protocol knows no half."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Leave everything."""
        self.end("client")
        self._release()
        for task in self._tasks:
            task.cancel()

    def pause_writing(self) -> None:
        """The buffer is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """There is room again."""
        self._release()
        self._go_on()

    def _release(self) -> None:
        self._paused = False
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def full(self) -> bool:
        """Whether more would only wait here."""
        return self._paused

    @property
    def unsent(self) -> int:
        """Bytes that wait to go out."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    async def room(self) -> None:
        """Until there is room (or nobody to need it)."""
        while self._paused and self.ended is None:
            waiter = self.hub.loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def write(self, data: bytes) -> None:
        """Bytes to the client; one that does not take them is let go when they are too many."""
        if self._transport is None or self.ended is not None:
            return
        self._transport.write(data)
        self.written += len(data)
        if self.unsent and self not in self.hub.attention.unsent:
            self.moved = (self.written - self.unsent, self.hub.now())
            self.hub.attention.note(self.hub.attention.unsent, self)
        if self._paused and self.unsent > self.hub.rules.max_pending:
            self.end("slow", "Slow Consumer")

    def end(self, reason: str, text: str | None = None) -> None:
        """Let the client go: told why where it can be, at once where it does not listen."""
        if self.ended is not None:
            return
        if text is not None and self._transport is not None:
            self._transport.write(frames.error(text))
        self.ended = reason
        for subscription in list(self.subscriptions.values()):
            self.drop(subscription)
        self.hub.leave(self, reason)
        if self._transport is None:
            return
        if reason in ("slow", "stale") or self._paused:
            self._transport.abort()
        else:
            self._transport.close()
            if self.unsent:  # what it is still to be told keeps the socket open: not for ever
                patience = self.hub.rules.write_deadline.total_seconds()
                self.hub.loop.call_later(patience, self._transport.abort)

    # Commands

    def _go_on(self) -> None:
        """Handle what has come, until something has to be waited for."""
        try:
            while not self._busy and self.ended is None and not self._gorged:
                command = self._parser.take()
                if command is None:
                    break
                waiting = self._handle(command)
                if waiting is not None:
                    self._busy = True
                    self._start(waiting)
        except Violation as violation:
            self.end("refused" if violation.text == UNAUTHORIZED else "protocol", violation.text)
        self._regulate()

    def _regulate(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        waits = self._busy or self._gorged
        if waits and self._parser.kept > READ_AHEAD:
            transport.pause_reading()
        elif not waits:
            transport.resume_reading()

    @property
    def _gorged(self) -> bool:
        """Whether it asks and does not read the answers: then it is listened to no further."""
        return self._paused and self.unsent > READ_AHEAD

    def beside(self, waiting: Awaitable[None]) -> bool:
        """Do it while further commands are handled. False: too much is done so already."""
        if len(self._tasks) >= MOST_BESIDE:
            return False
        self._start(waiting, beside=True)
        return True

    def _start(self, waiting: Awaitable[None], *, beside: bool = False) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if asyncio.iscoroutine(waiting):
                waiting.close()  # it may have been cancelled before it began

        task = self.hub.loop.create_task(self._finish(waiting, beside=beside))
        self._tasks.add(task)
        task.add_done_callback(ended)

    async def _finish(self, waiting: Awaitable[None], *, beside: bool) -> None:
        try:
            await waiting
        except Violation as violation:
            self.end("refused" if violation.text == UNAUTHORIZED else "protocol", violation.text)
        except OahError as error:
            log.warning("a client is let go: %s", error, extra={"client": self.name, "code": error.code})
            self.end("unavailable")
        except Exception:  # of one client's command: nobody else shall suffer from it
            log.exception("a client is let go over a fault of ours", extra={"client": self.name})
            self.end("fault")
        if not beside:
            self._busy = False
            self._go_on()

    def _handle(self, command: Command) -> Awaitable[None] | None:
        match command:
            case Ping():
                if self.unstored:
                    return self._pong()
                self.write(frames.PONG)
            case Pong():
                pass
            case Connect(options):
                return self._connect(options)
            case Publish():
                return self._publish(command)
            case Subscribe():
                return self._subscribe(command)
            case Unsubscribe(sid, most):
                self._unsubscribe(sid, most)
        return None

    def ok(self) -> None:
        """A verbose client hears of each command that was taken."""
        if self.verbose:
            self.write(frames.OK)

    async def _pong(self) -> None:
        """All that was published before has been stored, or refused."""
        await self.settled()
        self.write(frames.PONG)

    def _connect(self, options: Mapping[str, Any]) -> Awaitable[None] | None:
        if self.connected:
            raise Violation("CONNECT came twice")
        found = self.hub.access.at_once(options)
        if found is not None:
            self._admit(options, found)
            return None
        return self._ask(options)

    async def _ask(self, options: Mapping[str, Any]) -> None:
        self.asking = True  # until it is admitted or let go
        try:
            found = await self.hub.mail.call(self.hub.access.of, options)
        except RequestError as error:
            raise Violation(UNAUTHORIZED) from error
        if self.ended is None:  # let go meanwhile, it is forgotten already
            self._admit(options, found)

    def _admit(self, options: Mapping[str, Any], identity: Identity) -> None:
        self.verbose = bool(options.get("verbose", False))
        self.headers = bool(options.get("headers", False))
        self.no_responders = bool(options.get("no_responders", False))
        self.echo = options.get("echo", True) is not False
        if self.no_responders and not self.headers:
            raise Violation("no responders requires headers support")
        if self.identity is not None and self.subscriptions and identity.workspace_id != self.identity.workspace_id:
            raise Violation("CONNECT comes first")
        if identity.run is not None and self.hub.agents(identity.run) >= MOST_OF_RUN:
            raise Violation("maximum connections exceeded")
        self.identity = identity
        self.hub.attention.nameless.discard(self)
        if identity.secret:
            self.hub.attention.note(self.hub.attention.keyed, self)
        self.connected = True
        self._parser.locked = False
        self.ok()

    # Publish and subscribe

    def _publish(self, command: Publish) -> Awaitable[None] | None:
        if subjects.is_ours(command.subject):
            return self.hub.desk.publish(self, command)
        if not subjects.is_literal(command.subject):
            self.write(frames.refused_publish(command.subject))
            return None
        self.hub.switch.route(self, command)
        self.ok()
        return None

    def _subscribe(self, command: Subscribe) -> Awaitable[None] | None:
        if command.sid in self.subscriptions:
            self.ok()
            return None
        if len(self.subscriptions) >= self.hub.rules.max_subscriptions:
            self.hub.telemetry.count("oah_gateway_refusals_total", what="subscribe")
            self.write(frames.error("maximum subscriptions exceeded"))
            return None
        subscription = Subscription(self, command.sid, command.subject, command.queue)
        if subjects.is_ours(command.subject):
            return self.hub.desk.subscribe(subscription)
        if not subjects.is_pattern(command.subject) or (self.identity and not self.identity.hears(command.subject)):
            self.refuse(subscription)
            return None
        self.keep(subscription)
        self.hub.switch.interest(self).add(subscription)
        self.ok()
        return None

    def refuse(self, subscription: Subscription) -> None:
        """Say no in the form that lets the connection live."""
        self.hub.telemetry.count("oah_gateway_refusals_total", what="subscribe")
        self.write(frames.refused_subscription(subscription.subject, subscription.queue))

    def keep(self, subscription: Subscription) -> None:
        """It counts from now on."""
        self.subscriptions[subscription.sid] = subscription
        self.hub.subscribed(1)

    def _unsubscribe(self, sid: str, most: int | None) -> None:
        subscription = self.subscriptions.get(sid)
        if subscription is not None:
            if not most or subscription.delivered >= most:
                self.drop(subscription)
            else:
                subscription.most = most
        self.ok()

    def drop(self, subscription: Subscription) -> None:
        """It gets nothing any more."""
        if self.subscriptions.get(subscription.sid) is not subscription:
            return
        del self.subscriptions[subscription.sid]
        subscription.gone = True
        self.hub.subscribed(-1)
        if subscription.source is not None:
            subscription.source.leave(subscription)
        else:
            self.hub.switch.interest(self).remove(subscription)

    def push(self, subscription: Subscription, subject: str, payload: bytes, reply: str | None, block: bytes) -> None:
        """One MSG or HMSG; whoever knows no headers gets the payload alone."""
        lines = block if self.headers else b""
        self.write(frames.message(subject, subscription.sid, payload, reply=reply, block=lines))

    # What this client has on its way into the store

    def sending(self, size: int) -> Awaitable[None] | None:
        """One more is on its way; something to wait for when they are too many."""
        self.unstored += 1
        self._unstored_bytes += size
        if self.unstored < UNSTORED and self._unstored_bytes < UNSTORED_BYTES:
            return None
        return self.settled(UNSTORED // 2)

    def stored(self, size: int) -> None:
        """One less."""
        self.unstored -= 1
        self._unstored_bytes -= size
        waiting, self._stored = self._stored, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def settled(self, most: int = 0) -> None:
        """Until at most so many are on their way."""
        while self.unstored > most or self._unstored_bytes >= UNSTORED_BYTES:
            waiter = self.hub.loop.create_future()
            self._stored.append(waiter)
            await waiter
