"""The hot statements read what they need by index, whatever the backlog, also by plans made on empty tables (I8).

Statements are prepared while the tables are empty and analysed as empty; then a burst comes, nobody analyses again, and
the same plan is executed. What is compared is pages touched, never time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import ClientCursor
from sqlalchemy import create_engine, text

from oah.adapters.sql import counts, limits, queues, waits
from oah.adapters.sql.postgres import connections, execution, submit
from oah.adapters.sql.postgres.connections import BoundedConnection, Connector
from oah.adapters.sql.statements import OutputRow, RunRow, SettleRow
from oah.adapters.sql.store import open_store
from oah.core.model.run import RunClass
from tests.support import eventually
from tests.support.store_clerk import EPOCH, Clerk

SESSIONS = 40
BURST = 250
"""Runs per session after the burst: ten thousand in all."""

OBVIOUS_START = execution.START.replace(
    "WHERE r.id = ANY(ARRAY(SELECT id FROM p)) AND r.id = p.id AND r.status = p.status AND r.deferred = p.deferred",
    "WHERE r.id = p.id AND r.status = 'queued' AND NOT r.deferred",
)


def hot(sessions: list[str], runs: list[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Every hot statement with arguments for these sessions and a run of each."""
    n = len(sessions)
    claims = {"sessions": sessions, "tokens": ["t"] * n, "suspects": [True] * n, "helds": [False] * n}
    start = {**claims, "worker": "w", "epoch": EPOCH, "part": 0}
    fenced = {"session_id": sessions, "run_id": runs, "attempt": [1] * n, "token": ["t"] * n, "part": 0}
    settle = {name: ["x"] * n for name in SettleRow._fields} | fenced
    settle |= {"status": ["completed"] * n, "exit_code": [0] * n, "keep_owner": [False] * n, "data": ["{}"] * n}
    output = {name: ["{}"] * n for name in OutputRow._fields} | fenced
    new = {name: [None] * n for name in RunRow._fields}
    new |= {"id": [f"new-{s}" for s in sessions], "session_id": sessions, "workspace_id": ["default"] * n}
    new |= {"position": [10**6] * n, "number": [10**6] * n, "run_class": ["interactive"] * n, "class_rank": [0] * n}
    new |= {"input": ["x"] * n, "metadata": ["{}"] * n, "max_retries": [0] * n, "data": ["{}"] * n}
    new |= {"order_mode": ["strict"] * n, "priority": [0] * n}
    return {
        "lock": (execution.LOCK, {"sessions": sessions}),
        "lock_only": (execution.LOCK_ONLY, {"sessions": sessions}),
        "start": (execution.START, start),
        "settle": (execution.SETTLE, settle),
        "release": (execution.RELEASE, fenced),
        "output": (execution.OUTPUT, output),
        "look": (execution.LOOK, {"sessions": sessions}),
        "heard": (execution.HEARD, {"runs": runs, "epoch": EPOCH}),
        "active": (execution.ACTIVE_SESSIONS, {"sessions": sessions}),
        "drop": (execution.DROP_OWNERS, {"sessions": sessions, "tokens": ["t"] * n, "worker": "w"}),
        "lock_for_submit": (submit.LOCK_FOR_SUBMIT, {"sessions": sessions}),
        "parents": (submit.PARENTS, {"runs": runs}),
        "submit": (submit.INSERT, {**new, "part": 0}),
        "mark": (connections.MARK, {"sessions": sessions, "tokens": ["t"] * n, "worker": "w"}),
        "signals": (connections.SIGNALS, {"sessions": sessions, "tokens": ["t"] * n}),
        "obvious": (OBVIOUS_START, start),
    }


class Planned:
    """A connection with everything prepared on empty tables."""

    def __init__(self, connection: BoundedConnection) -> None:
        self.connection = connection
        self.names: dict[str, list[str]] = {}
        for name, (statement, _) in hot(["-"], ["-"]).items():
            order: list[str] = []

            def numbered(match: re.Match[str], order: list[str] = order) -> str:
                if match[1] not in order:
                    order.append(match[1])
                return f"${order.index(match[1]) + 1}"

            connection.execute(f"PREPARE {name} AS " + re.sub(r"%\((\w+)\)s", numbered, statement), prepare=False)
            self.names[name] = order
        for name in self.names:
            self.explain(name, ["-"], ["-"], options="FORMAT JSON")  # makes the generic plan, on what is empty

    def explain(
        self, name: str, sessions: list[str], runs: list[str], *, options: str = "ANALYZE, BUFFERS, FORMAT JSON"
    ) -> dict[str, Any]:
        """Execute it for these sessions, undo it, and return the plan with what was touched."""
        _, arguments = hot(sessions, runs)[name]
        values = [arguments[argument] for argument in self.names[name]]
        holes = ", ".join(["%s"] * len(values))
        with self.connection.transaction(force_rollback=True):
            statement = f"EXPLAIN ({options}) EXECUTE {name}({holes})"
            with ClientCursor(self.connection) as cursor:
                found = cursor.execute(statement, values).fetchone()
        assert found is not None
        plan: dict[str, Any] = found[0][0]["Plan"]
        return plan


