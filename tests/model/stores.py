"""Reaching behind the ports: let time pass in both stores, empty Redis, or bring an old snapshot of it back.

Time passes by ageing what the stores have stamped; what is compared with a server's clock then sees the difference.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.broker_audit import shift_time

Content = dict[bytes, tuple[str, Any]]
Aged = dict[str, tuple[str, ...]]
"""Table → the moments in it."""


class RedisBehind:
    """A plain client of the server that the broker uses."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def flush(self) -> None:
        self.client.flushall()

    def age(self, ms: int) -> None:
        """Every moment that is stamped lies `ms` earlier."""
        shift_time(self.client, ms)

    def age_waits(self, ms: int) -> None:
        """Only due times and ends of holds: leases and marks stay as they are."""
        shift_time(self.client, ms, waits_only=True)

    def snapshot(self) -> Content:
        """All there is."""
        reads: dict[str, Callable[[Any], Any]] = {
            "string": self.client.get,
            "hash": self.client.hgetall,
            "set": self.client.smembers,
            "list": lambda key: self.client.lrange(key, 0, -1),
            "zset": lambda key: self.client.zrange(key, 0, -1, withscores=True),
        }
        found = {}
        for key in self.client.keys("*"):
            kind = self.client.type(key).decode()
            found[key] = (kind, reads[kind](key))
        return found

    def bring_back(self, content: Content) -> None:
        """As a server that restarted from that snapshot."""
        self.client.flushall()
        for key, (kind, value) in content.items():
            match kind:
                case "string":
                    self.client.set(key, value)
                case "hash":
                    self.client.hset(key, mapping=value)
                case "set":
                    self.client.sadd(key, *value)
                case "list":
                    self.client.rpush(key, *value)
                case "zset":
                    self.client.zadd(key, dict(value))


WAITS = {"runs": ("due_at",)}
AGED = {
    "session_owners": ("seen_at",),
    "runs": ("due_at", "created_at", "queued_at"),
}


@dataclass(frozen=True)
class SqliteBehind:
    """The database file."""

    path: Path

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, timeout=10)) as connection:
            return connection.execute(statement).fetchall()

    def execute(self, statement: str) -> None:
        with closing(sqlite3.connect(self.path, timeout=10)) as connection, connection:
            connection.execute(statement)

    def age_waits(self, ms: int) -> None:
        self.age(ms, WAITS)

    def age(self, ms: int, aged: Aged = AGED) -> None:
        with closing(sqlite3.connect(self.path, timeout=10)) as connection, connection:
            for table, columns in aged.items():
                for column in columns:
                    connection.execute(f"UPDATE {table} SET {column} = {column} - ?", (ms * 1000,))
            for session, holds in connection.execute("SELECT id, holds FROM sessions WHERE held = 1").fetchall():
                connection.execute(
                    "UPDATE sessions SET holds = ? WHERE id = ?", (_aged(json.loads(holds), ms), session)
                )


@dataclass(frozen=True)
class PostgresBehind:
    """A plain connection (psycopg, autocommit)."""

    connection: Any

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement).fetchall()

    def execute(self, statement: str) -> None:
        self.connection.execute(statement)

    def age_waits(self, ms: int) -> None:
        self.age(ms, WAITS)

    def age(self, ms: int, aged: Aged = AGED) -> None:
        for table, columns in aged.items():
            for column in columns:
                self.connection.execute(
                    f"UPDATE {table} SET {column} = {column} - %s * interval '1 millisecond'", (ms,)
                )
        for session, holds in self.rows("SELECT id, holds FROM sessions WHERE held = 1"):
            self.connection.execute("UPDATE sessions SET holds = %s WHERE id = %s", (_aged(holds, ms), session))


def _aged(holds: dict[str, int | None], ms: int) -> str:
    return json.dumps({reason: until and until - ms * 1000 for reason, until in holds.items()})
