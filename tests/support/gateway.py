"""Gateways inside the test's process, and a client that speaks to them in bytes."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from oah.adapters.prometheus.telemetry import PrometheusTelemetry
from oah.adapters.sql.store import open_store
from oah.adapters.system.clock import SystemClock
from oah.adapters.system.ids import SystemIds
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.gateway.access import Access
from oah.gateway.hub import Hub
from oah.gateway.mail import Mail
from oah.gateway.rules import GatewayRules
from oah.gateway.server import GatewayServer, bind, tls_context
from oah.ports.store import Store
from oah.runtime.group import Group
from oah.runtime.loop import Loop
from oah.runtime.mail_watch import GONE, MailWatch
from oah.services.post import MailRules, Post
from tests.support.servers_redis import FakeServer, RealServer

RULES = GatewayRules(
    name="test",
    version="1.2.3",
    host="127.0.0.1",
    port=0,
    workspace=DEFAULT_WORKSPACE,
    strangers=True,
    max_payload=1_048_576,
    max_connections=200,
    max_subscriptions=200,
    max_pending=8_388_608,
    lease=timedelta(seconds=30),
    write_deadline=timedelta(seconds=10),
    ping_every=timedelta(seconds=120),
)
PATIENCE = 20.0


class Line:
    """A client in bytes. What it reads it must have asked for: a test says what comes next."""

    def __init__(self, address: tuple[str, int], *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(address)
        self._kept = b""

    def say(self, *pieces: bytes) -> None:
        """Each piece in a write of its own."""
        for piece in pieces:
            self.socket.sendall(piece)

    def line(self) -> bytes:
        """The next line without its CRLF; empty at the end."""
        while b"\r\n" not in self._kept:
            if not self._more():
                return b""
        found, _, self._kept = self._kept.partition(b"\r\n")
        return found

    def bytes(self, count: int) -> bytes:
        while len(self._kept) < count:
            assert self._more(), f"the end after {self._kept!r}"
        found, self._kept = self._kept[:count], self._kept[count:]
        return found

    def _more(self) -> bool:
        try:
            data = self.socket.recv(65_536)
        except ConnectionResetError:
            data = b""
        self._kept += data
        return bool(data)

    def at_end(self) -> bool:
        """Whether the other side has closed, with nothing more said."""
        return self.line() == b"" and not self._kept

    def info(self) -> dict[str, Any]:
        line = self.line()
        assert line.startswith(b"INFO "), line
        found: dict[str, Any] = json.loads(line[5:])
        return found

    def connect(self, **options: Any) -> Line:
        """INFO, CONNECT, PING, PONG."""
        self.info()
        self.say(b"CONNECT " + json.dumps({"verbose": False, **options}).encode() + b"\r\nPING\r\n")
        assert (answer := self.line()) == b"PONG", answer
        return self

    def settle(self) -> None:
        """All that was said has been heard, and nothing else has been answered."""
        self.say(b"PING\r\n")
        assert (answer := self.line()) == b"PONG", answer

    def message(self) -> Message:
        """The next MSG or HMSG; PINGs before it are answered."""
        words = self.line().split(b" ")
        while words == [b"PING"]:
            self.say(b"PONG\r\n")
            words = self.line().split(b" ")
        assert words[0] in (b"MSG", b"HMSG"), words
        sizes = [int(word) for word in words[(-2 if words[0] == b"HMSG" else -1) :]]
        body = self.bytes(sizes[-1])
        assert self.bytes(2) == b"\r\n"
        headers = body[: sizes[0]] if words[0] == b"HMSG" else b""
        reply = words[3] if len(words) == 4 + len(sizes) else None
        return Message(words[1].decode(), words[2].decode(), reply, headers, body[len(headers) :])

    def messages(self, count: int) -> list[Message]:
        return [self.message() for _ in range(count)]

    def ask(self, subject: str, payload: bytes | dict[str, Any] = b"") -> dict[str, Any]:
        """A request of our own, with a subscription for its answer."""
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        inbox = b"_INBOX.test.%d" % id(self)
        self.say(b"SUB %b 9999\r\nUNSUB 9999 1\r\n" % inbox)
        self.say(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox, len(body), body))
        found: dict[str, Any] = json.loads(self.message().payload)
        return found

    def publish(self, subject: str, payload: bytes, **headers: str) -> None:
        """PUB, or HPUB where there are headers (``_`` stands for ``-``)."""
        if not headers:
            self.say(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))
            return
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()).encode()
        block = b"NATS/1.0\r\n" + lines + b"\r\n"
        head = b"HPUB %b %d %d\r\n" % (subject.encode(), len(block), len(block) + len(payload))
        self.say(head + block + payload + b"\r\n")

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Gone without a word, as of a client that was killed."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.socket.close()


@dataclass(frozen=True)
class Message:
    subject: str
    sid: str
    reply: bytes | None
    block: bytes
    payload: bytes

    @property
    def headers(self) -> dict[str, str]:
        lines = self.block.decode().split("\r\n")[1:]
        return dict(line.split(": ", 1) for line in lines if line)

    @property
    def number(self) -> int:
        return int(self.headers["mq9-msg-id"])


class Gateway:
    """A running one with all that is behind it."""

    def __init__(self, store: Store, broker: Any, rules: GatewayRules, mail: MailRules) -> None:
        self.store, self.rules = store, rules
        self.clock, self.ids = SystemClock(), SystemIds()
        self.telemetry = PrometheusTelemetry(process="test", version="0")
        self.watch = MailWatch(store, broker, self.clock)
        self.post = Post(store, broker, self.ids, mail, self.telemetry, watch=self.watch)
        self.listener = bind(rules)
        self.hub: Hub | None = None
        self.server = GatewayServer(rules, self.listener, tls_context(rules), self._make)
        step = Loop("mail_watch", self._step, interval=timedelta(seconds=1), clock=self.clock, floor=timedelta(0))
        sweep = Loop("mail_sweep", self._sweep, interval=timedelta(milliseconds=100), clock=self.clock)
        self.group = Group([step, sweep, self.server], clock=self.clock)
        self._lines: list[Line] = []

    @property
    def address(self) -> tuple[str, int]:
        return self.server.address

    @property
    def url(self) -> str:
        return f"nats://{self.address[0]}:{self.address[1]}"

    def _make(self) -> Hub:
        mail = Mail(self.post, self.store, self.watch, self.clock, self.ids, self.telemetry)
        access = Access(self.store, self.clock, self.rules)
        self.hub = Hub(mail=mail, access=access, rules=self.rules, ids=self.ids)
        return self.hub

    def _step(self) -> timedelta:
        self.watch.step(timedelta(milliseconds=200))
        return timedelta(0)

    def _sweep(self) -> None:
        swept = self.store.sweep_mail()
        self.watch.told([*swept.changed, *((each, GONE) for each in swept.gone)])

    def dial(self, **options: Any) -> Line:
        """A socket to it; INFO is still to be read."""
        line = Line(self.address, **options)
        self._lines.append(line)
        return line

    def line(self, **options: Any) -> Line:
        """A client that is through with its CONNECT."""
        return self.dial().connect(**options)

    def box(self, **body: Any) -> str:
        """A new mailbox's address."""
        created = self.post.create(self.rules.workspace, **body)
        return created.mailbox.address

    def __enter__(self) -> Gateway:
        self.group.start()
        return self

    def __exit__(self, *error: object) -> None:
        for line in self._lines:
            line.close()
        assert self.group.stop(timedelta(seconds=2)) == []