def pages(plan: dict[str, Any]) -> int:
    """Pages touched, children included."""
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The plan's nodes."""
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def walked(plan: dict[str, Any]) -> int:
    """The most rows that a scan of a table threw away."""
    return max(int(node.get("Rows Removed by Filter", 0) * node["Actual Loops"]) for node in nodes(plan))


@pytest.fixture(scope="module")
def figures(postgres_server: Any) -> Iterator[dict[str, tuple[dict[str, Any], dict[str, Any]]]]:
    """Per statement its plan's execution with a few runs queued, and after the burst."""
    name = postgres_server.create()
    url = postgres_server.url(name)
    with postgres_server.connect(name) as connection:
        connection.execute("ANALYZE")
    connection = Connector(url).dispatch()
    connection.autocommit = True
    planned = Planned(connection)
    clerk = Clerk(open_store(url), url)
    sessions = [f"s{n:02}" for n in range(SESSIONS)]
    for session in sessions:
        clerk.session(session)
        clerk.submit(session, f"{session}-0000", run_class=RunClass.BACKGROUND)
    few = {k: planned.explain(k, sessions[::10], [f"{s}-0000" for s in sessions[::10]]) for k in planned.names}
    for n in range(1, BURST):
        clerk.send(*(clerk.new(session, f"{session}-{n:04}") for session in sessions))
    many = {k: planned.explain(k, sessions[::10], [f"{s}-0000" for s in sessions[::10]]) for k in planned.names}
    yield {k: (few[k], many[k]) for k in planned.names}
    clerk.store.close()
    connection.close()
    postgres_server.drop(name)


@pytest.mark.parametrize("name", [name for name in hot([], []) if name != "obvious"])
def test_i8_a_burst_on_empty_analysed_tables_touches_no_more_pages(
    figures: dict[str, tuple[dict[str, Any], dict[str, Any]]], name: str
) -> None:
    few, many = figures[name]
    assert not [node for node in nodes(many) if node["Node Type"] == "Seq Scan"]
    assert walked(many) <= 8, "nothing is walked and thrown away"
    # An index over ten thousand runs is a level or two deeper than one over forty.
    assert pages(many) <= 2 * pages(few) + 60, (pages(few), pages(many))


