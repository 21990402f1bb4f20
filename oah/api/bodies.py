"""Request bodies are bounded while they are read: what is too large is refused without being kept."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oah.api import problems


class BodyLimit:
    """Reads a body up to `limit` bytes, then hands it on; more is answered with 413.

    The server discards what the client still sends after the answer, so that the client can read it.
    """

    def __init__(self, app: ASGIApp, *, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        body = None if self._declared(scope) > self._limit else await self._read(receive)
        if body is None:
            answer = problems.response(413, "payload_too_large", f"the body is larger than {self._limit} bytes")
            await answer(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)

    @staticmethod
    def _declared(scope: Scope) -> int:
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit():
                return int(value)
        return 0

    async def _read(self, receive: Receive) -> bytes | None:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return b"".join(parts)
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._limit:
                return None
            if not message.get("more_body", False):
                return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
