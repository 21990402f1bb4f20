"""One request to the API: retried where that is safe, its problem turned into a typed error.

Most requests may arrive twice: reads change nothing, submits carry an idempotency key, and most other writes end in
the same state. These are repeated after connections that failed, time-outs, 502, 503 and 504; a `Retry-After` is
honoured, else the pause doubles with jitter. Those that may not (what they make would be there twice) are repeated
only when it is certain that the server did nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import httpx

from oah.errors import (
    AgentError,
    Backpressure,
    Broken,
    Conflict,
    Forbidden,
    InDoubt,
    InvalidRequest,
    LimitReached,
    NotFound,
    OahError,
    PayloadTooLarge,
    RequestError,
    Unauthorized,
    Unavailable,
)

Json = dict[str, Any]

NO_CONTENT = 204
NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
RETRIED = frozenset({502, 503, 504})
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
LONGEST_RETRY_AFTER = 30.0

_BY_STATUS: Mapping[int, type[RequestError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: InvalidRequest,
    409: Conflict,
    413: PayloadTooLarge,
    422: InvalidRequest,
    429: LimitReached,
}
_UNAVAILABLE: Mapping[str, type[Unavailable]] = {"in_doubt": InDoubt, "backpressure": Backpressure}


def error_of(response: httpx.Response) -> OahError:
    """The typed error of a problem document (or of whatever a proxy answered instead)."""
    problem = _problem(response)
    code = problem.get("code")
    message = str(problem.get("detail") or problem.get("title") or f"HTTP {response.status_code}")
    hint = problem.get("hint")
    status = response.status_code
    if status in RETRIED:
        kind = _UNAVAILABLE.get(str(code), Unavailable)
        return kind(message, code=code, hint=hint, retry_after=timedelta(seconds=retry_after(response) or 1))
    request = _BY_STATUS.get(status)
    if request is LimitReached:
        wait = retry_after(response)
        after = None if wait is None else timedelta(seconds=wait)
        return LimitReached(message, code=code, hint=hint, retry_after=after)
    if request is not None:
        return request(message, code=code, hint=hint)
    if 400 <= status < 500 or status == 501:
        return RequestError(message, code=code, hint=hint)
    if code == "agent_error":
        return AgentError(message, code=code, hint=hint)
    return Broken(message, code=code or "server_error", hint=hint or "the server's log says more")


def _refused(response: httpx.Response, failure: OahError) -> bool:
    """Whether the server surely did nothing: it said itself that something is away, and not in the middle of it."""
    return response.status_code == 503 and "code" in _problem(response) and not isinstance(failure, InDoubt)


def _problem(response: httpx.Response) -> Json:
    try:
        document = response.json()
    except ValueError:
        return {"detail": f"HTTP {response.status_code}: {response.text[:200].strip()}"}
    return document if isinstance(document, dict) else {}


def retry_after(response: httpx.Response) -> float | None:
    """Seconds of `Retry-After`, None when it is absent or a date."""
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None


class Transport:
    """A pooled connection to one API. `retries`: how often a request is repeated at most; `timeout` in seconds."""

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        timeout: float,
        retries: int,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {"accept": "application/json", "user-agent": "oah-client"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        self._retries = retries
        self._timeout = timeout
        self._http = httpx.Client(
            base_url=url.rstrip("/"),
            headers=headers,
            timeout=timeout,
            transport=transport,
            follow_redirects=False,
            verify=not url.startswith("http:"),  # without TLS the authorities need not be loaded: it takes a while
        )
        self.url = url.rstrip("/")
        self.key = key

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        once: bool = False,
        patience: float = 0.0,
    ) -> httpx.Response:
        """The answer of a request that succeeded; `once`: it must not arrive twice; `patience`: seconds that the server
        may take beyond the usual. Raises `oah.errors`."""
        given = {name: value for name, value in (params or {}).items() if value is not None}
        tries = 0
        while True:
            tries += 1
            failure: OahError
            wait: float | None = None
            try:
                response = self._http.request(
                    method, path, json=body, params=given, headers=headers, timeout=self._timeout + patience
                )
            except (httpx.TransportError, httpx.InvalidURL) as error:
                failure = self.unreachable(error)
                if once and not isinstance(error, NEVER_SENT):
                    raise failure from error
            else:
                if response.is_success:
                    return response
                failure = error_of(response)
                if response.status_code not in RETRIED or (once and not _refused(response, failure)):
                    raise failure
                wait = retry_after(response)
            if tries > self._retries:
                raise failure
            time.sleep(pause(tries, asked=wait))

    def json(self, method: str, path: str, **more: Any) -> Any:
        """The answer's document, None when there is none."""
        response = self.call(method, path, **more)
        return response.json() if response.content else None

    @contextmanager
    def lines(
        self, path: str, *, params: Mapping[str, Any], last_event_id: int | str | None, read_timeout: float
    ) -> Iterator[Iterator[str] | None]:
        """The lines of an event stream, None when there is nothing more (204). Not repeated: the caller knows where to
        go on. Raises `oah.errors`."""
        headers = {"accept": "text/event-stream", "cache-control": "no-store"}
        if last_event_id is not None:
            headers["last-event-id"] = str(last_event_id)
        timeout = httpx.Timeout(self._timeout, read=read_timeout)
        try:
            with self._http.stream("GET", path, params=params, headers=headers, timeout=timeout) as response:
                if not response.is_success:
                    response.read()
                    raise error_of(response)
                yield None if response.status_code == NO_CONTENT else response.iter_lines()
        except httpx.TransportError as error:
            raise self.unreachable(error) from error

    def unreachable(self, error: Exception) -> Unavailable:
        """A connection that failed, as the typed error."""
        return Unavailable(
            f"no answer from {self.url}: {str(error) or type(error).__name__}",
            code="api_unreachable",
            hint="is the API running? `oah up` starts everything on this machine",
        )


def pause(tries: int, *, asked: float | None = None) -> float:
    """Seconds before the next try: what the server asked for, or doubling; jittered so that clients spread out."""
    if asked is not None:
        return min(asked, LONGEST_RETRY_AFTER) * random.uniform(1.0, 1.25)
    return float(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (tries - 1)) * random.uniform(0.5, 1.0))
