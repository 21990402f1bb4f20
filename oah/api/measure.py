"""Counts requests by route template, and times those that are not streams."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oah.ports.clock import Clock
from oah.ports.telemetry import Telemetry

METHODS = frozenset({"GET", "POST", "PATCH", "PUT", "DELETE", "HEAD", "OPTIONS"})
STREAMED = ("/events", "/subscribe", "/receive")


class Measure:
    """ASGI: the outermost layer, so that refusals are counted too."""

    def __init__(self, app: ASGIApp, *, telemetry: Telemetry, clock: Clock) -> None:
        self._app = app
        self._telemetry = telemetry
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in METHODS:
            await self._app(scope, receive, send)
            return
        begun = self._clock.monotonic()
        status = 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._telemetry.count("oah_http_requests_total", route=route, method=scope["method"], status=str(status))
            if not route.endswith(STREAMED):
                self._telemetry.observe("oah_http_request_seconds", self._clock.monotonic() - begun, route=route)
