"""Addresses, and what the client library raises in our words."""

from __future__ import annotations

import pytest
from redis import exceptions as foreign

from oah.adapters.redis import failures
from oah.adapters.redis.connect import masked, open_broker
from oah.adapters.redis.rim import as_ms, chunks, from_ms, maybe_from_ms
from oah.errors import Backpressure, Broken, InvalidRequest, Rebuilding, Unavailable
from tests.support.servers_redis import FakeServer


@pytest.mark.parametrize(
    "url",
    [
        "memory://",
        "embedded://",
        "redis+sentinel://a,b/main",
        "redis+cluster://a:1",
        "http://localhost",
        "",
        "redis://localhost:port/0",
        "redis://localhost/0?socket_timeout=abc",
    ],
)
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        open_broker(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost:6379/3",
        "rediss://user:secret@redis.example:6380/0",
        "unix:///tmp/some.sock",
        "redis://localhost/0?socket_timeout=9&max_connections=3",
    ],
)
def test_addresses_that_are_taken_connect_later(url: str) -> None:
    open_broker(url).close()


def test_secrets_are_masked() -> None:
    assert masked("rediss://user:secret@host:1/0") == "rediss://user:***@host:1/0"
    assert masked("redis://host") == "redis://host"
    broker = open_broker("redis://:secret@127.0.0.1:1/0")
    with pytest.raises(Unavailable) as caught:
        broker.now()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "expected", "kind"),
    [
        (foreign.TimeoutError("x"), Unavailable, "timeout"),
        (foreign.ConnectionError("x"), Unavailable, "connection"),
        (foreign.BusyLoadingError("x"), Unavailable, "loading"),
        (foreign.AuthenticationError("x"), Unavailable, "connection"),
        (foreign.ReadOnlyError("x"), Unavailable, "connection"),
        (foreign.OutOfMemoryError("x"), Backpressure, "backpressure"),
        (foreign.NoPermissionError("x"), Unavailable, "connection"),
        (foreign.ResponseError("BUSY Redis is busy"), Unavailable, "other"),
        (foreign.ResponseError("MISCONF Redis is configured"), Unavailable, "other"),
        (foreign.ResponseError("TRYAGAIN Multiple keys"), Unavailable, "moved"),
        (foreign.ResponseError("ERR user_script:7: bug"), Broken, "other"),
        (OSError("x"), Unavailable, "connection"),
    ],
)
def test_errors(error: Exception, expected: type[Exception], kind: str) -> None:
    assert type(failures.translate(error, address="redis://x")) is expected
    assert failures.kind(error) == kind


def test_our_own_errors_pass() -> None:
    ours = Rebuilding("x")
    assert failures.translate(ours, address="x") is ours


def test_ids_without_an_encoding_are_refused(fake_server: FakeServer) -> None:
    broker = fake_server.broker()
    with pytest.raises(InvalidRequest):
        broker.look(["\ud800"])  # type: ignore[list-item]


def test_durations() -> None:
    from datetime import timedelta

    assert as_ms(timedelta(seconds=1.2345)) == 1234
    assert from_ms("-7") == timedelta(milliseconds=-7)
    assert maybe_from_ms("-1") is None
    assert [len(chunk) for chunk in chunks(range(600))] == [256, 256, 88]
    assert list(chunks([])) == []
