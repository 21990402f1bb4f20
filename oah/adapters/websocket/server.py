"""HTTP pages and WebSockets on one port, a thread per connection: there are few, and none may hold the agents up.

A peer that does not read blocks its own thread alone, and is hung up on after half a minute.
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

from oah.core.dialogue.frames import LONGEST_FRAME
from oah.errors import Unavailable
from oah.ports.wire import Asked, Hangup, Page, Wire

_SEND_SECONDS = 30
_PING_SECONDS = 20.0
_SHUT_SECONDS = 2.0
_QUEUED = 16

_log = logging.getLogger(__name__)
_quiet = logging.getLogger(f"{__name__}.library")
_quiet.setLevel(logging.ERROR)


class SocketServer:
    """ports.wire.WireServer over a bound socket."""

    def __init__(
        self, bound: socket.socket, *, page: Callable[[Asked], Page | None], talk: Callable[[Wire], None]
    ) -> None:
        self._address: tuple[str, int] = bound.getsockname()[:2]
        self._page = page
        self._talk = talk
        self._server: Server = serve(
            self._handle,
            sock=bound,
            process_request=self._answer,
            compression=None,
            server_header=None,
            open_timeout=5,
            ping_interval=_PING_SECONDS,
            ping_timeout=_PING_SECONDS,
            close_timeout=1,
            max_size=LONGEST_FRAME,
            max_queue=_QUEUED,
            logger=_quiet,
        )

    @property
    def address(self) -> tuple[str, int]:
        """See ports.wire.WireServer."""
        return self._address

    def serve(self) -> None:
        """See ports.wire.WireServer. Called in a daemon thread, conversations are daemons too."""
        self._server.serve_forever()

    def shut(self) -> None:
        """See ports.wire.WireServer."""
        ending = threading.Thread(target=self._server.shutdown, name="endpoint-shut", daemon=True)
        ending.start()
        ending.join(_SHUT_SECONDS)

    def _answer(self, _: ServerConnection, request: Request) -> Response | None:
        asked = _asked(request)
        page = self._page(asked)
        if page is None:
            return None
        headers = Headers(
            {
                "Content-Type": page.content_type,
                "Content-Length": str(len(page.body)),
                "Cache-Control": "no-store",
                "Connection": "close",
            }
        )
        return Response(page.status, HTTPStatus(page.status).phrase, headers, page.body)

    def _handle(self, connection: ServerConnection) -> None:
        request = connection.request
        assert request is not None
        limit = struct.pack("ll", _SEND_SECONDS, 0)
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        wire = SocketWire(connection, _asked(request))
        try:
            self._talk(wire)
        except Hangup:
            pass
        except Exception:  # noqa: BLE001 - one broken conversation ends alone
            _log.exception("a conversation at %s failed", wire.asked.path)
            wire.close(1011, "broken")


class SocketWire:
    """ports.wire.Wire."""

    def __init__(self, connection: ServerConnection, asked: Asked) -> None:
        self._connection = connection
        self.asked = asked

    def send(self, message: bytes | str) -> None:
        """See ports.wire.Wire."""
        try:
            self._connection.send(message)
        except (ConnectionClosed, OSError) as error:
            raise Hangup(str(error)) from error

    def receive(self, timeout: timedelta) -> bytes | str | None:
        """See ports.wire.Wire."""
        try:
            return self._connection.recv(timeout=timeout.total_seconds())
        except TimeoutError:
            return None
        except (ConnectionClosed, OSError) as error:
            raise Hangup(str(error)) from error

    def close(self, code: int = 1000, reason: str = "") -> None:
        """See ports.wire.Wire."""
        self._connection.close(code, reason[:100])


def open_server(
    *, host: str, port: int, page: Callable[[Asked], Page | None], talk: Callable[[Wire], None]
) -> SocketServer:
    """See ports.wire.OpenServer."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise Unavailable(
            f"cannot listen on {host}:{port}: {error}",
            code="address_taken",
            hint="another process listens there; choose another port (0 takes a free one)",
        ) from error
    return SocketServer(bound, page=page, talk=talk)


def _asked(request: Request) -> Asked:
    parts = urlsplit(request.path)
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    return Asked(
        unquote(parts.path),
        dict(parse_qsl(parts.query)),
        token.strip() if kind.lower() == "bearer" else "",
        request.headers.get("Upgrade", "").lower() == "websocket",
    )
