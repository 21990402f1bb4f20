"""What the broker ought to know: sessions with queued runs, delayed runs, runs it has not heard of.

Nothing here sorts or counts the backlog: the walk over sessions jumps from one to the next in an index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, select, text, update

from oah.adapters.sql.aggregate import Aggregate, Transaction, picked
from oah.adapters.sql.columns import MICROSECOND, age_us, now
from oah.adapters.sql.owners import owners_of
from oah.adapters.sql.rows import RUN_COLUMNS, run_of
from oah.adapters.sql.statements import Look
from oah.adapters.sql.tables import runs, sessions
from oah.core.model.ids import EpochId, RunId, SessionId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.ports.store import Accepted, DeferredRun, OwnerRow, QueuedSession

# From one session with queued runs to the next: one probe of ix_runs_waiting each.
WALK = text("""
WITH RECURSIVE w(session_id) AS (
  SELECT * FROM (SELECT session_id FROM runs WHERE status = 'queued' AND session_id > :after
    ORDER BY session_id LIMIT 1) AS first
  UNION ALL
  SELECT (SELECT r.session_id FROM runs r WHERE r.status = 'queued' AND r.session_id > w.session_id
    ORDER BY r.session_id LIMIT 1) FROM w WHERE w.session_id IS NOT NULL
)
SELECT session_id FROM w WHERE session_id IS NOT NULL LIMIT :limit
""")
WRONG_EPOCH = text("""
SELECT session_id FROM (SELECT session_id FROM runs WHERE status = 'queued' AND dispatched_epoch < :epoch LIMIT :limit)
  AS a
UNION ALL
SELECT session_id FROM (SELECT session_id FROM runs WHERE status = 'queued' AND dispatched_epoch > :epoch LIMIT :limit)
  AS b
""")
_UNHEARD = """
SELECT id FROM (SELECT id FROM runs WHERE status = 'queued' AND {} AND created_at <= {}
  ORDER BY dispatched_epoch, created_at LIMIT :limit) AS {}
"""
FEW = 4
"""So many pages of runs with a wrong epoch are read and sorted; beyond, all sessions are walked."""
SLACK_US = 100_000
"""A hold that ends within this is over: the broker's clock said so, and the clocks may differ a little."""


