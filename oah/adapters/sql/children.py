"""Runs whose parent was stopped, found by index, a page at a time; sessions that agents open for children."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, and_, exists, or_, select

from oah.adapters.sql.aggregate import Aggregate, picked
from oah.adapters.sql.child_submits import current
from oah.adapters.sql.rows import SESSION_COLUMNS, session_of
from oah.adapters.sql.sessions import insert_session
from oah.adapters.sql.tables import run_steps, runs, sessions
from oah.adapters.sql.text import require_sound
from oah.core.model.ids import RunId
from oah.core.model.run import StopReason
from oah.core.model.session import Session
from oah.errors import Conflict
from oah.ports.children import Child, Parent

LIVE = ("queued", "running", "waiting_tool")
CASCADING = (StopReason.CANCEL, StopReason.PARENT, StopReason.INTERRUPT, StopReason.ROLLBACK)
"""Reasons that end a run as cancelled; a run that runs into a time-out leaves its children alone."""


def awaiting(connection: Connection, of: Sequence[RunId]) -> set[RunId]:
    """Those of the runs that have live children to wait for: one in the parent's own session begins after its end."""
    child, parent = runs.alias("c"), runs.alias("p")
    statement = (
        select(child.c.parent_run_id)
        .select_from(child.join(parent, parent.c.id == child.c.parent_run_id))
        .where(
            child.c.parent_run_id.in_(list(of)),
            child.c.parent_run_id.is_not(None),
            child.c.status.in_(LIVE),
            child.c.session_id != parent.c.session_id,
        )
    )
    return {RunId(row[0]) for row in connection.execute(statement.distinct())}


class Children(Aggregate):
    """See ports.children.ChildrenStore."""

    def open_child_session(self, session: Session, parent: Parent) -> tuple[Session, bool]:
        """Under the lock of the run's session, which whoever ends the attempt has, too."""
        require_sound(id=session.id)
        with self._transaction([parent.session_id]) as transaction:
            row = current(transaction.hot.parents([parent.run_id]), parent)
            statement = select(*picked(sessions, SESSION_COLUMNS)).where(sessions.c.id == session.id)
            found = transaction.connection.execute(statement).first()
            if found is not None:
                earlier = session_of(found)
                if (earlier.parent_run_id, earlier.lane) != (parent.run_id, session.lane):
                    raise Conflict("the idempotency key was used for another session", code="idempotency_conflict")
                return earlier, True
            if row.opened >= parent.bounds.in_all:
                raise Conflict(f"a run opens at most {parent.bounds.in_all} sessions", code="too_many_children")
            insert_session(transaction.connection, session)
            return session_of(transaction.connection.execute(statement).one()), False

    def parents_of_live(self, *, after: RunId | None, limit: int) -> list[RunId]:
        """One walk over the index of live children."""
        statement = (
            select(runs.c.parent_run_id)
            .where(runs.c.parent_run_id.is_not(None), runs.c.status.in_(LIVE), runs.c.cancel_requested_at.is_(None))
            .distinct()
            .order_by(runs.c.parent_run_id)
            .limit(limit)
        )
        if after is not None:
            statement = statement.where(runs.c.parent_run_id > after)
        with self._database.read() as connection:
            return [RunId(row[0]) for row in connection.execute(statement)]

    def with_live_children(self, runs: Sequence[RunId]) -> set[RunId]:
        """By the index of live children."""
        if not runs:
            return set()
        with self._database.read() as connection:
            return awaiting(connection, runs)

    def children_to_cancel(self, parents: Sequence[RunId], *, limit: int) -> list[Child]:
        """In the order in which they were submitted."""
        if not parents:
            return []
        child, parent = runs.alias("c"), runs.alias("p")
        stopping = and_(
            parent.c.status.in_(("running", "waiting_tool")),
            parent.c.cancel_requested_at.is_not(None),
            parent.c.stop_reason.in_(CASCADING),
        )
        ended = and_(parent.c.status == "cancelled", child.c.created_at <= parent.c.ended_at)
        # By hand, since the parent was cancelled: whatever has become of the run since, somebody wants it.
        put_back = exists().where(
            run_steps.c.run_id == child.c.id,
            run_steps.c.name == "run.requeued",
            run_steps.c.at > parent.c.cancel_requested_at,
            run_steps.c.data["requeued_by"].as_string().is_not(None),
        )
        statement = (
            select(child.c.id, parent.c.cancel_requested_by)
            .select_from(child.join(parent, parent.c.id == child.c.parent_run_id))
            .where(
                child.c.parent_run_id.in_(list(parents)),
                child.c.parent_run_id.is_not(None),
                child.c.status.in_(LIVE),
                child.c.cancel_requested_at.is_(None),
                or_(stopping, ended),
                ~put_back,
            )
            .order_by(child.c.created_at)
            .limit(limit)
        )
        with self._database.read() as connection:
            return [Child(RunId(row[0]), row[1] or "") for row in connection.execute(statement)]