def test_the_obvious_start_would_be_caught(figures: dict[str, tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Its plan walks all queued runs: the test above measures what it says."""
    few, many = figures["obvious"]
    assert pages(many) > 3 * pages(few) + 60, (pages(few), pages(many))


def test_the_walk_over_sessions_probes_once_per_session(postgres_fresh_url: str) -> None:
    """Reconcile's page costs what the page is long, not what waits behind it."""
    clerk = Clerk(open_store(postgres_fresh_url), postgres_fresh_url)
    for n in range(100):
        clerk.session(f"s{n:03}")
    for _ in range(20):
        clerk.send(*(clerk.new(f"s{n:03}") for n in range(100)))
    engine = create_engine(postgres_fresh_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        connection.execute(text("SET enable_seqscan = off"))
        connection.execute(text("SET enable_sort = off"))
        explained = text("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + queues.WALK.text)
        plan = connection.execute(explained, {"after": "", "limit": 10}).scalar_one()[0]["Plan"]
    engine.dispose()
    clerk.store.close()
    assert walked(plan) <= 10
    assert pages(plan) <= 10 * 8


def test_a_diagnosis_looks_at_what_is_old_not_at_what_waits(postgres_fresh_url: str) -> None:
    """Two thousand runs wait; three of them for long: the others are not touched."""
    clerk = Clerk(open_store(postgres_fresh_url), postgres_fresh_url)
    for n in range(100):
        clerk.session(f"s{n:03}")
    for _ in range(20):
        clerk.send(*(clerk.new(f"s{n:03}") for n in range(100)))
    old = "queued_at = queued_at - interval '1 hour', created_at = created_at - interval '1 hour'"
    clerk.behind.query(f"UPDATE runs SET {old} WHERE id IN (SELECT id FROM runs ORDER BY id LIMIT 3)")
    engine = create_engine(postgres_fresh_url.replace("postgresql://", "postgresql+psycopg://"))
    statement = waits._waiting("postgresql", timedelta(minutes=1), None, 20)
    with engine.connect() as connection:
        connection.execute(text("SET enable_seqscan = off; SET enable_sort = off"))
        words = str(statement.compile(connection, compile_kwargs={"literal_binds": True}))
        explained = connection.exec_driver_sql("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + words.replace("%", "%%"))
        plan = explained.scalar_one()[0]["Plan"]
    engine.dispose()
    found = clerk.store.diagnosis(
        None, lease=timedelta(0), unheeded_for=timedelta(0), waiting_for=timedelta(minutes=1), limit=20
    )
    clerk.store.close()
    assert len(found.waiting) == 3
    assert pages(plan) <= 40, pages(plan)


def test_the_load_is_counted_by_what_is_active_not_by_what_waits(postgres_fresh_url: str) -> None:
    """Two thousand runs wait in two hundred sessions, three run."""
    clerk = Clerk(open_store(postgres_fresh_url), postgres_fresh_url)
    for n in range(200):
        clerk.session(f"s{n:03}")
    for _ in range(10):
        clerk.send(*(clerk.new(f"s{n:03}") for n in range(200)))
    for n in range(3):
        clerk.start(f"s{n:03}")
    engine = create_engine(postgres_fresh_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        connection.execute(text("SET enable_seqscan = off; SET enable_sort = off"))
        explained = text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {counts.LANE_RUNS.compile(connection)}")
        plan = connection.execute(explained).scalar_one()[0]["Plan"]
    engine.dispose()
    found = clerk.store.lane_runs()
    clerk.store.close()
    assert [each.running for each in found.values()] == [3]
    assert walked(plan) == 0
    assert pages(plan) <= 40, pages(plan)


@pytest.mark.parametrize("what", ["expired", "overdue"])
def test_limits_look_at_what_has_passed_not_at_what_is_to_come(postgres_fresh_url: str, what: str) -> None:
    """A thousand limits lie ahead, three have passed: the leader's look each second touches those."""
    clerk = Clerk(open_store(postgres_fresh_url), postgres_fresh_url)
    for n in range(20):
        clerk.session(f"s{n:03}")
    ahead = {"start_timeout": timedelta(hours=1), "deadline_at": datetime.now(UTC) + timedelta(hours=1)}
    for _ in range(50):
        clerk.send(*(clerk.new(f"s{n:03}", **ahead) for n in range(20)))
    three = "id IN (SELECT id FROM runs ORDER BY id LIMIT 3)"
    clerk.behind.query(f"UPDATE runs SET start_by = now() - interval '1 hour' WHERE {three}")
    steps = "INSERT INTO run_steps (run_id, number, attempt, kind, name, at, deadline_at) SELECT id, 1, 1, 'tool', 'x',"
    clerk.behind.query(f"{steps} now(), now() + interval '1 hour' FROM runs")
    clerk.behind.query(f"UPDATE run_steps SET deadline_at = now() - interval '1 hour' WHERE run_{three}")
    engine = create_engine(postgres_fresh_url.replace("postgresql://", "postgresql+psycopg://"))
    statement = (limits._EXPIRED if what == "expired" else limits._OVERDUE).format(now="(SELECT clock_timestamp())")
    with engine.connect() as connection:
        connection.execute(text("SET enable_seqscan = off; SET enable_sort = off"))
        explained = text("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement)
        plan = connection.execute(explained, {"limit": 500}).scalar_one()[0]["Plan"]
    engine.dispose()
    found = clerk.store.expire_queued(limit=10) if what == "expired" else clerk.store.stop_overdue(limit=10)
    clerk.store.close()
    assert len(found) == (3 if what == "expired" else 0), "steps of queued runs stop nobody"
    assert walked(plan) == 0
    assert pages(plan) <= 40, pages(plan)


def test_sessions_are_updated_in_place(postgres_fresh_url: str) -> None:
    """No column that the hot path changes stands in an index of sessions or owners."""
    clerk = Clerk(open_store(postgres_fresh_url), postgres_fresh_url)
    clerk.session()
    for _ in range(20):
        clerk.submit()
        clerk.settle(clerk.start(token="f" * 32), keep=True)
    clerk.store.close()

    def figures() -> dict[str, tuple[int, int]]:
        rows = clerk.behind.query(
            "SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables"
            " WHERE relname IN ('sessions', 'session_owners')"
        )
        return {row[0]: (row[1], row[2]) for row in rows}

    found = eventually(lambda: figures() if figures()["sessions"][0] >= 60 else None, what="the statistics arrive")
    for table, (updates, in_place) in found.items():
        assert in_place >= 0.9 * updates, (table, updates, in_place)
