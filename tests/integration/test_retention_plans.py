"""Retention and dead letters read by index: a window costs what it holds, whatever the history (PostgreSQL).

The statements are those that the store really sends: they are caught on their way, then explained with the same
settings on the same data. What is compared is rows and pages touched, never time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from psycopg import ClientCursor
from sqlalchemy import event
from sqlalchemy.engine import Engine

from oah.adapters.sql.store import open_store
from oah.core.model.ids import RunId, WorkspaceId
from oah.core.policy.retention import Aged
from oah.ports.dead_letters import LetterFilter, LetterKind, LetterState
from oah.ports.store import Store
from tests.integration.test_sql_postgres_plans import nodes, pages

DAY = timedelta(days=1)
YOUNG, OLD = 20_000, 200
"""Rows of each table that are kept, and that have aged."""
PAGES, ROWS = 1_500, 1_000
"""A window of ten looks at so many pages and rows at most; evictions walk the bound of 500, twice."""

FILL = """
INSERT INTO sessions (id, workspace_id, pool, agent, created_at, next_position, event_seq, state, closed_at)
SELECT 's' || n, 'default', 'p', 'shell', now(), 2, 3, CASE WHEN n % 10 = 0 THEN 'closed' ELSE 'open' END,
  CASE WHEN n % 10 = 0 THEN now() - (CASE WHEN n <= {old} THEN 60 ELSE 1 END) * interval '1 day' END
FROM generate_series(1, {all}) n;
INSERT INTO runs (id, session_id, workspace_id, position, class, class_rank, input, status, attempt, created_at,
  queued_at, started_at, ended_at, result_blob)
SELECT 'r' || n, 's' || n, 'default', 1, 'interactive', 0, 'x', 'completed', 1, t, t, t, t, 'out/' || n
FROM (SELECT n, now() - (CASE WHEN n <= {old} THEN 60 ELSE 1 END) * interval '1 day' AS t
  FROM generate_series(1, {all}) n) x;
INSERT INTO run_attempts (run_id, attempt, reason, worker_id, claim_token, recording_blob, started_at, ended_at)
SELECT id, 1, 'first', 'w', 't', 'rec/' || id, started_at, ended_at FROM runs;
INSERT INTO run_events (session_id, number, run_id, attempt, type, at)
SELECT r.session_id, n, r.id, 1, 'run.queued', r.ended_at FROM runs r, generate_series(1, 3) n;
INSERT INTO run_steps (run_id, number, attempt, kind, name, at) SELECT id, 1, 1, 'system', 'x', ended_at FROM runs;
INSERT INTO audit (at, actor, action, subject)
SELECT now() - (CASE WHEN n <= {old} THEN 100 ELSE 1 END) * interval '1 day', 'a', 'b', 'c'
FROM generate_series(1, {all}) n;
INSERT INTO idempotency_keys (workspace_id, key, request_hash, run_id, created_at)
SELECT 'default', 'k' || id, 'h', id, CASE WHEN ended_at < now() - interval '2 days' THEN ended_at ELSE now() END
FROM runs;
INSERT INTO dead_letters (id, workspace_id, kind, subject, state, code, reason, first_at, last_at)
SELECT 'd' || n, 'ws' || n % 20, 'message', 'm' || n, CASE WHEN n % 2 = 0 THEN 'dead' ELSE 'redriven' END,
  'c', 'r', t, t
FROM (SELECT n, now() - (CASE WHEN n <= {old} THEN 100 ELSE 1 END) * interval '1 day' AS t
  FROM generate_series(1, {all}) n) x;
INSERT INTO workers (id, name, host, started_at)
SELECT 'w' || n, 'w', 'h', now() - (CASE WHEN n <= {old} THEN 60 ELSE 1 END) * interval '1 day'
FROM generate_series(1, {all}) n;
INSERT INTO worker_commands (worker_id, kind, given_by, at)
SELECT 'w' || n, 'cordon', 'x', now() - (CASE WHEN n <= {old} THEN 60 ELSE 1 END) * interval '1 day'
FROM generate_series(1, {all}) n;
"""


def touched(plan: dict[str, Any]) -> int:
    """The most rows that one scan read, those that it threw away included."""
    return max(
        int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in nodes(plan)
    )


WORK = {
    **{
        str(what): lambda store, what=what: store.prune(what, 14 * DAY, after=None, limit=10, dry_run=False)
        for what in Aged
        if what not in (Aged.RUNS, Aged.RECORDINGS, Aged.HOMES)
    },
    "aged_recordings": lambda store: store.aged_recordings(14 * DAY, after=None, limit=10),
    "aged_archives": lambda store: store.aged_archives(14 * DAY, after=None, limit=10),
    "aged_runs": lambda store: store.aged_runs(14 * DAY, after=None, limit=10, with_events=True),
    "prune_runs": lambda store: store.prune_runs([RunId(f"r{n}") for n in range(1, 11)], 14 * DAY),
    "evict": lambda store: store.evict_dead_letters(keep=500, since=timedelta(minutes=1)),
    "list": lambda store: store.dead_letters(LetterFilter(state=LetterState.DEAD, limit=10)),
    "list_theirs": lambda store: store.dead_letters(
        LetterFilter(workspace_id=WorkspaceId("ws2"), kind=LetterKind.MESSAGE, limit=10)
    ),
    "redrive": lambda store: store.redrive_chunk(["d2", "d4"], None, by="ops"),
    "purge": lambda store: store.purge_chunk(["d2", "d4"], None, by="ops"),
}


@pytest.fixture(scope="module", params=["analysed", "never analysed"])
def history(request: pytest.FixtureRequest, postgres_server: Any) -> Iterator[tuple[Store, Any]]:
    """A store with a history, and a connection beside it."""
    name = postgres_server.create()
    with postgres_server.connect(name) as connection:
        connection.execute(FILL.format(old=OLD, all=YOUNG + OLD))
        if request.param == "analysed":
            connection.execute("ANALYZE")
        store = open_store(postgres_server.url(name))
        yield store, connection
        store.close()
    postgres_server.drop(name)


@pytest.mark.parametrize("work", WORK)
def test_a_window_touches_few_pages_whatever_the_history(history: tuple[Store, Any], work: str) -> None:
    store, connection = history
    sent: list[tuple[str, Any]] = []

    def catch(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.lstrip().startswith(("SELECT", "DELETE", "UPDATE", "INSERT", "WITH")) and not many:
            sent.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", catch)
    try:
        WORK[work](store)
    finally:
        event.remove(Engine, "before_cursor_execute", catch)
    assert sent
    for statement, parameters in sent:
        with connection.transaction(force_rollback=True), ClientCursor(connection) as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; SET LOCAL jit = off")
            found = cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters).fetchone()
        plan = found[0][0]["Plan"]
        scans = [node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"]
        assert not scans, (scans, statement)
        assert pages(plan) < PAGES, (pages(plan), statement, plan)
        assert touched(plan) <= ROWS, (touched(plan), statement, plan)
