"""Foreign exceptions become ours at this rim, by what the catcher should do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy import exc

from oah.errors import Broken, Conflict, InvalidRequest, OahError, Unavailable

ENDED_BY_SERVER = (
    psycopg.errors.IdleInTransactionSessionTimeout
    | psycopg.errors.TransactionTimeout
    | psycopg.errors.ReadOnlySqlTransaction
)
"""The library calls these internal; they are a transaction that was too slow, and a standby."""
NOT_MIGRATED = "the database has no or an older schema"
MIGRATE_HINT = "run `oah db upgrade`"


def translate(error: BaseException) -> BaseException:
    """Our error for a foreign one; what is not the database's stays as it is."""
    if isinstance(error, exc.DBAPIError) and error.orig is not None:
        return translate(error.orig)
    if isinstance(error, psycopg.Error):
        return _from_postgres(error)
    if isinstance(error, sqlite3.Error):
        return _from_sqlite(error)
    if isinstance(error, exc.TimeoutError):
        return Unavailable(f"no free database connection: {error}")
    if isinstance(error, exc.SQLAlchemyError):
        return Broken(f"{type(error).__name__}: {error}")
    return error


def _from_postgres(error: psycopg.Error) -> OahError:
    words = f"PostgreSQL: {type(error).__name__}: {error}".strip()
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        return Unavailable(f"{NOT_MIGRATED}: {words}", code="not_migrated", hint=MIGRATE_HINT)
    if isinstance(error, psycopg.DataError):
        return InvalidRequest(words)
    if isinstance(error, psycopg.IntegrityError):
        return Conflict(words)
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | ENDED_BY_SERVER):
        return Unavailable(words)
    if isinstance(error, psycopg.errors.FeatureNotSupported) and "cached plan" in words:
        return Unavailable(words)  # the schema changed under a prepared statement
    return Broken(words)


def _from_sqlite(error: sqlite3.Error) -> OahError:
    words = f"SQLite: {type(error).__name__}: {error}"
    if isinstance(error, sqlite3.IntegrityError):
        return Conflict(words)
    if isinstance(error, sqlite3.DataError | OverflowError):
        return InvalidRequest(words)
    if isinstance(error, sqlite3.OperationalError):
        if "no such table" in words or "no such column" in words or "has no column" in words:
            return Unavailable(f"{NOT_MIGRATED}: {words}", code="not_migrated", hint=MIGRATE_HINT)
        return Broken(words) if "syntax error" in words else Unavailable(words)
    return Broken(words)


@contextmanager
def translated() -> Iterator[None]:
    """Raise ours for what is raised inside."""
    try:
        yield
    except Exception as error:
        ours = translate(error)
        if ours is error:
            raise
        raise ours from error
