"""A receiver of webhooks on loopback: keeps what it is sent, answers as it is told."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from oah.client import verify_webhook

NAME = "receiver.test"
"""Whom the certificate is for. It and its key are made for these tests and guard nothing."""
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBojCCAUegAwIBAgIUDzQLFlrKLu4/csLMYgHuOWRoEBAwCgYIKoZIzj0EAwIw
GDEWMBQGA1UEAwwNcmVjZWl2ZXIudGVzdDAgFw0yMDAxMDEwMDAwMDBaGA8yMTE5
MTIwODAwMDAwMFowGDEWMBQGA1UEAwwNcmVjZWl2ZXIudGVzdDBZMBMGByqGSM49
AgEGCCqGSM49AwEHA0IABP32EQmYVXkO8vkFT7yWJrtL1am4XNT8dU6uMNrCXQWw
wtIRSrX0CvBxO+1rGULxjDicTwvjXtU9Mm8xtC5R8mKjbTBrMB0GA1UdDgQWBBSk
+cXr5WtK3KMSM7kZxnJ4pzvrHzAfBgNVHSMEGDAWgBSk+cXr5WtK3KMSM7kZxnJ4
pzvrHzAPBgNVHRMBAf8EBTADAQH/MBgGA1UdEQQRMA+CDXJlY2VpdmVyLnRlc3Qw
CgYIKoZIzj0EAwIDSQAwRgIhAPhNQ5yNzSIHn0P7iaxY2uOXjonfkGQf/GmHwi+m
W3MnAiEAyKEPGBhUGFgPx3sr1aOBhqKhaSSOoY4nJimEdNwRyWk=
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgJxJWJ3oSsj9ucQZ4
cU3gyJx7j3ElmvAqR+Fs9hIXRXKhRANCAAT99hEJmFV5DvL5BU+8lia7S9WpuFzU
/HVOrjDawl0FsMLSEUq19ArwcTvtaxlC8Yw4nE8L417VPTJvMbQuUfJi
-----END PRIVATE KEY-----
"""


@dataclass
class Got:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def verified(self, secret: str) -> dict[str, Any]:
        return verify_webhook(self.body, self.headers, secret)


Answer = Callable[[BaseHTTPRequestHandler], None]


def status(code: int, text: str = "", **headers: str) -> Answer:
    """Answer with a status."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("content-length", str(len(text.encode())))
        handler.end_headers()
        handler.wfile.write(text.encode())

    return answer


@dataclass
class Receiver:
    """``answers`` are given in turn, the last one for ever. ``released`` lets those go on that wait for it."""

    port: int = 0
    answers: list[Answer] = field(default_factory=lambda: [status(204)])
    got: list[Got] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    names: list[str | None] = field(default_factory=list)
    """What TLS clients asked for."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def take(self, handler: BaseHTTPRequestHandler) -> Answer:
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        with self._lock:
            self.got.append(Got(handler.path, {k.lower(): v for k, v in handler.headers.items()}, body))
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def silence(self, handler: BaseHTTPRequestHandler) -> None:
        """No answer until released."""
        self.released.wait(30)
        handler.close_connection = True

    def drip(self, handler: BaseHTTPRequestHandler) -> None:
        """A byte now and then, so that no single read times out."""
        for byte in b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx: " + b"y" * 10_000:
            handler.wfile.write(bytes([byte]))
            if self.released.wait(0.05):
                return

    def hang_up(self, handler: BaseHTTPRequestHandler) -> None:
        """Close without a word."""
        handler.close_connection = True


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """A receiver for as long as the block lasts."""
    made = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            made.take(self)(self)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: Any) -> None:
            """A client that has gone away is what many of these tests are about."""

    with Quiet(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        made.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.released.set()
            server.shutdown()
            thread.join(60)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver over plain HTTP."""
    with receiving() as made:
        yield made


@pytest.fixture
def tls_receiver(tmp_path: Path) -> Iterator[tuple[Receiver, ssl.SSLContext]]:
    """A receiver over TLS, named ``receiver.test``, and a context that trusts it."""
    (tmp_path / "key.pem").write_text(KEY)
    (tmp_path / "certificate.pem").write_text(CERTIFICATE)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    with receiving(served) as made:
        served.sni_callback = lambda _socket, name, _context: made.names.append(name)
        yield made, ssl.create_default_context(cadata=CERTIFICATE)
