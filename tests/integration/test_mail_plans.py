"""A send, a read and a lease cost what they return, however long the mailbox is, on both databases.

The statements are those that the store really sends: they are caught on their way, then explained with the same
settings on the same data. On PostgreSQL rows and pages touched are compared, on SQLite the scans that its plan names.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from psycopg import ClientCursor
from sqlalchemy import event
from sqlalchemy.engine import Engine

from oah.adapters.sql.sqlite.connections import now_us
from oah.adapters.sql.store import open_store
from oah.core.model.ids import MailboxId
from oah.core.model.message import Priority
from oah.errors import LimitReached
from oah.ports.mailboxes import Watermarks
from tests.integration.test_retention_plans import touched
from tests.integration.test_sql_postgres_plans import nodes, pages
from tests.support.mail_clerk import MINUTE, MailClerk

LONG = 100_000
"""Messages in one mailbox; another thousand mailboxes have a few each."""
MOST_ROWS, MOST_PAGES = 120, 400
"""That a statement looks at for ten messages."""
BOX = MailboxId("mbx_long")

# The same rows on both: numbers from a recursive query, moments by each dialect's clock.
FILL = """
INSERT INTO mailboxes (id, workspace_id, address, public, description, max_messages, last_seq, messages, created_at,
  expires_at, counted)
WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1000)
SELECT 'mbx_' || n, 'default', 'box.' || n, {yes}, '', 1000, 3, 3, {now}, {later}, {yes} FROM n;
INSERT INTO mailbox_counters (workspace_id, mailboxes) VALUES ('default', 1000);
INSERT INTO mailboxes (id, workspace_id, address, public, description, max_messages, last_seq, messages, created_at)
VALUES ('mbx_long', 'default', 'long', {yes}, '', 1000000, {long}, {long}, {now});
INSERT INTO messages (id, mailbox_id, seq, priority, payload, headers, key, sent_at)
WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {long})
SELECT 'l' || n, 'mbx_long', n, n % 3, {bytes}, {bytes}, CASE WHEN n % 10 = 0 THEN 'k' || n END, {now} FROM n;
INSERT INTO messages (id, mailbox_id, seq, priority, payload, headers, sent_at, expires_at)
WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 3000)
SELECT 's' || n, 'mbx_' || (1 + n % 1000), 1 + n / 1000, 0, {bytes}, {bytes}, {now},
  CASE WHEN n > 100 THEN {later} ELSE {now} END FROM n;
INSERT INTO messages (id, mailbox_id, priority, payload, headers, sent_at, due_at)
WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 3000)
SELECT 'd' || n, 'mbx_' || (1 + n % 1000), 0, {bytes}, {bytes}, {now},
  CASE WHEN n > 100 THEN {later} ELSE {now} END FROM n;
INSERT INTO group_cursors (mailbox_id, group_name, priority, seq, seen_at)
SELECT 'mbx_long', 'g', p, 50000, {now} FROM (SELECT 0 AS p UNION SELECT 1 UNION SELECT 2) x;
INSERT INTO group_leases (mailbox_id, group_name, priority, seq, lease_id, holder, attempts, most_attempts, until)
WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 30)
SELECT 'mbx_long', 'g', n % 3, n, 'lease' || n, 'h' || n % 3, 1, 5, {later} FROM n;
INSERT INTO group_leases (mailbox_id, group_name, priority, seq, lease_id, holder, attempts, most_attempts, until)
WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 3000)
SELECT 'mbx_' || (1 + n % 1000), 'g', 0, 1 + n / 1000, 'x' || n, 'other' || n, 1, 1 + n % 2,
  CASE WHEN n > 100 THEN {later} ELSE {now} END FROM n;
