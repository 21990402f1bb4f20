"""Events, read after a cursor. They are written where things happen, under the session's lock."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import BigInteger, String, and_, case, column, func, select, values

from oah.adapters.sql.aggregate import Aggregate, picked
from oah.adapters.sql.rows import EVENT_COLUMNS, event_of
from oah.adapters.sql.tables import run_events
from oah.core.model.event import Event
from oah.core.model.ids import RunId, SessionId


class Events(Aggregate):
    """Reading events."""

    def events(self, session_id: SessionId, *, after: int, limit: int, run_id: RunId | None = None) -> list[Event]:
        """The session's events (or one run's) with a number above ``after``, in order."""
        statement = (
            select(*picked(run_events, EVENT_COLUMNS))
            .where(run_events.c.session_id == session_id, run_events.c.number > after)
            .order_by(run_events.c.number)
            .limit(limit)
        )
        if run_id is not None:
            statement = statement.where(run_events.c.run_id == run_id)
        with self._database.read() as connection:
            return [event_of(row) for row in connection.execute(statement)]

    def events_since(self, cursors: Mapping[SessionId, int], *, limit: int) -> list[Event]:
        """Of each session after its cursor, in one statement; a fair share of ``limit`` each, so none is starved."""
        if not cursors:
            return []
        named = values(column("session_id", String), column("behind", BigInteger), name="asked")
        asked = named.data(list(cursors.items())).cte("asked")
        share = max(1, limit // len(cursors))
        # Numbers have no gaps, so a range is a limit; what retention took lies below the oldest one.
        oldest = (
            select(func.coalesce(func.min(run_events.c.number), 1) - 1)
            .where(run_events.c.session_id == asked.c.session_id)
            .scalar_subquery()
        )
        starts = select(
            asked.c.session_id, case((asked.c.behind < oldest, oldest), else_=asked.c.behind).label("behind")
        ).cte("starts")
        statement = (
            select(*picked(run_events, EVENT_COLUMNS))
            .select_from(starts)
            .join(
                run_events,
                and_(
                    run_events.c.session_id == starts.c.session_id,
                    run_events.c.number > starts.c.behind,
                    run_events.c.number <= starts.c.behind + share,
                ),
            )
            .order_by(run_events.c.session_id, run_events.c.number)
            .limit(limit)
        )
        with self._database.read() as connection:
            return [event_of(row) for row in connection.execute(statement)]
