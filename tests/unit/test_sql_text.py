"""Text, moments, cursors and foreign errors at the rim of the database."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta, timezone

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import exc

from oah.adapters.sql.columns import from_us, to_us
from oah.adapters.sql.faults import translate
from oah.adapters.sql.statements import remaining
from oah.adapters.sql.text import cleaned, dumped, require_sound, sound
from oah.errors import Broken, Conflict, InvalidRequest, Unavailable

any_text = st.text(alphabet=st.characters(codec=None))
"""Surrogates included."""


@given(any_text)
def test_cleaned_text_is_sound_and_sound_text_stays(text: str) -> None:
    assert sound(cleaned(text))
    if sound(text):
        assert cleaned(text) == text


def test_cleaning_replaces_only_what_cannot_be_kept() -> None:
    assert cleaned("a\0b") == "a\ufffdb"
    assert cleaned("x\ud83d\ude00y") == "x\U0001f600y", "a pair of surrogates is one character"
    assert "\ufffd" in cleaned("\udcff")


def test_what_people_send_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="title"):
        require_sound(input="fine", title="\0")
    with pytest.raises(InvalidRequest, match="metadata"):
        dumped("metadata", {"a": ["\ud800"]})
    with pytest.raises(InvalidRequest, match="metadata"):
        dumped("metadata", {"a": object()})
    assert dumped("metadata", {}) == "{}"
    assert dumped("metadata", {"backslash": "\\u0000 spelled out"}), "the text of an escape is no NUL"


@given(st.datetimes(datetime(1900, 1, 1), datetime(9000, 1, 1), timezones=st.just(UTC)))
def test_moments_keep_their_microseconds(moment: datetime) -> None:
    assert from_us(to_us(moment)) == moment
    assert to_us(moment.astimezone(timezone(timedelta(hours=5)))) == to_us(moment)


def test_holds_end_with_the_last_of_them() -> None:
    assert remaining({}, 0) is None
    assert remaining({"paused": None, "backoff": 5}, 0) is None
    assert remaining({"backoff": 3, "paused": 5}, 1) == timedelta(microseconds=4)
    assert remaining({"backoff": 3}, 9) == timedelta(0)


@pytest.mark.parametrize(
    ("foreign", "ours"),
    [
        (psycopg.errors.UndefinedTable("relation does not exist"), Unavailable),
        (psycopg.errors.UniqueViolation("x"), Conflict),
        (psycopg.errors.StringDataRightTruncation("x"), InvalidRequest),
        (psycopg.errors.DeadlockDetected("x"), Unavailable),
        (psycopg.errors.LockNotAvailable("x"), Unavailable),
        (psycopg.errors.AdminShutdown("x"), Unavailable),
        (psycopg.errors.SyntaxError("x"), Broken),
        (psycopg.errors.InFailedSqlTransaction("x"), Broken),
        (psycopg.errors.IdleInTransactionSessionTimeout("x"), Unavailable),
        (psycopg.errors.ReadOnlySqlTransaction("x"), Unavailable),
        (psycopg.errors.FeatureNotSupported("cached plan must not change result type"), Unavailable),
        (psycopg.InterfaceError("closed"), Unavailable),
        (sqlite3.OperationalError("database is locked"), Unavailable),
        (sqlite3.OperationalError("no such table: runs"), Unavailable),
        (sqlite3.OperationalError('near "x": syntax error'), Broken),
        (sqlite3.IntegrityError("UNIQUE"), Conflict),
        (sqlite3.DatabaseError("file is not a database"), Broken),
        (exc.TimeoutError("pool"), Unavailable),
        (exc.ArgumentError("x"), Broken),
        (exc.OperationalError("x", None, sqlite3.OperationalError("database is locked")), Unavailable),
    ],
)
def test_foreign_errors_become_ours(foreign: Exception, ours: type[Exception]) -> None:
    assert type(translate(foreign)) is ours


def test_what_is_not_the_databases_stays() -> None:
    error = ValueError("x")
    assert translate(error) is error
    ours = Conflict("x")
    assert translate(ours) is ours
