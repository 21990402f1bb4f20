"""Cursors of listings: newest first, by the moment of creation and the id."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, Table, and_, or_

from oah.adapters.sql.columns import from_us, to_us
from oah.errors import InvalidRequest
from oah.ports.store import Page

T = TypeVar("T")

LONGEST = 1_000
"""The longest page anybody gets."""


def cursor_of(created_at: datetime, row_id: str) -> str:
    """An opaque cursor that stands behind the row."""
    return base64.urlsafe_b64encode(f"{to_us(created_at)}|{row_id}".encode()).decode().rstrip("=")


def behind(table: Table, cursor: str, *, by: str = "created_at") -> ColumnElement[bool]:
    """The condition for rows behind the cursor; ``by``: the column of their order. Raises InvalidRequest."""
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        us, _, row_id = text.partition("|")
        created_at = from_us(int(us))
    except (binascii.Error, ValueError, OverflowError) as error:
        raise InvalidRequest("this is no cursor of ours", hint="pass next_cursor of the page before") from error
    created = table.c[by]
    return or_(created < created_at, and_(created == created_at, table.c.id < row_id))


def paged(
    connection: Connection,
    statement: Select[Any],
    table: Table,
    make: Callable[[Any], T],
    stamp: Callable[[T], tuple[datetime, str]],
    *,
    cursor: str | None,
    limit: int,
    by: str = "created_at",
) -> Page[T]:
    """A page of the statement, newest first; ``by``: the moment that says so."""
    if limit < 1:
        raise InvalidRequest("limit must be at least 1")
    limit = min(limit, LONGEST)
    if cursor is not None:
        statement = statement.where(behind(table, cursor, by=by))
    rows = connection.execute(statement.order_by(table.c[by].desc(), table.c.id.desc()).limit(limit + 1)).all()
    items: Sequence[T] = [make(row) for row in rows[:limit]]
    return Page(tuple(items), cursor_of(*stamp(items[-1])) if len(rows) > limit else None)
