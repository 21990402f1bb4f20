"""A database whose transactions are timed and whose failures are counted, whatever the dialect."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TypeVar

from sqlalchemy import Connection

from oah.adapters.sql.database import Database, Marked
from oah.adapters.sql.statements import Statements
from oah.errors import Broken, InDoubt, Unavailable
from oah.ports.telemetry import Telemetry

T = TypeVar("T")


class MeasuredDatabase(Database):
    """Passes everything on. Errors of callers inside a transaction (a conflict, bad input) are not the database's."""

    def __init__(self, database: Database, telemetry: Telemetry) -> None:
        self._database = database
        self._telemetry = telemetry
        self.dialect, self.url, self.part = database.dialect, database.url, database.part

    def hot(self) -> AbstractContextManager[Statements]:
        """Timed as `hot`."""
        return self._timed("hot", self._database.hot())

    def write(self) -> AbstractContextManager[Connection]:
        """Timed as `write`."""
        return self._timed("write", self._database.write())

    def read(self) -> AbstractContextManager[Connection]:
        """Timed as `read`."""
        return self._timed("read", self._database.read())

    def statements(self, connection: Connection) -> Statements:
        """As they are: their transaction is timed."""
        return self._database.statements(connection)

    def by_index(self, connection: Connection) -> None:
        """Within a transaction that is timed."""
        self._database.by_index(connection)

    def mark(self, worker: str, table: Sequence[tuple[str, str]], *, timeout: timedelta) -> Marked:
        """Timed as `mark`."""
        with self._measure("mark"):
            return self._database.mark(worker, table, timeout=timeout)

    def migrating(self) -> AbstractContextManager[Connection]:
        """As it is: it happens once."""
        return self._database.migrating()

    def facts(self) -> dict[str, str]:
        """As they are."""
        return self._database.facts()

    def close(self) -> None:
        """Close every connection."""
        self._database.close()

    @contextmanager
    def _timed(self, work: str, transaction: AbstractContextManager[T]) -> Iterator[T]:
        with self._measure(work), transaction as inside:
            yield inside

    @contextmanager
    def _measure(self, work: str) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        except InDoubt:
            self._telemetry.count("oah_sql_errors_total", kind="in_doubt")
            raise
        except Unavailable:
            self._telemetry.count("oah_sql_errors_total", kind="unavailable")
            raise
        except Broken:
            self._telemetry.count("oah_sql_errors_total", kind="broken")
            raise
        finally:
            self._telemetry.observe("oah_sql_seconds", time.monotonic() - begun, work=work)
