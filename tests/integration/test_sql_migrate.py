"""The schema: made once whoever starts first, equal to the tables in the code, refused when it is newer."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from oah.adapters.sql.store import open_store
from oah.adapters.sql.tables import metadata
from oah.errors import Broken, Unavailable
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
