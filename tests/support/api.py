"""A running API over real stores, and hands to do what a worker would.

`Deployment` serves on loopback with a real uvicorn. Its `store` and `broker` can be told to be away.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from oah.adapters.blobs.directory import DirectoryBlobs
from oah.adapters.cron.times import CronSimTimes
from oah.adapters.prometheus.telemetry import PrometheusTelemetry
from oah.adapters.sql.store import open_store
from oah.adapters.system.clock import SystemClock
from oah.adapters.system.ids import SystemIds
from oah.api.app import create_app
from oah.api.context import ApiContext
from oah.api.server import Server
from oah.client import Client
from oah.core.model.ids import ClaimToken, EpochId, RunId, SessionId, WorkerId
from oah.core.model.run import Outcome, RunError, RunStatus
from oah.core.model.worker import WorkerReport, WorkerState
from oah.core.model.workspace import DEFAULT_WORKSPACE, Scope
from oah.core.policy.admission import Rules
from oah.errors import Unavailable
from oah.ports.store import OutputChunk, RunFence, Settlement, StartClaim, Started
from oah.runtime.batches import Batches
from oah.runtime.mail_watch import MailWatch
from oah.services import keys, workspaces
from oah.services.post import MailRules, Post
from tests.support.servers_redis import FakeServer

EPOCH = EpochId("epoch-1")
WORKER = WorkerId("w1.0123456789abcdef0123456789abcdef")


class Switched:
    """A port that can be switched off: every call then raises Unavailable. `calls` names what was called."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.error: Exception | None = None
        self.broken: set[str] = set()
        self.calls: list[str] = []

    def off(self, error: Exception | None = None) -> None:
        self.error = error or Unavailable("switched off by the test", retry_after=timedelta(seconds=2))

    def on(self) -> None:
        self.error = None
        self.broken.clear()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def call(*args: Any, **more: Any) -> Any:
            self.calls.append(name)
            if self.error is not None or name in self.broken:
                raise self.error or Unavailable(f"{name} is switched off by the test")
            return method(*args, **more)

        return call


@dataclass
class Deployment:
    """One API process in this one."""

    store: Any
    broker: Any
    context: ApiContext
    server: Server
    secrets: dict[str, str]
    ids: SystemIds = field(default_factory=SystemIds)
    clients: list[Client] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def state(self) -> Any:
        return self.server._state

    def client(self, who: str = "admin", **more: Any) -> Client:
        client = Client(self.url, self.secrets[who], **more)
        self.clients.append(client)
        return client

    def http(self, who: str | None = "admin", **more: Any) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.secrets[who]}"} if who else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=20, verify=False, **more)

    # --- what a worker would do ---

    def start(self, session_id: str, token: str | None = None) -> Started:
        """Start the session's first eligible run."""
        claim = StartClaim(SessionId(session_id), ClaimToken(token or self.ids.nonce()))
        [reply] = self.store.start(WORKER, EPOCH, [claim])
        assert isinstance(reply, Started), reply
        self.broker.publish([(SessionId(session_id), reply.event_number)])
        return reply

    def fence(self, started: Started) -> RunFence:
        run = started.run
        assert run.claim_token is not None
        return RunFence(run.session_id, run.id, run.attempt, run.claim_token)

    def output(self, started: Started, text: str, *, hint: bool = True) -> int:
        [number] = self.store.output([OutputChunk(self.fence(started), text)])
        assert number is not None
        if hint:
            self.broker.publish([(started.run.session_id, number)])
        return int(number)

    def settle(self, started: Started, *, output: str = "done", error: str | None = None, **more: Any) -> None:
        outcome = Outcome(
            status=RunStatus.FAILED if error else RunStatus.COMPLETED,
            output=output,
            exit_code=1 if error else 0,
            error=RunError(error, "it did not work") if error else None,
            **more,
        )
        [after] = self.store.settle([Settlement(self.fence(started), outcome)])
        assert after.applied
        self.broker.publish([(started.run.session_id, after.event_number)])

    def work(self, session_id: str, **more: Any) -> RunId:
        """Start and settle one run."""
        started = self.start(session_id)
        self.settle(started, **more)
        return started.run.id

    def report_worker(self, *, name: str = "w1", **more: Any) -> WorkerReport:
        fields: dict[str, Any] = {
            "id": WorkerId(f"{name}.0123456789abcdef0123456789abcdef"),
            "name": name,
            "host": "here",
            "pid": 1,
            "pool": "default",
            "profiles": ("shell", "python"),
            "state": WorkerState.IDLE,
            "slots": 8,
            "busy": 2,
            "parked": 0,
            "cordoned": False,
            "draining": False,
            "version": "1",
            "started_at": datetime.now(UTC),
        }
        report = WorkerReport(**{**fields, **more})
        self.broker.report(report, ttl=timedelta(seconds=60))
        return report


