"""The schema: made once whoever starts first, equal to the tables in the code, refused when it is newer."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from oah.adapters.sql.migrate import alembic_configuration, revisions
from oah.adapters.sql.store import open_store
from oah.adapters.sql.tables import metadata
from oah.core.model.ids import ClaimToken, RunId, SessionId, WorkerId
from oah.core.model.run import OnBusy, OrderMode, RunStatus, StopReason
from oah.errors import Broken, Unavailable
from oah.ports.commands import CommandKind
from oah.ports.store import RunFence
from tests.support.servers_sql import PostgresServer
from tests.support.store_clerk import Clerk


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path):  # type: ignore[no-untyped-def]
    """A database without a schema."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'new' / 'oah.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = server.create(template="template0")
    yield server.url(name)
    server.drop(name)


def test_a_database_without_schema_says_so(empty_url: str) -> None:
    store = open_store(empty_url)
    for call in (store.check, store.workspaces, lambda: Clerk(store, empty_url).send(Clerk(store, empty_url).new())):
        with pytest.raises(Unavailable) as error:
            call()
        assert error.value.code == "not_migrated"
        assert error.value.hint is not None and "upgrade" in error.value.hint
    store.close()


def test_migrating_twice_and_at_once_makes_one_schema(empty_url: str) -> None:
    stores = [open_store(empty_url) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda store: store.migrate(), stores))
    for store in stores:
        store.migrate()
        store.check()
        assert [workspace.id for workspace in store.workspaces()] == ["default"]
        store.close()


def test_the_migrations_make_what_the_code_expects(store_url: str) -> None:
    store = open_store(store_url)
    with store._database.read() as connection, warnings.catch_warnings():  # type: ignore[attr-defined]
        warnings.simplefilter("error")
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []
    store.close()


def test_a_newer_schema_is_refused(store_url: str) -> None:
    clerk = Clerk(open_store(store_url), store_url)
    clerk.behind.query("UPDATE alembic_version SET version_num = '9999'")
    try:
        with pytest.raises(Broken) as error:
            clerk.store.migrate()
        assert error.value.code == "schema_too_new"
    finally:
        clerk.behind.query("UPDATE alembic_version SET version_num = '0001'")
        clerk.store.close()


def test_partial_indexes_are_what_the_invariants_need(store_url: str) -> None:
    """I2 is the database's own: it refuses a second active run whoever writes it."""
    clerk = Clerk(open_store(store_url), store_url)
    clerk.session()
    clerk.submit(run_id="a")
    clerk.submit(run_id="b")
    clerk.start()
    with pytest.raises(Exception, match=r"ux_runs_active|UNIQUE"):
        clerk.behind.query("UPDATE runs SET status = 'waiting_tool' WHERE id = 'b'")
    clerk.store.close()


BEFORE = """
INSERT INTO sessions (id, workspace_id, pool, agent, next_position, event_seq, queued_count, created_at)
  VALUES ('s1', 'default', 'default', 'shell', 4, 2, 1, {now});
INSERT INTO runs (id, session_id, workspace_id, position, class, class_rank, input, status, attempt, worker_id,
  claim_token, started_at, cancel_requested_at, cancel_requested_by, created_at, queued_at)
  VALUES ('asked', 's1', 'default', 2, 'interactive', 1, 'x', 'running', 1, 'w.1', 'token', {now}, {now}, 'me', {now},
  {now});
INSERT INTO runs (id, session_id, workspace_id, position, class, class_rank, input, status, created_at, queued_at)
  VALUES ('waits', 's1', 'default', 3, 'interactive', 1, 'x', 'queued', {now}, {now});
INSERT INTO runs (id, session_id, workspace_id, position, class, class_rank, input, status, attempt, ended_at,
  created_at, queued_at) VALUES ('over', 's1', 'default', 1, 'interactive', 1, 'x', 'failed', 1, {now}, {now}, {now});
INSERT INTO run_attempts (run_id, attempt, reason, worker_id, claim_token, started_at, ended_at)
  VALUES ('asked', 1, 'first', 'w.1', 'token', {now}, NULL), ('over', 1, 'first', 'w.1', 'old', {now}, {now});
INSERT INTO session_owners (session_id, worker_id, claim_token, seen_at) VALUES ('s1', 'w.1', 'token', {now});
INSERT INTO run_events (session_id, number, run_id, type, at) VALUES ('s1', 1, 'over', 'run.failed', {now}),
  ('s1', 2, 'asked', 'run.started', {now});
INSERT INTO run_steps (run_id, number, attempt, kind, name, at) VALUES ('over', 1, 1, 'system', 'noted', {now});
INSERT INTO worker_commands (worker_id, kind, given_by, at) VALUES ('w.1', 'cordon', 'me', {now});
INSERT INTO workspace_counters (workspace_id, part, queued) VALUES ('default', 0, 1);
INSERT INTO audit (at, actor, action, subject) VALUES ({now}, 'me', 'run.requeued', 'over')
"""
"""What a database of the first schema may hold: a run that is asked to stop, one that waits, one that is over."""


