"""Column types and expressions that mean the same on both dialects.

Moments are ``timestamptz`` on PostgreSQL and integer microseconds since the epoch on SQLite (3.40 has no clock finer
than a millisecond; the connection registers ``now_us()``). Both keep microseconds exactly, which compare-and-set needs.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import JSON, BigInteger, Dialect
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

Json = JSON().with_variant(JSONB(), "postgresql")


def to_us(moment: datetime) -> int:
    """Microseconds since the epoch, exactly."""
    return (moment - EPOCH) // MICROSECOND


def from_us(us: int) -> datetime:
    """The moment so many microseconds after the epoch."""
    return EPOCH + timedelta(microseconds=us)


class Moment(TypeDecorator[datetime]):
    """An aware moment, to the microsecond."""

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The column type of the dialect."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(TIMESTAMP(timezone=True))
        return dialect.type_descriptor(BigInteger())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """An aware datetime as the dialect stores it."""
        if value is None or dialect.name == "postgresql":
            return value
        return to_us(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """What the dialect stores as an aware datetime."""
        if value is None or isinstance(value, datetime):
            return value
        return from_us(value)


class now(FunctionElement[datetime]):  # noqa: N801 - reads as the SQL function it is
    """The database's clock at this statement, not at the start of the transaction."""

    type = Moment()
    inherit_cache = True


@compiles(now, "postgresql")
def _now_postgresql(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    return "clock_timestamp()"


@compiles(now, "sqlite")
def _now_sqlite(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    return "now_us()"


class age_us(FunctionElement[int]):  # noqa: N801
    """Microseconds from the moment given until now, by the database's clock (negative: it is to come)."""

    type = BigInteger()
    inherit_cache = True


@compiles(age_us, "postgresql")
def _age_postgresql(element: age_us, compiler: SQLCompiler, **kw: Any) -> str:
    moment = compiler.process(element.clauses, **kw)
    return f"CAST(extract(epoch FROM clock_timestamp() - {moment}) * 1000000 AS bigint)"


@compiles(age_us, "sqlite")
def _age_sqlite(element: age_us, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(now_us() - {compiler.process(element.clauses, **kw)})"


class later(FunctionElement[datetime]):  # noqa: N801
    """So many microseconds after now, by the database's clock."""

    type = Moment()
    inherit_cache = True


@compiles(later, "postgresql")
def _later_postgresql(element: later, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(clock_timestamp() + {compiler.process(element.clauses, **kw)} * interval '1 microsecond')"


@compiles(later, "sqlite")
def _later_sqlite(element: later, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(now_us() + {compiler.process(element.clauses, **kw)})"


def duration(us: int | None) -> timedelta | None:
    """Microseconds as a duration; None stays None."""
    return None if us is None else timedelta(microseconds=us)
