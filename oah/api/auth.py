"""Who calls, and what that key may do.

Every path below `/v1` is authenticated before anything of the request is parsed. A key is bound to one workspace; only
`admin` sees all. What belongs to another workspace answers exactly as what does not exist.
"""

from __future__ import annotations

import ipaddress
import threading
from dataclasses import dataclass
from typing import Annotated, Any, cast
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from oah.api import problems
from oah.api.context import ApiContext
from oah.core.dialogue.frames import BEARER
from oah.core.model.ids import KeyId, WorkspaceId
from oah.core.model.workspace import ApiKey
from oah.core.model.workspace import Scope as KeyScope
from oah.errors import Forbidden, NotFound, OahError, Unauthorized
from oah.ports.store import RunFence
from oah.services import keys, run_keys
from oah.settings import AuthMode

REMEMBERED_SECONDS = 2.0
"""How long a key is believed without asking SQL: a key revoked in another process works that much longer."""
REMEMBERED_KEYS = 10_000
KEY_CHECK = 2.0
"""Seconds after which those who stay (viewers, streams) have their keys looked at again."""

PROTECTED = "/v1"
NO_WORKSPACE = WorkspaceId("-")
"""No workspace has this id."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller. `workspace_id` None: all workspaces. `fence`: the agent of that attempt, by the key of its run; it
    sees no workspace at all. `digest`: of its key's secret, to ask again."""

    key: ApiKey | None
    fence: RunFence | None = None
    digest: str = ""

    @property
    def workspace_id(self) -> WorkspaceId | None:
        """The only workspace this caller sees; None: all."""
        if self.fence is not None:
            return NO_WORKSPACE
        return self.key.workspace_id if self.key else None

    @property
    def by(self) -> str:
        """Who it is, for audit and notes."""
        if self.fence is not None:
            return f"run:{self.fence.run_id}"
        return f"key:{self.key.id}" if self.key else "local"

    @property
    def admin(self) -> bool:
        """Whether it sees every workspace."""
        return self.workspace_id is None

    def may(self, scope: KeyScope) -> bool:
        """Whether the key carries the scope; the key of a run carries none."""
        return self.fence is None and self._has(scope)

    def _has(self, scope: KeyScope) -> bool:
        return self.key is None or self.key.may(scope)


class Keyring:
    """Keys as seen lately, by digest: a request costs no look into SQL."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[ApiKey, float]] = {}

    def remembered(self, secret: str) -> ApiKey | None:
        """The key if it was looked up a moment ago. Raises Unauthorized when it has expired meanwhile."""
        return self._remembered(keys.digest(secret)) if len(secret) <= keys.LONGEST and secret.isascii() else None

    def _remembered(self, digest: str) -> ApiKey | None:
        found = self._seen.get(digest)
        if found is None or found[1] < self._context.clock.monotonic():
            return None
        return keys.valid(self._context.clock, found[0])

    def look_up(self, secret: str) -> ApiKey:
        """Ask SQL. Raises Unauthorized, Unavailable."""
        return self._keep(keys.digest(secret), keys.known(self._context.store, self._context.clock, secret))

    def check(self, digest: str) -> None:
        """Whether a key that was good still is, for those who stay for long. Raises Unauthorized, Unavailable."""
        if self._remembered(digest) is None:
            self._keep(digest, keys.known_by(self._context.store, self._context.clock, digest))

    def _keep(self, digest: str, key: ApiKey) -> ApiKey:
        with self._lock:
            if len(self._seen) >= REMEMBERED_KEYS:
                self._seen.clear()
            self._seen[digest] = (key, self._context.clock.monotonic() + REMEMBERED_SECONDS)
        return key

    def open_run(self, secret: str) -> RunFence:
        """The attempt that a run's key speaks for; asked of SQL each time, for it ends with the attempt. Raises
        Unauthorized, Unavailable."""
        return run_keys.opened(self._context.store, secret)

    def forget(self, key_id: KeyId) -> None:
        """A key was revoked here: at once."""
        with self._lock:
            self._seen = {digest: seen for digest, seen in self._seen.items() if seen[0].id != key_id}


class Authenticate:
    """ASGI: puts a Principal into the request's state, or answers 401."""

    def __init__(self, app: ASGIApp, *, mode: AuthMode, keyring: Keyring) -> None:
        self._app = app
        self._mode = mode
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] not in ("http", "websocket") or not (path == PROTECTED or path.startswith(PROTECTED + "/")):
            await self._app(scope, receive, send)
            return
        try:
            principal = await self._principal(_with_bearer(scope))
        except OahError as error:
            await problems.of(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["principal"] = principal
        await self._app(scope, receive, send)

    async def _principal(self, headers: dict[bytes, bytes]) -> Principal:
        kind, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        secret = secret.strip()
        if self._mode is AuthMode.OFF:
            _only_local(headers.get(b"host", b"").decode("latin-1"))
        if kind.lower() == "bearer" and run_keys.is_run_key(secret):
            return Principal(None, await run_in_threadpool(self._keyring.open_run, secret))
        if self._mode is AuthMode.OFF:
            return Principal(None)
        if kind.lower() != "bearer" or not secret:
            raise Unauthorized("a key is needed", hint="Authorization: Bearer <key>")
        key = self._keyring.remembered(secret) or await run_in_threadpool(self._keyring.look_up, secret)
        return Principal(key, digest=keys.digest(secret))


def _with_bearer(scope: Scope) -> dict[bytes, bytes]:
    """The headers. A browser cannot set any on a WebSocket: there the key may stand among the subprotocols, never in
    the address, which lands in logs."""
    headers = dict(scope["headers"])
    if scope["type"] == "websocket" and b"authorization" not in headers:
        for offered in scope.get("subprotocols", ()):
            if offered.startswith(BEARER):
                headers[b"authorization"] = f"Bearer {offered.removeprefix(BEARER)}".encode("latin-1", "replace")
    return headers


def own_origin(connection: HTTPConnection, mode: AuthMode) -> None:
    """Without keys any page in a browser of this machine could open a WebSocket: only our own may. Raises Forbidden."""
    origin = connection.headers.get("origin")
    if mode is AuthMode.OFF and origin is not None and urlsplit(origin).netloc != connection.headers.get("host"):
        raise Forbidden("without keys no pages of other origins are served", hint="OAH_AUTH=keys")


def _only_local(host: str) -> None:
    """Without keys only this machine is served: a page in a browser must not reach us under a foreign name."""
    if not is_loopback(host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]):
        raise Forbidden("without keys only loopback names are served", hint="use http://127.0.0.1, or OAH_AUTH=keys")


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def principal(request: Request) -> Principal:
    """The caller, as the middleware found it."""
    return cast(Principal, request.state.principal)


