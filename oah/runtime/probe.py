"""A small HTTP endpoint for processes that have no API of their own: is it alive, is it ready, its figures.

Read only and without secrets; it answers JSON, except for the figures. What a page shows is a callable's business.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from oah.errors import OahError, Unavailable
from oah.runtime.component import ThreadComponent

log = logging.getLogger(__name__)

Exposition = Callable[[], tuple[bytes, str]]
"""Figures as bytes, and their content type."""

REQUEST_TIMEOUT = 5
"""Seconds that one client may take; a connection serves one request."""

LOOK = 0.25
"""Seconds between looks at whether to stop."""


class Pages:
    """``/healthz``, ``/readyz``, ``/metrics`` and further pages.

    ``reasons`` answers why the process is not ready (empty: it is), ``stuck`` why it is better started again. ``pages``
    maps a path to a callable whose answer is shown as JSON.
    """

    def __init__(
        self,
        *,
        reasons: Callable[[], Sequence[str]],
        metrics: Exposition,
        pages: Mapping[str, Callable[[], Any]] | None = None,
        stuck: Callable[[], Sequence[str]] = list,
    ) -> None:
        self._reasons = reasons
        self._stuck = stuck
        self._metrics = metrics
        self._pages = dict(pages or {})

    def answer(self, path: str) -> tuple[int, bytes, str]:
        """Status, body and content type for a path."""
        if path == "/metrics":
            body, content_type = self._metrics()
            return 200, body, content_type
        if path == "/healthz":
            reasons = list(self._stuck())
            return _json(503, {"status": "stuck", "reasons": reasons}) if reasons else _json(200, {"status": "alive"})
        if path == "/readyz":
            reasons = list(self._reasons())
            return _json(503, {"status": "unready", "reasons": reasons}) if reasons else _json(200, {"status": "ready"})
        if path in self._pages:
            return self._page(self._pages[path])
        return _json(404, {"code": "not_found", "title": f"no page {path}"})

    @staticmethod
    def _page(page: Callable[[], Any]) -> tuple[int, bytes, str]:
        try:
            return _json(200, page())
        except OahError as error:
            return _json(503 if error.retryable else 500, {"code": error.code, "title": error.message})


class Probe(ThreadComponent):
    """Serves ``Pages`` in a process that has no other endpoint."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        reasons: Callable[[], Sequence[str]],
        metrics: Exposition,
        pages: Mapping[str, Callable[[], Any]] | None = None,
    ) -> None:
        super().__init__("probe")
        self._host = host
        self._port = port
        self._pages = Pages(reasons=reasons, metrics=metrics, pages=pages)
        self._bound: tuple[str, int] | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port that it listens on, once started (port 0 takes a free one)."""
        return self._bound

    def run(self) -> None:
        """Answer until `stop`. Raises Unavailable when the address is taken."""
        try:
            server = ThreadingHTTPServer((self._host, self._port), self._handler())
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {self._host}:{self._port}: {error.strerror or error}",
                code="address_taken",
                hint="another process listens there; choose another port (0 takes a free one)",
            ) from error
        with server:
            server.daemon_threads = True
            server.timeout = LOOK
            self._bound = (self._host, server.server_address[1])
            self.serving()
            while not self.stopping.is_set():
                server.handle_request()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self._pages.answer

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_TIMEOUT

            def do_GET(self) -> None:
                status, body, content_type = answer(urlsplit(self.path).path)
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815 (names of the standard library)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (as above)
                log.debug("probe %s", format % args)

        return Handler


def _json(status: int, value: Any) -> tuple[int, bytes, str]:
    return status, json.dumps(value, default=str).encode() + b"\n", "application/json"