SECRETS = {
    "reader": (DEFAULT_WORKSPACE, {Scope.READ}),
    "runner": (DEFAULT_WORKSPACE, {Scope.READ, Scope.RUN}),
    "operator": (DEFAULT_WORKSPACE, {Scope.OPERATE}),
    "foreigner": ("foreign", {Scope.OPERATE}),
}
"""Keys of every deployment besides `admin`: name → workspace and scopes."""


@contextmanager
def deploy(store_url: str, broker: Any, tmp: Path, **more: Any) -> Iterator[Deployment]:
    """Serve for as long as the block lasts."""
    store, switched = Switched(open_store(store_url)), Switched(broker)
    ids, clock = SystemIds(), SystemClock()
    telemetry = PrometheusTelemetry(process="test", version="1")
    assert store.mint_epoch(EPOCH, over=None)
    assert broker.mint(EPOCH, seen=broker.view().id)
    assert broker.open(EPOCH)
    foreign = workspaces.create(store, ids, "foreign")
    secrets = {"admin": keys.create_admin(store, ids).secret}
    for name, (workspace, scopes) in SECRETS.items():
        bound = foreign.id if workspace == "foreign" else DEFAULT_WORKSPACE
        secrets[name] = keys.create(store, ids, name=name, workspace_id=bound, scopes=frozenset(scopes)).secret
    watch = MailWatch(store, switched, clock)
    fields: dict[str, Any] = {
        "store": store,
        "broker": switched,
        "clock": clock,
        "ids": ids,
        "telemetry": telemetry,
        "blobs": DirectoryBlobs(tmp / "blobs"),
        "epoch": lambda: EPOCH,
        "profiles": lambda: ("exec", "noop", "python", "shell"),
        "exposition": telemetry.exposition,
        "post": Post(store, switched, ids, MailRules(), telemetry, watch=watch, together=Batches),
        "watch": watch,
        "lease": timedelta(seconds=6),
        "rules": Rules(),
        "times": CronSimTimes(),
        "ready": {"store": store.check, "broker": switched.now},
        "version": "1",
    }
    context = ApiContext(**{**fields, **more})
    server = Server(create_app(context))
    server.start()
    assert server.started.wait(20)
    assert server.failure is None, server.failure
    made = Deployment(store, switched, context, server, secrets)
    try:
        yield made
    finally:
        for client in made.clients:
            client.close()
        store.on()
        switched.on()
        server.stop(timedelta(seconds=2))
        assert server.join(timedelta(seconds=10)), "the API server did not stop"
        store.close()


@pytest.fixture
def api(sqlite_url: str, tmp_path: Path) -> Iterator[Deployment]:
    """An API on SQLite and an in-process broker, fresh."""
    broker = FakeServer().broker()
    with deploy(sqlite_url, broker, tmp_path) as made:
        yield made
    broker.close()


@pytest.fixture(params=["sqlite+memory", "postgresql+valkey"])
def apis(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    """An API on the embedded default, and on real servers, fresh."""
    embedded = request.param == "sqlite+memory"
    server = FakeServer() if embedded else request.getfixturevalue("valkey_server")
    server.reset()
    broker = server.broker()
    with deploy(request.getfixturevalue("sqlite_url" if embedded else "postgres_url"), broker, tmp_path) as made:
        yield made
    broker.close()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared_api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One API for a module's tests that leave nothing behind which others would stumble over."""
    tmp = tmp_path_factory.mktemp("shared-api")
    broker = FakeServer().broker()
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp / "oah.db")
        drop: Callable[[], None]
        url, drop = f"sqlite:///{tmp / 'oah.db'}", nothing
    else:
        postgres = request.getfixturevalue("postgres_server")
        name = postgres.create()
        url, drop = postgres.url(name), partial(postgres.drop, name)
    with deploy(url, broker, tmp) as made:
        yield made
    broker.close()
    drop()


def nothing() -> None:
    """A file goes with its directory."""


@pytest.fixture
def client(api: Deployment) -> Client:
    """A client with the admin key."""
    return api.client()