class Queues(Aggregate):
    """Reading queues for reconcile, rehydrate and relay; promoting what is due."""

    def queued_sessions(
        self, epoch: EpochId, *, after: SessionId | None, limit: int, wrong_epoch_only: bool = False
    ) -> list[QueuedSession]:
        """In the order of their ids. With ``wrong_epoch_only`` only those the broker has not heard of in this epoch."""
        with self._walking() as connection:
            if not wrong_epoch_only:
                return self._queued(connection, _walk(connection, after, limit), epoch)
            few = connection.execute(WRONG_EPOCH, {"epoch": epoch, "limit": FEW * limit + 1}).scalars().all()
            if len(few) <= FEW * limit:
                ids = sorted({session for session in few if session > (after or "")})[:limit]
                return self._queued(connection, ids, epoch)
            found: list[QueuedSession] = []
            while len(found) < limit and (ids := _walk(connection, after, limit)):
                found += [session for session in self._queued(connection, ids, epoch) if session.wrong_epoch]
                after = SessionId(ids[-1])
            return found[:limit]

    def queued_sessions_of(self, sessions: Sequence[SessionId], epoch: EpochId) -> list[QueuedSession]:
        """The sessions given as they stand, also those without queued runs."""
        with self._walking() as connection:
            return self._queued(connection, sorted(set(sessions)), epoch)

    def deferred(self, *, after: RunId | None, limit: int) -> list[DeferredRun]:
        """In the order of their ids."""
        statement = (
            select(
                runs.c.id,
                runs.c.session_id,
                runs.c.workspace_id,
                runs.c["class"].label("run_class"),
                age_us(runs.c.due_at).label("age"),
                sessions.c.pool,
                sessions.c.agent,
            )
            .join(sessions, sessions.c.id == runs.c.session_id)
            .where(text("runs.status = 'queued' AND runs.deferred"), runs.c.id > (after or ""))
            .order_by(runs.c.id)
            .limit(limit)
        )
        with self._walking() as connection:
            return [_deferred(row) for row in connection.execute(statement)]

    def unheard(self, epoch: EpochId, *, older_than: timedelta, limit: int) -> list[Accepted]:
        """Queued runs of which the broker has not heard in this epoch, oldest first within what it heard last."""
        before = (
            "clock_timestamp() - :age * interval '1 microsecond'"
            if self._database.dialect == "postgresql"
            else "now_us() - :age"
        )
        epochs = (
            "dispatched_epoch = ''",
            "dispatched_epoch > '' AND dispatched_epoch < :epoch",
            "dispatched_epoch > :epoch",
        )
        parts = [_UNHEARD.format(which, before, f"p{n}") for n, which in enumerate(epochs)]
        arguments = {"epoch": epoch, "age": older_than // MICROSECOND, "limit": limit}
        with self._walking() as connection:
            ids = connection.execute(text(" UNION ALL ".join(parts)), arguments).scalars().all()[:limit]
            return self._accepted(connection, ids)

    def promote(self, runs: Sequence[RunId], holds_ended: Sequence[SessionId], epoch: EpochId) -> list[QueuedSession]:
        """That a run is due, or a hold over, was judged by the broker's clock; here it only becomes true."""
        with self._database.read() as connection:
            of_runs = set(connection.execute(_sessions_of(runs)).scalars()) if runs else set()
        concerned = sorted({SessionId(session) for session in of_runs} | set(holds_ended))
        if not concerned:
            return []
        with self._transaction(concerned) as transaction:
            self._database.by_index(transaction.connection)
            _promote(transaction, runs, epoch)
            for session_id in holds_ended:
                if session_id in transaction.sessions:
                    _end_holds(transaction, session_id)
            return self._queued(transaction.connection, list(transaction.sessions), epoch)

    @contextmanager
    def _walking(self) -> Iterator[Connection]:
        with self._database.read() as connection:
            self._database.by_index(connection)
            yield connection

    def _queued(self, connection: Connection, ids: Sequence[str], epoch: EpochId) -> list[QueuedSession]:
        if not ids:
            return []
        looks = self._database.statements(connection).look(ids)
        owners = {owner.session_id: owner for owner in owners_of(self._database, connection, ids)}
        rows = connection.execute(_firsts(ids)).all()
        return [
            _queued_session(row, looks[row.id], owners.get(SessionId(row.id)), epoch) for row in rows if row.id in looks
        ]

    def _accepted(self, connection: Connection, ids: Sequence[str]) -> list[Accepted]:
        statement = (
            select(*picked(runs, RUN_COLUMNS), age_us(runs.c.due_at).label("age"), sessions.c.pool, sessions.c.agent)
            .join(sessions, sessions.c.id == runs.c.session_id)
            .where(runs.c.id.in_(ids))
        )
        rows = {row.id: row for row in connection.execute(statement)}
        looks = self._database.statements(connection).look(sorted({row.session_id for row in rows.values()}))
        return [_unheard(rows[run_id], looks[rows[run_id].session_id]) for run_id in ids if run_id in rows]


def _walk(connection: Connection, after: str | None, limit: int) -> list[str]:
    return list(connection.execute(WALK, {"after": after or "", "limit": limit}).scalars())


def _sessions_of(ids: Sequence[RunId]) -> Any:
    return select(runs.c.session_id).where(runs.c.id.in_(ids)).distinct()


def _firsts(ids: Sequence[str]) -> Any:
    """Per session its lane and its first eligible run, each by a probe of ix_runs_eligible."""

    def first(column: Any) -> Any:
        return (
            select(column)
            .where(runs.c.session_id == sessions.c.id, text("runs.status = 'queued' AND NOT runs.deferred"))
            .order_by(runs.c.position)
            .limit(1)
            .correlate(sessions)
            .scalar_subquery()
        )

    later = (
        select(runs.c.dispatched_epoch)
        .where(runs.c.session_id == sessions.c.id, text("runs.status = 'queued'"))
        .limit(1)
        .correlate(sessions)
        .scalar_subquery()
    )
    return (
        select(
            sessions.c.id,
            sessions.c.pool,
            sessions.c.agent,
            sessions.c.workspace_id,
            first(runs.c.id).label("first_run"),
            first(age_us(runs.c.queued_at)).label("age"),
            first(runs.c.dispatched_epoch).label("epoch"),
            later.label("other_epoch"),
        )
        .where(sessions.c.id.in_(ids))
        .order_by(sessions.c.id)
    )


def _queued_session(row: Any, look: Look, owner: OwnerRow | None, epoch: EpochId) -> QueuedSession:
    heard = row.epoch if row.first_run is not None else row.other_epoch
    return QueuedSession(
        session_id=SessionId(row.id),
        lane=Lane(row.pool, row.agent),
        workspace_id=WorkspaceId(row.workspace_id),
        ready_class=look.waiting,
        first_run_id=None if row.first_run is None else RunId(row.first_run),
        holds=look.reasons,
        until_in=look.until_in,
        owner=owner,
        oldest_age=timedelta(microseconds=max(0, row.age or 0)),
        wrong_epoch=heard is not None and heard != epoch,
        priority=look.priority,
    )


def _deferred(row: Any) -> DeferredRun:
    return DeferredRun(
        hear_session=SessionId(row.session_id),
        run_id=RunId(row.id),
        lane=Lane(row.pool, row.agent),
        workspace_id=WorkspaceId(row.workspace_id),
        ready_class=ReadyClass(row.run_class),
        due_in=timedelta(microseconds=max(0, -(row.age or 0))),
    )


def _unheard(row: Any, look: Look) -> Accepted:
    run = run_of(row[: len(RUN_COLUMNS)])
    due_in = timedelta(microseconds=max(0, -(row.age or 0))) if run.deferred else None
    waiting = look.waiting if look.waiting is not None and not run.deferred else ReadyClass(run.run_class.value)
    return Accepted(run, Lane(row.pool, row.agent), waiting, due_in, 0)


def _promote(transaction: Transaction, ids: Sequence[RunId], epoch: EpochId) -> None:
    """``deferred`` off with a new place, in the order in which they were due. A strict retry is not among them: it is
    never deferred, its session is held."""
    if not ids:
        return
    due = transaction.connection.execute(
        select(runs.c.id, runs.c.session_id)
        .where(runs.c.id.in_(ids), text("runs.status = 'queued' AND runs.deferred"))
        .order_by(runs.c.session_id, runs.c.due_at, runs.c.position)
    ).all()
    for row in due:
        place = transaction.take_position(SessionId(row.session_id))
        transaction.connection.execute(
            update(runs)
            .where(runs.c.id == row.id)
            .values(deferred=False, position=place, queued_at=now(), dispatched_epoch=epoch)
        )


def _end_holds(transaction: Transaction, session_id: SessionId) -> None:
    look = transaction.look(session_id)
    left = {reason: end for reason, end in look.holds.items() if end is None or end > look.now_us + SLACK_US}
    if left != look.holds:
        transaction.hot.hold(session_id, left)
