"""What the stores need of a dialect: transactions of three kinds, the mark's own connection, a lock for migrations.

``hot`` runs the statements that are written per dialect, ``write`` and ``read`` run SQLAlchemy Core. Each is one
transaction, committed when the block ends and rolled back when it raises. What leaves a block is an error of ours; a
connection that broke at COMMIT raises InDoubt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection

from oah.adapters.sql.faults import translate
from oah.adapters.sql.statements import Statements
from oah.errors import InDoubt


class Signal(NamedTuple):
    """An active run that is to be stopped, or that has said something of itself."""

    session: str
    run: str
    attempt: int
    token: str
    stop: bool
    reason: str | None
    by: str | None
    heard_us: int | None
    """How long ago; 0 while it waits."""


class Marked(NamedTuple):
    """Sessions whose owner row the mark found, what their runs have to say, and sessions whose row somebody kept
    locked."""

    sessions: set[str]
    signals: list[Signal]
    unread: frozenset[str] = frozenset()


class Database(ABC):
    """One database, safe to use from many threads."""

    dialect: str
    url: str
    part: int
    """This process's part of the workspace counters."""

    @abstractmethod
    def hot(self) -> AbstractContextManager[Statements]:
        """A write transaction on a connection that is kept for the hot statements."""

    @abstractmethod
    def write(self) -> AbstractContextManager[Connection]:
        """A write transaction."""

    @abstractmethod
    def read(self) -> AbstractContextManager[Connection]:
        """One snapshot, for reading only."""

    @abstractmethod
    def statements(self, connection: Connection) -> Statements:
        """The hot statements on the transaction of an ordinary connection."""

    @abstractmethod
    def by_index(self, connection: Connection) -> None:
        """For the rest of this transaction, plan for indexes: what statistics say of a queue is soon untrue."""

    @abstractmethod
    def mark(self, worker: str, table: Sequence[tuple[str, str]], *, timeout: timedelta) -> Marked:
        """Touch the owner rows that match (session, token), within the time given, on the mark's own connection."""

    @abstractmethod
    def migrating(self) -> AbstractContextManager[Connection]:
        """A write transaction that only one process has at a time, without a time limit on its statements."""

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Version, durability: what a person or ``oah doctor`` wants to know."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection."""


def committed(commit: Callable[[], Any], broken: Callable[[], bool]) -> None:
    """Commit. Raises InDoubt when the connection is broken afterwards: the commit may have happened."""
    try:
        commit()
    except Exception as error:
        if broken():
            raise InDoubt(f"the connection broke at COMMIT: {error}") from error
        raise translate(error) from error
