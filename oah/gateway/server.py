"""The gateway as a component: one thread with an event loop, a listening socket, and what the connections share."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import cast

from oah.errors import InvalidRequest, Unavailable
from oah.gateway import frames
from oah.gateway.connection import UNSENT, Connection
from oah.gateway.hub import Hub
from oah.gateway.keeper import Keeper
from oah.gateway.rules import GatewayRules
from oah.runtime.component import ThreadComponent

log = logging.getLogger(__name__)

BACKLOG = 1_024
HANDSHAKE = 5.0
"""Seconds for TLS."""


def bind(rules: GatewayRules) -> socket.socket:
    """The listening socket. Raises Unavailable ``address_taken``."""
    family = socket.AF_INET6 if ":" in rules.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((rules.host, rules.port))
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"cannot listen on {rules.host}:{rules.port}: {error.strerror or error}",
            code="address_taken",
            hint="a NATS server, or another gateway? choose another port with OAH_GATEWAY_PORT (0 takes a free one)",
        ) from error
    listener.settimeout(0)
    return listener


def tls_context(rules: GatewayRules) -> ssl.SSLContext | None:
    """None: no TLS. Raises InvalidRequest for files that are none."""
    if rules.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(rules.certificate, rules.key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(
            f"the gateway's certificate cannot be used: {error}",
            code="invalid_settings",
            hint="OAH_GATEWAY__TLS_CERTIFICATE and OAH_GATEWAY__TLS_KEY name PEM files",
        ) from error
    return context


class GatewayServer(ThreadComponent):
    """``make`` builds what the connections share, in the loop's thread."""

    def __init__(
        self, rules: GatewayRules, listener: socket.socket, tls: ssl.SSLContext | None, make: Callable[[], Hub]
    ) -> None:
        super().__init__("gateway")
        self._rules = rules
        self._listener = listener
        self._make = make
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._pending: set[asyncio.Task[None]] = set()
        self.address: tuple[str, int] = (rules.host, listener.getsockname()[1])

    def run(self) -> None:
        """Serve until `stop`."""
        asyncio.run(self._serve())

    def interrupt(self) -> None:
        """End the loop's wait."""
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(stop.set)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        hub = self._make()
        hub.info = self._info()
        keeper = self._loop.create_task(Keeper(hub).run())
        keeper.add_done_callback(lambda _task: self._stop.set() if self._stop is not None else None)
        server = await self._loop.create_server(lambda: self._accept(hub), sock=self._listener, backlog=BACKLOG)
        log.info("listening", extra={"url": f"nats://{self.address[0]}:{self.address[1]}"})
        try:
            if not self.stopping.is_set():
                self.serving()
                await self._stop.wait()
            if keeper.done():
                keeper.result()
        finally:
            server.close()
            keeper.cancel()
            await self._farewell(hub)
            hub.mail.close()

    async def _farewell(self, hub: Hub) -> None:
        """No new clients; those that are here hear of it, have what they sent stored, and go."""
        told = frames.info({**hub.info, "ldm": True})
        for connection in list(hub.connections):
            connection.write(told)
        grace = max(self.grace, timedelta(seconds=0.1)).total_seconds()
        with suppress(TimeoutError):
            await asyncio.wait_for(hub.finish(), grace)
        for connection in list(hub.connections):
            connection.end("stop")
        with suppress(TimeoutError):
            await asyncio.wait_for(hub.finish(), grace)
        await asyncio.sleep(0)

    def _accept(self, hub: Hub) -> asyncio.Protocol:
        connection = hub.accept()
        return Secured(connection, self._tls, self._pending) if self._tls is not None else Plain(connection)

    def _info(self) -> dict[str, object]:
        rules, (host, port) = self._rules, self.address
        return {
            "server_id": rules.name,
            "server_name": rules.name,
            "version": rules.version,
            "proto": 1,
            "go": "",
            "host": host,
            "port": port,
            "headers": True,
            "max_payload": rules.max_payload,
            "jetstream": False,
            "auth_required": True,  # so that clients show what they have; who has nothing may be let in all the same
            "tls_required": self._tls is not None,
        }


class Plain(asyncio.Protocol):
    """The socket of a client, tuned."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tune(transport)
        transport.set_protocol(self.connection)
        self.connection.connection_made(transport)


class Secured(asyncio.Protocol):
    """INFO goes out in the clear, as the protocol has it; then the client begins TLS."""

    def __init__(self, connection: Connection, context: ssl.SSLContext, pending: set[asyncio.Task[None]]) -> None:
        self._connection = connection
        self._context = context
        self._pending = pending

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tune(transport)
        raw = cast(asyncio.Transport, transport)
        raw.pause_reading()  # what comes next is TLS, for somebody else to read
        self._connection.connection_made(transport)
        self._connection.securing()
        task = asyncio.get_running_loop().create_task(self._upgrade(raw))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _upgrade(self, raw: asyncio.Transport) -> None:
        try:
            secured = await asyncio.get_running_loop().start_tls(
                raw, self._connection, self._context, server_side=True, ssl_handshake_timeout=HANDSHAKE
            )
        except (OSError, ssl.SSLError) as error:
            log.info("no TLS with a client: %s", error, extra={"client": self._connection.name})
            self._connection.end("refused")
            return
        if secured is not None:
            self._connection.secured(secured)

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.connection_lost(error)


def tune(transport: asyncio.BaseTransport) -> None:
    """Small frames leave at once, and the kernel keeps little that has not been sent: what is in its buffer cannot be
    overtaken by anything more urgent."""
    raw = transport.get_extra_info("socket")
    with suppress(OSError):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