INSERT INTO message_keys (mailbox_id, dedup_key, message_id, seq, until)
WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {long})
SELECT 'mbx_long', 'd' || n, 'l' || n, n, {later} FROM n
"""


def refused(mail: MailClerk, *, most: int) -> None:
    """There is no room."""
    with pytest.raises(LimitReached):
        mail.store.create_mailbox(mail.new_box("one too many"), most=most)


WORK = {
    "send": lambda mail: mail.store.send_messages([mail.new(to="long", dedup_key=f"new{n}") for n in range(10)]),
    "send with keys": lambda mail: mail.store.send_messages([mail.new(to="long", key=f"k{n}0") for n in range(1, 9)]),
    "send to many": lambda mail: mail.store.send_messages([mail.new(to=f"box.{n}") for n in range(7, 600, 60)]),
    "ready from the start": lambda mail: mail.ready(BOX, limit=10),
    "ready from the middle": lambda mail: mail.ready(BOX, Watermarks(dict.fromkeys(Priority, 70000)), limit=10),
    "ready at the end": lambda mail: mail.ready(BOX, Watermarks(dict.fromkeys(Priority, LONG)), limit=10),
    "list": lambda mail: mail.store.list_messages(BOX, limit=10, cursor="1.40000"),
    "peek": lambda mail: mail.store.peek_message(BOX, 50_000),
    "lease": lambda mail: mail.lease(BOX, limit=10),
    "lease of a new group": lambda mail: mail.lease(BOX, "new", limit=10),
    "ack": lambda mail: mail.store.settle_lease(BOX, "lease5", ack=True),
    "nack": lambda mail: mail.store.settle_lease(BOX, "lease6", ack=False, delay=MINUTE),
    "extend": lambda mail: mail.store.extend_leases("h1", lease=MINUTE),
    "ended": lambda mail: mail.store.ended_leases([BOX, *(MailboxId(f"mbx_{n}") for n in range(1, 200))]),
    "release": lambda mail: mail.store.release_holder("h2"),
    "delete": lambda mail: mail.store.delete_message(BOX, 60_000),
    "heads": lambda mail: mail.store.heads(dict.fromkeys([BOX, *(MailboxId(f"mbx_{n}") for n in range(1, 20))])),
    "create": lambda mail: mail.store.create_mailbox(mail.new_box("another"), most=2_000),
    "create too many": lambda mail: refused(mail, most=1_000),
    "sweep": lambda mail: mail.store.sweep_mail(limit=10),
}


class Caught:
    """Statements on their way to the database."""

    def __enter__(self) -> list[tuple[str, Any]]:
        self.sent: list[tuple[str, Any]] = []
        event.listen(Engine, "before_cursor_execute", self._catch)
        return self.sent

    def __exit__(self, *_: object) -> None:
        event.remove(Engine, "before_cursor_execute", self._catch)

    def _catch(self, conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.lstrip().startswith(("SELECT", "DELETE", "UPDATE", "INSERT", "WITH")):
            self.sent.append((statement, parameters[0] if many else parameters))


@pytest.fixture(scope="module", params=["analysed", "never analysed"])
def on_postgres(request: pytest.FixtureRequest, postgres_server: Any) -> Iterator[tuple[MailClerk, Any]]:
    """A store with a long mailbox, and a connection beside it."""
    name = postgres_server.create()
    words = {"now": "clock_timestamp()", "later": "clock_timestamp() + interval '1 hour'", "bytes": "'x'::bytea"}
    with postgres_server.connect(name) as connection:
        connection.execute(FILL.format(long=LONG, yes="true", **words))
        if request.param == "analysed":
            connection.execute("ANALYZE")
        store = open_store(postgres_server.url(name))
        yield MailClerk(store, postgres_server.url(name)), connection
        store.close()
    postgres_server.drop(name)


@pytest.fixture(scope="module")
def on_sqlite(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailClerk]:
    """The same in a file."""
    path = tmp_path_factory.mktemp("mail-plans") / "oah.db"
    shutil.copy(sqlite_template, path)
    us = now_us()
    words = {"now": str(us), "later": str(us + 3_600_000_000), "bytes": "x'78'", "yes": "1"}
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(FILL.format(long=LONG, **words))
    store = open_store(f"sqlite:///{path}")
    yield MailClerk(store, f"sqlite:///{path}")
    store.close()


@pytest.mark.parametrize("work", WORK)
def test_postgresql_touches_what_it_returns(on_postgres: tuple[MailClerk, Any], work: str) -> None:
    mail, connection = on_postgres
    with Caught() as sent:
        WORK[work](mail)
    assert sent
    for statement, parameters in sent:
        with connection.transaction(force_rollback=True), ClientCursor(connection) as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; SET LOCAL jit = off")
            if statement.startswith("INSERT"):
                continue  # it is one row, and there already
            found = cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters).fetchone()
        plan = found[0][0]["Plan"]
        scans = [node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"]
        assert not set(scans) - {"workspaces"}, (scans, statement)
        assert touched(plan) <= MOST_ROWS, (touched(plan), statement, plan)
        assert pages(plan) < MOST_PAGES, (pages(plan), statement, plan)


@pytest.mark.parametrize("work", WORK)
def test_sqlite_reads_by_index(on_sqlite: MailClerk, work: str) -> None:
    with Caught() as sent:
        WORK[work](on_sqlite)
    assert sent
    with closing(sqlite3.connect(on_sqlite.url.removeprefix("sqlite:///"))) as connection:
        connection.create_function("now_us", 0, now_us)
        for statement, parameters in sent:
            lines = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            walks = [line for line in lines if line.startswith("SCAN") and "CONSTANT ROW" not in line]
            tables = [line for line in walks if not line.startswith(("SCAN anon", "SCAN (", "SCAN json_each"))]
            assert not tables, (tables, lines, statement)
            assert not any("USE TEMP B-TREE FOR ORDER BY" in line for line in lines) or _few(statement), (
                lines,
                statement,
            )


def _few(statement: str) -> bool:
    """It sorts what it was given by name: as many rows as the caller has."""
    return "json_each" in statement or " IN (" in statement


def test_it_stays_so_when_the_statements_are_run(on_sqlite: MailClerk) -> None:
    """The work itself, as SQLite's virtual machine counts its steps: a read of ten out of a hundred thousand."""
    steps = [0]

    def step() -> int:
        steps[0] += 1
        return 0

    with closing(sqlite3.connect(on_sqlite.url.removeprefix("sqlite:///"))) as connection:
        connection.create_function("now_us", 0, now_us)
        connection.set_progress_handler(step, 100)
        with Caught() as sent:
            on_sqlite.ready(BOX, Watermarks(dict.fromkeys(Priority, 70000)), limit=10)
            on_sqlite.lease(BOX, "steps", limit=10)
        for statement, parameters in sent:
            if statement.startswith("SELECT"):
                connection.execute(statement, parameters).fetchall()
    assert steps[0] < 200, f"{steps[0] * 100} steps"
