"""Bodies are bounded while they are read."""

import asyncio
import json

from oah.api.bodies import BodyLimit


class Wire:
    """A client that sends pieces and keeps the answer."""

    def __init__(self, pieces, headers=()):
        self.pieces = list(pieces)
        self.read = 0
        self.sent = []
        self.scope = {"type": "http", "method": "POST", "path": "/v1/x", "headers": list(headers), "state": {}}

    async def receive(self):
        piece = self.pieces.pop(0)
        self.read += len(piece)
        return {"type": "http.request", "body": piece, "more_body": bool(self.pieces)}

    async def send(self, message):
        self.sent.append(message)

    @property
    def status(self):
        return self.sent[0]["status"]


async def echo(scope, receive, send):
    message = await receive()
    assert not message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"]})


def run(wire, limit=10):
    asyncio.run(BodyLimit(echo, limit=limit)(wire.scope, wire.receive, wire.send))
    return wire


def test_a_body_within_the_limit_arrives_whole():
    wire = run(Wire([b"01234", b"56789"]))
    assert wire.status == 200
    assert wire.sent[1]["body"] == b"0123456789"


def test_a_declared_size_is_refused_before_a_byte_is_read():
    wire = run(Wire([b"x" * 11], headers=[(b"content-length", b"11")]))
    assert wire.status == 413
    assert wire.read == 0
    assert json.loads(wire.sent[1]["body"])["code"] == "payload_too_large"


def test_an_undeclared_size_is_refused_as_soon_as_it_is_passed():
    wire = run(Wire([b"x" * 6] * 1000))
    assert wire.status == 413
    assert wire.read == 12


def test_a_wrong_declaration_does_not_help():
    wire = run(Wire([b"x" * 6] * 1000, headers=[(b"content-length", b"3")]))
    assert wire.status == 413
    assert wire.read == 12
