"""Connections to PostgreSQL: three kinds, none of which can wait for ever.

The hot ones prepare every statement at once and plan without statistics in mind: a burst on tables that were analysed
empty must not change a plan. The server ends transactions that sit idle, so that a stopped process does not keep the
locks of its sessions; the client stops waiting for a server that does not answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.string import TextLoader

from oah.adapters.sql.database import Marked, Signal
from oah.adapters.sql.faults import translated
from oah.errors import InvalidRequest, Unavailable

RV = TypeVar("RV")

CONNECT_SECONDS = 2
ANSWER = timedelta(seconds=15)
"""The client's limit for one answer; the server's own limits are shorter, so it decides while it can."""
SERVER = {
    "timezone": "UTC",
    "statement_timeout": "10s",
    "lock_timeout": "8s",
    "idle_in_transaction_session_timeout": "5s",
}
DISPATCH = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
LIVENESS = {
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}

MARK = """
WITH c AS MATERIALIZED (SELECT * FROM unnest(%(sessions)s::text[], %(tokens)s::text[]) AS c(session_id, token)),
l AS MATERIALIZED (SELECT session_id, claim_token, worker_id FROM session_owners
  WHERE session_id = ANY(%(sessions)s::text[]) FOR NO KEY UPDATE SKIP LOCKED)
UPDATE session_owners o SET seen_at = clock_timestamp()
FROM c JOIN l ON l.session_id = c.session_id AND l.claim_token = c.token AND l.worker_id = %(worker)s
WHERE o.session_id = ANY(%(sessions)s::text[]) AND o.session_id = l.session_id RETURNING o.session_id
"""
MARK_ONE = """
UPDATE session_owners SET seen_at = clock_timestamp()
WHERE session_id = %(session)s AND claim_token = %(token)s AND worker_id = %(worker)s
"""
SIGNALS = """
SELECT r.session_id, r.id, r.attempt, r.claim_token, r.cancel_requested_at IS NOT NULL, r.stop_reason,
  r.cancel_requested_by, CASE WHEN r.status = 'waiting_tool' THEN 0
    ELSE (extract(epoch FROM clock_timestamp() - o.heard_at) * 1000000)::bigint END
FROM unnest(%(sessions)s::text[], %(tokens)s::text[]) AS c(session_id, token)
CROSS JOIN LATERAL (SELECT session_id, id, attempt, claim_token, status, cancel_requested_at, cancel_requested_by,
    stop_reason FROM runs WHERE session_id = c.session_id AND status IN ('running', 'waiting_tool') LIMIT 1) r
LEFT JOIN LATERAL (SELECT heard_at FROM session_owners WHERE session_id = c.session_id LIMIT 1) o ON true
WHERE r.claim_token = c.token
  AND (r.cancel_requested_at IS NOT NULL OR r.status = 'waiting_tool' OR o.heard_at IS NOT NULL)
"""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that gives up, and closes itself, when an answer does not come in time."""

    answer_within: float = ANSWER.total_seconds()

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """As the parent, within ``answer_within`` seconds. Raises OperationalError."""
        limit = self.answer_within if timeout is None else timeout
        try:
            return super().wait(gen, interval, limit)
        except psycopg.errors._WaitTimeout as error:
            self.close()
            raise psycopg.OperationalError(f"no answer within {limit:.3g} s") from error


