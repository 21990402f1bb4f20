"""SQLite as a Database: one writer connection per process (taken in turn), readers beside it, the mark's own."""

from __future__ import annotations

import fcntl
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.pool import QueuePool

from oah.adapters.sql.database import Database, Marked, Signal, committed
from oah.adapters.sql.faults import translate, translated
from oah.adapters.sql.sqlite.connections import (
    BUSY_SECONDS,
    begin_immediate,
    check_file_system,
    check_library,
    database_path,
    make_place,
    opened,
)
from oah.adapters.sql.sqlite.execution import SqliteExecution
from oah.adapters.sql.sqlite.outbox import SqliteOutbox
from oah.adapters.sql.sqlite.submit import SqliteSubmit
from oah.errors import Unavailable

MARK = """
UPDATE session_owners SET seen_at = now_us() WHERE session_id = ? AND claim_token = ? AND worker_id = ?
"""
SIGNALS = """
SELECT r.session_id, r.id, r.attempt, r.claim_token, r.cancel_requested_at IS NOT NULL, r.stop_reason,
  r.cancel_requested_by, CASE WHEN r.status = 'waiting_tool' THEN 0 ELSE now_us() - o.heard_at END
FROM runs r LEFT JOIN session_owners o ON o.session_id = r.session_id
WHERE r.session_id = ? AND r.status IN ('running', 'waiting_tool') AND r.claim_token = ?
  AND (r.cancel_requested_at IS NOT NULL OR r.status = 'waiting_tool' OR o.heard_at IS NOT NULL)
"""


class SqliteStatements(SqliteSubmit, SqliteExecution, SqliteOutbox):
    """The hot statements over the writer's cursor."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor


class SqliteDatabase(Database):
    """One file on this host."""

    dialect = "sqlite"
    part = 0

    def __init__(self, url: str, *, pool: int = 8) -> None:
        self.url = url
        self.path = database_path(url)
        check_library()
        check_file_system(self.path)
        make_place(self.path)
        self._writer = create_engine(
            "sqlite+pysqlite://",
            creator=lambda: opened(self.path),
            poolclass=QueuePool,
            pool_size=1,
            max_overflow=0,
            pool_timeout=BUSY_SECONDS,
        )
        event.listen(self._writer, "begin", _begin)
        self._readers = create_engine(
            "sqlite+pysqlite://",
            creator=lambda: opened(self.path, read_only=True),
            poolclass=QueuePool,
            pool_size=pool,
            max_overflow=0,
            pool_timeout=BUSY_SECONDS,
        )
        event.listen(self._readers, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        self._mark_lock = threading.Lock()
        self._mark_connection: sqlite3.Connection | None = None

    @contextmanager
    def hot(self) -> Iterator[SqliteStatements]:
        """On the writer's raw connection."""
        with translated():
            proxied = self._writer.raw_connection()
        connection = proxied.driver_connection
        assert isinstance(connection, sqlite3.Connection)  # our creator made it
        try:
            begin_immediate(connection)
            yield SqliteStatements(connection.cursor())
            committed(lambda: connection.execute("COMMIT"), lambda: not connection.in_transaction)
        except BaseException as error:
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            ours = translate(error)
            if ours is error:
                raise
            raise ours from error
        finally:
            proxied.close()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction of SQLAlchemy Core on the writer."""
        with translated(), self._writer.connect() as connection:
            connection.begin()
            driver: Any = connection.connection.driver_connection
            yield connection
            committed(connection.commit, lambda: not driver.in_transaction)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A snapshot beside the writer."""
        with translated(), self._readers.connect() as connection:
            yield connection

    def statements(self, connection: Connection) -> SqliteStatements:
        """The hot statements on an ordinary connection of the writer."""
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)  # our creator made it
        return SqliteStatements(driver.cursor())

    def by_index(self, connection: Connection) -> None:
        """It does by itself."""

    def mark(self, worker: str, table: Sequence[tuple[str, str]], *, timeout: timedelta) -> Marked:
        """On a connection of its own: it waits for no queue of this process."""
        deadline = time.monotonic() + timeout.total_seconds()
        if not self._mark_lock.acquire(timeout=timeout.total_seconds()):
            raise Unavailable("the mark's connection is busy")
        try:
            with translated():
                if self._mark_connection is None:
                    self._mark_connection = opened(self.path)
                return _marked(self._mark_connection, worker, table, deadline)
        except BaseException:
            self._drop_mark()
            raise
        finally:
            self._mark_lock.release()

    def _drop_mark(self) -> None:
        if self._mark_connection is not None:
            self._mark_connection.close()
        self._mark_connection = None

    @contextmanager
    def migrating(self) -> Iterator[Connection]:
        """Under a lock file: a process that starts beside another waits until the schema is there."""
        lock = self.path.with_name(self.path.name + ".migrate")
        try:
            handle = lock.open("a")
        except OSError as error:
            raise Unavailable(f"cannot open {lock}: {error.strerror}") from error
        with handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            with self.write() as connection:
                yield connection

    def facts(self) -> dict[str, str]:
        """Version and durability."""
        with self.read() as connection:
            journal = str(connection.exec_driver_sql("PRAGMA journal_mode").scalar())
            synchronous = str(connection.exec_driver_sql("PRAGMA synchronous").scalar())
        return {
            "dialect": self.dialect,
            "server_version": sqlite3.sqlite_version,
            "journal_mode": journal,
            "synchronous": {"2": "FULL", "3": "EXTRA"}.get(synchronous, synchronous),
            "path": str(self.path),
        }

    def close(self) -> None:
        """Close every connection."""
        with self._mark_lock:
            self._drop_mark()
        self._readers.dispose()
        self._writer.dispose()


def _begin(connection: Connection) -> None:
    driver: Any = connection.connection.driver_connection
    begin_immediate(driver)


def _marked(connection: sqlite3.Connection, worker: str, table: Sequence[tuple[str, str]], deadline: float) -> Marked:
    begin_immediate(connection, max(0.0, deadline - time.monotonic()))
    try:
        marked = {s for s, t in table if connection.execute(MARK, (s, t, worker)).rowcount}
        signals = [Signal._make(row) for s, t in table for row in connection.execute(SIGNALS, (s, t))]
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return Marked(marked, signals)
