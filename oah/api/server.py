"""The HTTP server as a component: a thread of its own, in a main process as well as inside another program.

The port is bound before the thread starts, so that a port that is taken is an error of the caller and port 0 can be
read. Stopping ends event streams first, answers what is in flight within the grace, then closes.
"""

from __future__ import annotations

import logging
import socket
from datetime import timedelta

import uvicorn
from fastapi import FastAPI

from oah.api.auth import is_loopback
from oah.api.state import ApiState
from oah.core.dialogue.frames import LONGEST_INPUT
from oah.errors import InvalidRequest, Unavailable
from oah.runtime.component import ThreadComponent
from oah.settings import AuthMode

BACKLOG = 2048

_CHATTER = ("ASGI callable returned without completing handshake", "connection ", '%s - "WebSocket %s"')
"""What uvicorn says of WebSockets, one that was answered with a problem included."""


def _is_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_CHATTER)


logging.getLogger("uvicorn.error").addFilter(_is_news)


class Server(ThreadComponent):
    """Serves one app. `bind` (or `start`) takes the port; `port` and `url` are known from then on."""

    def __init__(self, app: FastAPI, *, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__("api-server")
        self._app = app
        self._state: ApiState = app.state.oah
        self._host = host
        self._asked_port = port
        self._socket: socket.socket | None = None
        self._server: _Uvicorn | None = None
        if self._state.context.auth is AuthMode.OFF and not is_loopback(host):
            raise InvalidRequest(
                f"OAH_AUTH=off serves this machine only, not {host}", code="invalid_settings", hint="OAH_AUTH=keys"
            )

    def bind(self) -> None:
        """Take the port. Repeatable. Raises Unavailable when it cannot be had."""
        if self._socket is not None:
            return
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        # The protocol is named because asyncio sets TCP_NODELAY only on sockets that name it: without it every answer
        # (head and body are two writes) waits 40 ms for the client's delayed acknowledgement.
        taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind((self._host, self._asked_port))
            taken.listen(BACKLOG)
        except (OSError, OverflowError) as error:
            taken.close()
            raise Unavailable(
                f"cannot listen on {self._host}:{self._asked_port}: {error}",
                code="port_unavailable",
                hint="is another oah-api running? --port chooses another one",
            ) from error
        taken.set_inheritable(False)
        self._socket = taken

    @property
    def port(self) -> int:
        """The port in use; binds it if need be."""
        self.bind()
        return int(self._socket.getsockname()[1]) if self._socket is not None else self._asked_port

    @property
    def url(self) -> str:
        """Where it is reached from this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def start(self) -> None:
        """Bind, then serve in a thread. Raises Unavailable."""
        self.bind()
        super().start()

    def run(self) -> None:
        """Serve until stopped."""
        if self._socket is None:
            return
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            lifespan="on",
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=5,
            ws="websockets-sansio",
            ws_max_size=LONGEST_INPUT * 2,
            ws_per_message_deflate=False,
        )
        self._server = _Uvicorn(config, self)
        if self.stopping.is_set():
            return
        self._server.run(sockets=[self._socket])
        if not self._server.started:
            raise Unavailable("the HTTP server did not start; its log says more", code="api_not_started")

    def interrupt(self) -> None:
        """End streams, refuse new requests, finish those in flight."""
        self._state.drain()
        server = self._server
        if server is not None:
            server.config.timeout_graceful_shutdown = max(1, round(self.grace / timedelta(seconds=1)))
            server.should_exit = True


class _Uvicorn(uvicorn.Server):
    """Says when it serves, and leaves signals to whoever owns the process."""

    def __init__(self, config: uvicorn.Config, component: Server) -> None:
        super().__init__(config)
        self._component = component

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does, then tell the component."""
        await super().startup(sockets)
        if self.started:
            self._component.serving()
