"""Transactions are timed and the database's failures counted; a caller's errors are not its failures."""

from pathlib import Path

import pytest

from oah.adapters.prometheus.telemetry import PrometheusTelemetry
from oah.adapters.sql.measured import MeasuredDatabase
from oah.adapters.sql.sqlite.database import SqliteDatabase
from oah.errors import Conflict, InDoubt, OahError, Unavailable


@pytest.fixture
def telemetry() -> PrometheusTelemetry:
    return PrometheusTelemetry(process="test", version="0")


@pytest.fixture
def database(tmp_path: Path, telemetry: PrometheusTelemetry) -> MeasuredDatabase:
    return MeasuredDatabase(SqliteDatabase(f"sqlite:///{tmp_path / 'test.db'}", pool=2), telemetry)


def test_transactions_are_timed(database: MeasuredDatabase, telemetry: PrometheusTelemetry) -> None:
    with database.write() as connection:
        connection.exec_driver_sql("CREATE TABLE t (a)")
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM t").scalar_one() == 0
    assert telemetry.value("oah_sql_seconds_count", work="write") == 1
    assert telemetry.value("oah_sql_seconds_count", work="read") == 1
    database.close()


@pytest.mark.parametrize(
    ("error", "kind"), [(Unavailable("x"), "unavailable"), (InDoubt("x"), "in_doubt"), (Conflict("x"), None)]
)
def test_failures_are_counted_by_kind(
    database: MeasuredDatabase, telemetry: PrometheusTelemetry, error: OahError, kind: str | None
) -> None:
    with pytest.raises(type(error)), database.write():
        raise error
    counted = {one: telemetry.value("oah_sql_errors_total", kind=one) for one in ("unavailable", "in_doubt", "broken")}
    assert {one for one, times in counted.items() if times} == ({kind} if kind else set())
    assert telemetry.value("oah_sql_seconds_count", work="write") == 1
    database.close()
