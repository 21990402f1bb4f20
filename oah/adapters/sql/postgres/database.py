"""PostgreSQL as a Database: one pool for the hot statements, one for the ordinary ones, and the mark's connection."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from psycopg import Cursor
from sqlalchemy import Connection, PoolProxiedConnection, create_engine, text
from sqlalchemy.pool import NullPool, QueuePool

from oah.adapters.sql.database import Database, Marked, committed
from oah.adapters.sql.faults import translate, translated
from oah.adapters.sql.postgres.connections import BoundedConnection, Connector, MarkConnection
from oah.adapters.sql.postgres.execution import PostgresExecution
from oah.adapters.sql.postgres.outbox import PostgresOutbox
from oah.adapters.sql.postgres.submit import PostgresSubmit

PARTS = 8
MIGRATION_LOCK = 0x0A4_5C4E
"""Key of the advisory lock under which migrations run."""


class PostgresStatements(PostgresSubmit, PostgresExecution, PostgresOutbox):
    """The hot statements over one cursor."""

    def __init__(self, cursor: Cursor[Any], part: int) -> None:
        self._cursor = cursor
        self._part = part


class PostgresDatabase(Database):
    """One PostgreSQL database. ``pool``: the most connections of each kind; more callers wait."""

    dialect = "postgresql"

    def __init__(self, url: str, *, pool: int = 8) -> None:
        self.url = url
        self.part = os.getpid() % PARTS
        connector = Connector(url)
        scheme = "postgresql+psycopg://"
        self._dispatch = create_engine(
            scheme, creator=connector.dispatch, poolclass=QueuePool, pool_size=pool, max_overflow=0, pool_timeout=10
        )
        self._ordinary = create_engine(
            scheme,
            creator=connector.ordinary,
            poolclass=QueuePool,
            pool_size=pool,
            max_overflow=0,
            pool_timeout=10,
            pool_pre_ping=True,
        )
        self._unlimited = create_engine(scheme, creator=connector.unlimited, poolclass=NullPool)
        self._mark = MarkConnection(connector)

    @contextmanager
    def hot(self) -> Iterator[PostgresStatements]:
        """On the raw connection: SQLAlchemy's execution costs more than the statements of a small batch."""
        with translated():
            proxied = self._dispatch.raw_connection()
        connection = proxied.driver_connection
        assert isinstance(connection, BoundedConnection)  # our creator made it
        try:
            yield PostgresStatements(connection.cursor(), self.part)
            committed(connection.commit, lambda: connection.closed)
        except BaseException as error:
            self._abandon(proxied, connection)
            ours = translate(error)
            if ours is error:
                raise
            raise ours from error
        finally:
            proxied.close()

    def _abandon(self, proxied: PoolProxiedConnection, connection: BoundedConnection) -> None:
        with suppress(Exception):
            connection.rollback()
        if connection.closed:
            proxied.invalidate()
            self._dispatch.dispose()  # its siblings lost the same server

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction of SQLAlchemy Core."""
        with translated(), self._ordinary.connect() as connection:
            yield connection
            committed(connection.commit, lambda: connection.invalidated or _closed(connection))

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Read committed: one statement is one snapshot."""
        with translated(), self._ordinary.connect() as connection:
            connection.begin()
            yield connection

    def statements(self, connection: Connection) -> PostgresStatements:
        """The hot statements on an ordinary connection."""
        driver = connection.connection.driver_connection
        assert isinstance(driver, BoundedConnection)  # our creator made it
        if not connection.in_transaction():
            connection.begin()
        return PostgresStatements(driver.cursor(), self.part)

    def by_index(self, connection: Connection) -> None:
        """Until the transaction ends."""
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; SET LOCAL jit = off")

    def mark(self, worker: str, table: Sequence[tuple[str, str]], *, timeout: timedelta) -> Marked:
        """See MarkConnection."""
        return self._mark.mark(worker, table, timeout)

    @contextmanager
    def migrating(self) -> Iterator[Connection]:
        """Under an advisory lock that ends with the transaction."""
        with translated(), self._unlimited.connect() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
            yield connection
            committed(connection.commit, lambda: _closed(connection))

    def facts(self) -> dict[str, str]:
        """Version and durability."""
        with self.read() as connection:
            names = ("server_version", "fsync", "synchronous_commit", "max_connections")
            rows = {name: str(connection.execute(text(f"SHOW {name}")).scalar()) for name in names}
        return {"dialect": self.dialect, **rows}

    def close(self) -> None:
        """Close every connection."""
        self._mark.close()
        self._dispatch.dispose()
        self._ordinary.dispose()


def _closed(connection: Connection) -> bool:
    try:
        driver = connection.connection.driver_connection
    except Exception:  # noqa: BLE001 - a connection that cannot be looked at is broken
        return True
    return driver is None or bool(driver.closed)
