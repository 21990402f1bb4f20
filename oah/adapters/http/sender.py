"""Calls over httpcore: a connection a call, no redirects, no proxies of the environment, a bounded answer."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import httpcore

from oah.adapters.http.network import Deadline, JudgedNetwork, Nowhere, Refused
from oah.core.policy import addresses
from oah.errors import InvalidRequest
from oah.ports.http import HttpAnswer, HttpCall, HttpFailed, HttpFault

LONGEST_RETRY_AFTER = 86_400
MESSAGE = 500
"""The longest message about a failure."""

_FAULTS: tuple[tuple[type[Exception], HttpFault], ...] = (
    (Refused, HttpFault.REFUSED),
    (Nowhere, HttpFault.NAME),
    (httpcore.TimeoutException, HttpFault.TIMEOUT),
    (httpcore.ConnectError, HttpFault.CONNECT),
    (httpcore.NetworkError, HttpFault.PROTOCOL),
    (httpcore.ProtocolError, HttpFault.PROTOCOL),
    (httpcore.UnsupportedProtocol, HttpFault.INVALID),
    (InvalidRequest, HttpFault.INVALID),
    (OSError, HttpFault.CONNECT),
    (ValueError, HttpFault.INVALID),
)


class HttpCoreSender:
    """An HttpSender (see ``ports/http.py``). ``tls``: whom to trust; default: the usual authorities."""

    def __init__(self, rules: addresses.Rules, *, tls: ssl.SSLContext | None = None) -> None:
        self._rules = rules
        self._tls = tls
        self._lock = threading.Lock()

    def send(self, call: HttpCall) -> HttpAnswer | HttpFailed:
        """One call. Connections are not kept: each is to an address that was judged for this call."""
        begun = time.monotonic()
        try:
            status, text, retry_after = self._sent(call)
        except tuple(kind for kind, _ in _FAULTS) as error:
            fault = next(fault for kind, fault in _FAULTS if isinstance(error, kind))
            words = str(error) or type(error).__name__
            return HttpFailed(fault, words[:MESSAGE], timedelta(seconds=time.monotonic() - begun))
        return HttpAnswer(status, text, timedelta(seconds=time.monotonic() - begun), retry_after)

    def send_all(self, calls: Sequence[HttpCall]) -> list[HttpAnswer | HttpFailed]:
        """A thread each: callers say how many at once."""
        if len(calls) < 2:
            return [self.send(call) for call in calls]
        with ThreadPoolExecutor(len(calls), thread_name_prefix="send") as threads:
            return list(threads.map(self.send, calls))

    def _sent(self, call: HttpCall) -> tuple[int, str, timedelta | None]:
        where = addresses.target(call.url)
        deadline = Deadline(call.timeout.total_seconds())
        ours = {"host": where.authority, "connection": "close", "accept-encoding": "identity"}
        headers = [(name.encode(), value.encode()) for name, value in (ours | dict(call.headers)).items()]
        tls = self._trusted() if where.scheme == "https" else None
        with httpcore.ConnectionPool(ssl_context=tls, network_backend=JudgedNetwork(self._rules, deadline)) as pool:
            url = httpcore.URL(scheme=where.scheme, host=where.host, port=where.port, target=where.path)
            with pool.stream(call.method, url, headers=headers, content=call.body) as response:
                return response.status, _begin(response, call.excerpt), _retry_after(response)

    def _trusted(self) -> ssl.SSLContext:
        with self._lock:
            if self._tls is None:
                self._tls = httpcore.default_ssl_context()
            return self._tls


def _begin(response: httpcore.Response, size: int) -> str:
    """The beginning of the body. One that breaks off does not undo the status."""
    parts: list[bytes] = []
    read = 0
    try:
        for part in response.iter_stream():
            parts.append(part)
            read += len(part)
            if read >= size:
                break
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
        pass
    return b"".join(parts)[:size].decode("utf-8", "replace").replace("\0", "\ufffd")


def _retry_after(response: httpcore.Response) -> timedelta | None:
    for name, value in response.headers:
        if name.lower() == b"retry-after" and value.isdigit() and len(value) < 10:
            return timedelta(seconds=min(int(value), LONGEST_RETRY_AFTER))
    return None