Caller = Annotated[Principal, Depends(principal)]


class _Scoped:
    def __init__(self, scope: KeyScope) -> None:
        self._scope = scope

    async def __call__(self, caller: Caller) -> None:
        demand(caller, self._scope)


def demand(caller: Principal, scope: KeyScope) -> None:
    """For what only one form of a call needs. Raises Forbidden."""
    if not caller.may(scope):
        raise Forbidden(f"the key has no scope '{scope}'", hint="ask an admin for a key that has it")


def needs(scope: KeyScope) -> dict[str, Any]:
    """Arguments of a route: the scope it asks for, also said in the OpenAPI document."""
    return {"dependencies": [Depends(_Scoped(scope))], "openapi_extra": {"x-oah-scope": str(scope)}}


class _InsideRun:
    async def __call__(self, request: Request, caller: Caller) -> None:
        if caller.fence is None:
            await _Scoped(KeyScope.RUN)(caller)
        elif request.path_params.get("run_id") != caller.fence.run_id:
            raise NotFound(f"no run {request.path_params.get('run_id')}")


def needs_run() -> dict[str, Any]:
    """Arguments of a route inside a run: the key of that run opens it, and any key that may run."""
    extra = {"x-oah-scope": str(KeyScope.RUN), "x-oah-run-key": True}
    return {"dependencies": [Depends(_InsideRun())], "openapi_extra": extra}


class _RunKeyToo:
    def __init__(self, scope: KeyScope) -> None:
        self._scope = scope

    async def __call__(self, caller: Caller) -> None:
        if caller.fence is None:
            demand(caller, self._scope)


def needs_mail(scope: KeyScope) -> dict[str, Any]:
    """Arguments of a route about mailboxes: the scope opens it, and the key of a run, in its session's workspace."""
    return _run_key_too(scope)


def needs_family(scope: KeyScope) -> dict[str, Any]:
    """Arguments of a route about runs and sessions: the scope opens it, and the key of a run for its children. What it
    answers about must come from `oah.api.family`."""
    return _run_key_too(scope)


def _run_key_too(scope: KeyScope) -> dict[str, Any]:
    return {
        "dependencies": [Depends(_RunKeyToo(scope))],
        "openapi_extra": {"x-oah-scope": str(scope), "x-oah-run-key": True},
    }
