"""One deadline for everything that a request does: look-up, connecting, TLS, sending, and each piece of the answer.

The client's own time-outs are of each step: a server that sends a byte now and then would keep a leader waiting for as
long as it likes, and the lease would go meanwhile.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpcore2
import httpx2


class Deadline:
    """Seconds that are left of what this thread asks for now."""

    def __init__(self, seconds: float, monotonic: Callable[[], float]) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._of_thread = threading.local()

    @contextmanager
    def begun(self) -> Iterator[None]:
        """From now on."""
        self._of_thread.end = self._monotonic() + self._seconds
        try:
            yield
        finally:
            self._of_thread.end = None

    def left(self, kind: type[httpcore2.TimeoutException]) -> float:
        """More than zero; all of it outside of a request. Raises ``kind`` when it has passed."""
        end = getattr(self._of_thread, "end", None)
        left = self._seconds if end is None else min(end - self._monotonic(), self._seconds)
        if left <= 0:
            raise kind("the time of the request is up")
        return float(left)


def bound(client: httpx2.Client, deadline: Deadline) -> None:
    """Let all connections of a client keep to the deadline, by way of what its library keeps to itself: there is no
    other. It has not been used yet."""
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx2.HTTPTransport):
            pool: Any = transport._pool
            pool._network_backend = BoundedNetwork(deadline)


class BoundedNetwork(httpcore2.NetworkBackend):
    """The network of a client whose requests have a deadline."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._inner = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        """Connect to the first address that answers: one at which nobody does leaves the next ones their share of the
        time. Raises httpcore2's errors."""
        failure: Exception = httpcore2.ConnectError(f"{host} leads to no address")
        addresses = look_up(host, port, self._deadline.left(httpcore2.ConnectTimeout))
        for shares, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            share = self._deadline.left(httpcore2.ConnectTimeout) / shares
            try:
                stream = self._inner.connect_tcp(address, port, share, local_address, socket_options or ())
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
                continue
            return BoundedStream(stream, self._deadline)
        raise failure

    def sleep(self, seconds: float) -> None:
        """Nothing is repeated here."""


class BoundedStream(httpcore2.NetworkStream):
    """Every read and write within what is left."""

    def __init__(self, inner: httpcore2.NetworkStream, deadline: Deadline) -> None:
        self._inner = inner
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """What comes next."""
        return self._inner.read(max_bytes, self._deadline.left(httpcore2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """All of it, in pieces."""
        for start in range(0, len(buffer), 65_536):
            self._inner.write(buffer[start : start + 65_536], self._deadline.left(httpcore2.WriteTimeout))

    def close(self) -> None:
        """Close the connection."""
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        """TLS for the name that was asked for."""
        left = self._deadline.left(httpcore2.ConnectTimeout)
        return BoundedStream(self._inner.start_tls(ssl_context, server_hostname, left), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        """As httpcore asks."""
        return self._inner.get_extra_info(info)


def look_up(host: str, port: int, seconds: float) -> list[str]:
    """Addresses of a name, each once, in the system's order. Raises ConnectError, ConnectTimeout.

    The system's look-up has no time-out; one that hangs is left behind.
    """
    found: list[str] = []
    failed: list[OSError | UnicodeError] = []

    def ask() -> None:
        try:
            found.extend(str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            failed.append(error)

    asking = threading.Thread(target=ask, name="look-up", daemon=True)
    asking.start()
    asking.join(seconds)
    if asking.is_alive():
        raise httpcore2.ConnectTimeout(f"the look-up of {host} takes too long")
    if failed:
        raise httpcore2.ConnectError(f"{host}: {failed[0]}")
    return list(dict.fromkeys(found))
