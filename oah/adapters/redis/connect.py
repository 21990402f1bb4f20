"""Where a broker comes from: an address, or a server that somebody else has started in or beside this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import redis
from redis import connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from oah.adapters.redis.broker import RedisBroker
from oah.adapters.redis.link import Dial, Link
from oah.errors import InvalidRequest
from oah.ports.broker import Broker, BrokerOptions
from oah.ports.telemetry import NullTelemetry, Telemetry

SCHEMES = ("redis", "rediss", "unix")
LOCAL = ("memory", "embedded")
LATER = ("redis+sentinel", "redis+cluster")


@dataclass(frozen=True, slots=True)
class AddressDial:
    """A server named by its address."""

    address: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    in_process: bool = False
    connection_class: type[Any] | None = None


def open_broker(
    url: str, *, options: BrokerOptions | None = None, telemetry: Telemetry | None = None, server: Dial | None = None
) -> Broker:
    """A broker for ``redis://``, ``rediss://`` or ``unix://``; for ``memory://`` and ``embedded://`` bootstrap starts
    the server (``oah.adapters.embedded``) and passes it as ``server``.

    Nothing is connected yet: the first call is, and raises Unavailable. Raises InvalidRequest for an address that is
    not supported.
    """
    dial = server if server is not None else _dial(url)
    return RedisBroker(Link(dial, options or BrokerOptions(), telemetry or NullTelemetry()))


def masked(url: str) -> str:
    """The address without its password."""
    parts = urlsplit(url)
    return url.replace(f":{parts.password}@", ":***@") if parts.password else url


def _dial(url: str) -> AddressDial:
    scheme = urlsplit(url).scheme
    if scheme in LOCAL:
        raise InvalidRequest(f"{scheme}:// needs a server that this process starts", hint="pass `server`")
    if scheme in LATER:
        raise InvalidRequest(f"{scheme}:// is not supported yet", hint="use redis://, rediss:// or unix://")
    if scheme not in SCHEMES:
        raise InvalidRequest(f"'{masked(url)}' is no address of a Redis server", hint="redis://host:6379/0")
    try:
        library: Any = connection
        settings = dict(library.parse_url(url))
    except ValueError as error:
        raise InvalidRequest(f"'{masked(url)}': {error}") from error
    connection_class = settings.pop("connection_class", None)
    return AddressDial(masked(url), settings, connection_class=connection_class)


def open_client(url: str, *, options: BrokerOptions, server: Dial | None = None) -> Any:
    """A plain client of the library for what speaks to Redis by itself (the queue of jobs). Connects when used."""
    dial = server if server is not None else _dial(url)
    settings = {
        "socket_connect_timeout": options.connect_timeout.total_seconds(),
        "socket_timeout": options.answer_timeout.total_seconds(),
        "retry": Retry(NoBackoff(), 0),
        **dial.settings,
    }
    class_ = dial.connection_class or connection.Connection
    return redis.Redis(connection_pool=redis.ConnectionPool(connection_class=class_, **settings))