def subject(address: str, suffix: str = "") -> str:
    return f"$mq9.AI.MAILBOX.MSG.{address}{suffix}"


class MakeGateway:
    """``make(**rules)``: a gateway of the test's own; ``mail=``: rules of the mailboxes. Several of one test share the
    store and the server of the broker."""

    def __init__(self, url: str, server: FakeServer | RealServer, stack: ExitStack) -> None:
        self._store = stack.enter_context(closing(open_store(url)))
        self._server = server
        self._stack = stack

    def __call__(self, *, mail: MailRules | None = None, **rules: Any) -> Gateway:
        chosen = replace(RULES, **rules)
        lease = MailRules(lease=chosen.lease) if mail is None else mail
        broker = self._stack.enter_context(closing(self._server.broker()))
        return self._stack.enter_context(Gateway(self._store, broker, chosen, lease))


def _sqlite(template: Path, directory: Path) -> str:
    path = directory / "oah.db"
    shutil.copy(template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def make_gateway(sqlite_template: Path, tmp_path: Path) -> Iterator[MakeGateway]:
    """Gateways on SQLite and the in-process broker, fresh."""
    with ExitStack() as stack:
        yield MakeGateway(_sqlite(sqlite_template, tmp_path), FakeServer(), stack)


@pytest.fixture(scope="module")
def shared_gateway(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One for all tests of a file that make their own mailboxes; nothing of it goes on while other files are tried."""
    with ExitStack() as stack:
        url = _sqlite(sqlite_template, tmp_path_factory.mktemp("gateway"))
        yield MakeGateway(url, FakeServer(), stack)(mail=MailRules())


@pytest.fixture
def gateway(shared_gateway: Gateway) -> Gateway:
    """The shared one."""
    return shared_gateway


@pytest.fixture(params=["sqlite+memory", "postgresql+valkey"])
def gateways(request: pytest.FixtureRequest) -> Iterator[MakeGateway]:
    """Gateways on the embedded default, and on real servers, fresh."""
    embedded = request.param == "sqlite+memory"
    server = FakeServer() if embedded else request.getfixturevalue("valkey_server")
    server.reset()
    with ExitStack() as stack:
        yield MakeGateway(request.getfixturevalue("sqlite_url" if embedded else "postgres_url"), server, stack)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and localhost, and its key."""
    directory = tmp_path_factory.mktemp("tls")
    found = directory / "certificate.pem", directory / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", str(found[0]), "-keyout", str(found[1])]
    subprocess.run(words, check=True, capture_output=True)
    return found