def test_work_of_the_schema_before_goes_on(empty_url: str) -> None:
    store = open_store(empty_url)
    database = store._database  # type: ignore[attr-defined]
    with database.migrating() as connection:
        configuration = alembic_configuration()
        configuration.attributes["connection"] = connection
        command.upgrade(configuration, "0001")
    clock = "now()" if empty_url.startswith("postgres") else "now_us()"
    with database.write() as connection:
        for statement in BEFORE.split(";"):
            connection.execute(text(statement.format(now=clock)))
    store.migrate()
    clerk = Clerk(store, empty_url)
    clerk.audit()
    fence = RunFence(SessionId("s1"), RunId("asked"), 1, ClaimToken("token"))
    (stop,) = store.mark(WorkerId("w.1"), [(fence.session_id, fence.token)], timeout=timedelta(5)).stops
    assert (stop.fence, stop.reason, stop.by) == (fence, StopReason.CANCEL, "me")
    assert [each.kind for each in store.take_commands(WorkerId("w.1"))] == [CommandKind.CORDON]
    assert clerk.settle(fence, RunStatus.CANCELLED).applied
    assert (clerk.run("waits").max_retries, clerk.run("waits").order_mode) == (0, OrderMode.STRICT), "as it was said"
    first = clerk.submit(run_id="first", on_busy=OnBusy.INTERRUPT)
    store.requeue(RunId("over"), None, by="me")
    order = []
    for _ in range(3):
        start = clerk.start()
        order.append(start.run.id)
        clerk.settle(start)
    assert order == [first.id, "waits", "over"]
    assert [step.name for step in store.steps(RunId("over"))] == ["noted", "run.requeued"]
    clerk.audit()
    store.close()


def test_the_files_of_versions_are_named_as_alembic_knows_them() -> None:
    """Processes look at the schema without loading Alembic, and go by the files' names."""
    walked = ScriptDirectory.from_config(alembic_configuration()).walk_revisions()
    assert revisions() == tuple(script.revision for script in reversed(list(walked)))


def test_mailboxes_of_the_schema_before_are_counted(empty_url: str) -> None:
    store = open_store(empty_url)
    database = store._database  # type: ignore[attr-defined]
    with database.migrating() as connection:
        configuration = alembic_configuration()
        configuration.attributes["connection"] = connection
        command.upgrade(configuration, "0004")
    clock = "now()" if empty_url.startswith("postgres") else "now_us()"
    boxes = "INSERT INTO mailboxes (id, workspace_id, address, public, description, max_messages, created_at,"
    with database.write() as connection:
        connection.execute(text(f"{boxes} session_id) VALUES ('s', 'default', 'ses_1', true, '', 1, {clock}, 'ses_1')"))
        for name, ends in (("lives", "NULL"), ("dead", clock)):
            values = f"('{name}', 'default', '{name}', true, '', 1, {clock}, {ends})"
            connection.execute(text(f"{boxes} expires_at) VALUES {values}"))
    store.migrate()
    behind = Clerk(store, empty_url).behind
    assert behind.query("SELECT id FROM mailboxes WHERE counted") == [("lives",)]
    assert behind.query("SELECT workspace_id, mailboxes FROM mailbox_counters") == [("default", 1)]
    store.close()