class Connector:
    """Opens connections to one server with the settings of their kind."""

    def __init__(self, url: str) -> None:
        try:
            self._info = conninfo_to_dict(url.replace("postgresql+psycopg://", "postgresql://", 1))
        except psycopg.ProgrammingError as error:
            raise InvalidRequest(f"no PostgreSQL address: {error}", hint="postgresql://user@host/database") from error

    def open(self, settings: dict[str, str], *, autocommit: bool = False, prepare: int | None = 5) -> BoundedConnection:
        """A connection with these settings of the server. ``prepare``: after how many uses a statement is prepared."""
        given = str(self._info.get("options") or "")
        options = " ".join([given, *(f"-c {name}={value}" for name, value in settings.items())]).strip()
        parameters: dict[str, Any] = {
            "connect_timeout": CONNECT_SECONDS,
            "application_name": "oah",
            **LIVENESS,
            **self._info,
            "options": options,
        }
        return BoundedConnection.connect(**parameters, autocommit=autocommit, prepare_threshold=prepare)

    def ordinary(self) -> BoundedConnection:
        """For SQLAlchemy Core: nothing is prepared, for a kept plan would be one for the sizes of yesterday."""
        return self.open(SERVER, prepare=None)

    def dispatch(self) -> BoundedConnection:
        """For the hot statements."""
        connection = self.open({**SERVER, **DISPATCH}, prepare=0)
        connection.adapters.register_loader("jsonb", TextLoader)  # mostly empty: ``rows.py`` parses what is not
        return connection

    def unlimited(self) -> BoundedConnection:
        """For migrations: as long as it takes."""
        connection = self.open({"timezone": "UTC", "statement_timeout": "0", "lock_timeout": "0"})
        connection.answer_within = timedelta(days=1).total_seconds()
        return connection


class MarkConnection:
    """The mark's own connection: opened when needed, dropped at the first trouble, never waited for beyond the limit.

    A row that another transaction holds is skipped by the batch and then asked for alone, so the mark never waits for
    one row while it holds another: it cannot be part of a deadlock.
    """

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._lock = threading.Lock()
        self._connection: BoundedConnection | None = None
        self._limit_ms = 0

    def mark(self, worker: str, table: Sequence[tuple[str, str]], timeout: timedelta) -> Marked:
        """Raises Unavailable when it cannot be done within ``timeout``."""
        deadline = time.monotonic() + timeout.total_seconds()
        if not self._lock.acquire(timeout=timeout.total_seconds()):
            raise Unavailable("the mark's connection is busy")
        try:
            with translated():
                return self._marked(worker, table, lambda: deadline - time.monotonic(), timeout)
        except BaseException:
            self._drop()
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close it."""
        with self._lock:
            self._drop()

    def _marked(
        self, worker: str, table: Sequence[tuple[str, str]], left: Callable[[], float], timeout: timedelta
    ) -> Marked:
        connection = self._ready(timeout, left())
        arguments = {"sessions": [s for s, _ in table], "tokens": [t for _, t in table], "worker": worker}

        def execute(statement: str, given: dict[str, Any]) -> psycopg.Cursor[Any]:
            if (limit := left()) <= 0:
                raise Unavailable("the mark's time is over")
            connection.answer_within = limit
            return connection.execute(statement, given)

        marked = {row[0] for row in execute(MARK, arguments)}
        unread: frozenset[str] = frozenset()
        rest = [pair for pair in table if pair[0] not in marked]
        for n, (session, token) in enumerate(rest):
            one = {"session": session, "token": token, "worker": worker}
            try:
                found = execute(MARK_ONE, one).rowcount
            except psycopg.errors.LockNotAvailable:
                # Somebody keeps it: those above are confirmed, or gone, of these nothing is known.
                unread = frozenset(s for s, _ in rest[n:])
                break
            if found:
                marked.add(session)
        return Marked(marked, list(map(Signal._make, execute(SIGNALS, arguments).fetchall())), unread)

    def _ready(self, timeout: timedelta, left: float) -> BoundedConnection:
        limit_ms = max(1, timeout // timedelta(milliseconds=1))
        if self._connection is None or self._connection.closed:
            self._connection = self._connector.open({"timezone": "UTC", **DISPATCH}, autocommit=True, prepare=0)
            self._limit_ms = 0
        self._connection.answer_within = max(0.001, left)
        if self._limit_ms != limit_ms:
            self._connection.execute(
                f"SET statement_timeout = {limit_ms}; SET lock_timeout = {max(1, limit_ms // 4)}", prepare=False
            )
            self._limit_ms = limit_ms
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
