"""Connections of one call: to an address that was judged, within one deadline for everything.

The name is looked up here, every address is judged, and the very address that passed is connected to: a name that
leads elsewhere a moment later (DNS rebinding) gains nothing. Host header and TLS still speak of the name.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterable
from typing import Any

import httpcore

from oah.core.policy import addresses


class Refused(Exception):
    """The name leads to no address that is allowed."""


class Nowhere(Exception):
    """The name leads to no address."""


class Deadline:
    """Seconds that are left of a call."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self, kind: type[httpcore.TimeoutException]) -> float:
        """More than zero. Raises ``kind`` when it has passed."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise kind("the time of the call is up")
        return left


class JudgedNetwork(httpcore.NetworkBackend):
    """The network as one call sees it."""

    def __init__(self, rules: addresses.Rules, deadline: Deadline) -> None:
        self._rules = rules
        self._deadline = deadline
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to the first allowed address that answers: one at which nobody does leaves the next ones their share
        of the time. Raises Refused, Nowhere and httpcore's errors."""
        failure: Exception | None = None
        allowed = self._allowed(host, port)
        for shares, address in zip(range(len(allowed), 0, -1), allowed, strict=True):
            share = self._deadline.left(httpcore.ConnectTimeout) / shares
            try:
                stream = self._inner.connect_tcp(address, port, share, local_address, socket_options or ())
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
                continue
            return BoundedStream(stream, self._deadline)
        raise failure or Nowhere(f"{host} leads to no address")

    def _allowed(self, host: str, port: int) -> list[str]:
        found = look_up(host, port, self._deadline.left(httpcore.ConnectTimeout))
        refusals = [(address, addresses.refusal(address, self._rules)) for address in found]
        allowed = [address for address, why in refusals if why is None]
        if found and not allowed:
            raise Refused("; ".join(why for _, why in refusals if why is not None))
        return allowed

    def sleep(self, seconds: float) -> None:
        """Nothing is repeated here."""


class BoundedStream(httpcore.NetworkStream):
    """Every read and write within what is left of the call: a server that answers byte by byte does not hold us."""

    def __init__(self, inner: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._inner = inner
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """What comes next."""
        return self._inner.read(max_bytes, self._deadline.left(httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """All of it, in pieces."""
        for start in range(0, len(buffer), 65_536):
            self._inner.write(buffer[start : start + 65_536], self._deadline.left(httpcore.WriteTimeout))

    def close(self) -> None:
        """Close the connection."""
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        """TLS for the name that was asked for."""
        left = self._deadline.left(httpcore.ConnectTimeout)
        return BoundedStream(self._inner.start_tls(ssl_context, server_hostname, left), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        """As httpcore asks."""
        return self._inner.get_extra_info(info)


def look_up(host: str, port: int, seconds: float) -> list[str]:
    """Addresses of a name, each once, in the system's order. Raises Nowhere, ConnectTimeout.

    The system's look-up has no time-out; one that hangs is left behind.
    """
    found: list[str] = []
    failed: list[OSError | UnicodeError] = []

    def ask() -> None:
        try:
            for _, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                found.append(str(place[0]))
        except (OSError, UnicodeError) as error:
            failed.append(error)

    asking = threading.Thread(target=ask, name="look-up", daemon=True)
    asking.start()
    asking.join(seconds)
    if asking.is_alive():
        raise httpcore.ConnectTimeout(f"the look-up of {host} takes too long")
    if failed:
        raise Nowhere(f"{host}: {failed[0]}")
    return list(dict.fromkeys(found))
