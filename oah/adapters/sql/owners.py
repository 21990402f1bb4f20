"""Owner rows: who says that it runs or keeps a session, when it said so last, and with which run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Select, and_, select

from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.columns import MICROSECOND, age_us
from oah.adapters.sql.database import Database
from oah.adapters.sql.rows import required
from oah.adapters.sql.tables import runs, session_owners, sessions, workers, workspaces
from oah.core.model.ids import ClaimToken, RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass, RunStatus, StopReason
from oah.core.model.timeout import TimeoutReason
from oah.core.policy.recovery import override
from oah.ports.store import OwnerRow

ACTIVE = ("running", "waiting_tool")


class Owners(Aggregate):
    """Reading owner rows."""

    def owners(
        self, *, stale_for: timedelta | None = None, limit: int = 1_000, after: SessionId | None = None
    ) -> list[OwnerRow]:
        """In the order of their sessions, from ``after`` on; only those whose mark is at least ``stale_for`` old."""
        statement = _owners().limit(limit)
        if stale_for is not None:
            statement = statement.where(age_us(session_owners.c.seen_at) >= stale_for // MICROSECOND)
        if after is not None:
            statement = statement.where(session_owners.c.session_id > after)
        with self._database.read() as connection:
            return read_owners(self._database, connection, statement)

    def owners_of(self, sessions: Sequence[SessionId]) -> list[OwnerRow]:
        """Those of the sessions given that have an owner row."""
        with self._database.read() as connection:
            return owners_of(self._database, connection, sessions)

    def owners_by_worker(self, workers: Sequence[WorkerId]) -> list[OwnerRow]:
        """All rows of these incarnations."""
        statement = _owners().where(session_owners.c.worker_id.in_(workers))
        with self._database.read() as connection:
            return read_owners(self._database, connection, statement)

    def owning_names(self, names: Collection[str], *, host: str | None = None) -> set[str]:
        """Those of which any incarnation (on this host) owns sessions."""
        statement = select(workers.c.name).join(session_owners, session_owners.c.worker_id == workers.c.id).distinct()
        statement = statement.where(workers.c.name.in_(list(names)))
        if host is not None:
            statement = statement.where(workers.c.host == host)
        with self._database.read() as connection:
            return set(connection.execute(statement).scalars())


def owners_of(database: Database, connection: Connection, ids: Iterable[str]) -> list[OwnerRow]:
    """The owner rows of these sessions, read on this connection."""
    statement = _owners().where(session_owners.c.session_id.in_(list(ids)))
    return read_owners(database, connection, statement)


def read_owners(database: Database, connection: Connection, statement: Select[Any]) -> list[OwnerRow]:
    """Rows of ``_owners()``, with the class to restore or recover into."""
    rows = connection.execute(statement).all()
    without = [row.session_id for row in rows if row.run_id is None]
    looks = database.statements(connection).look(without) if without else {}
    return [_owner(row, looks[row.session_id].waiting if row.session_id in looks else None) for row in rows]


def asked_for(stop_reason: str | None) -> bool:
    """Whether somebody wants the run to end; the limit of a step or a call is one of the attempt, and ends with it."""
    return TimeoutReason.of_stop(None if stop_reason is None else StopReason(stop_reason)) is None


def seen_at_of(text: str) -> datetime:
    """The moment that an OwnerRow carries, exactly as it was read."""
    return datetime.fromisoformat(text)


def _owners() -> Select[Any]:
    active = and_(runs.c.session_id == session_owners.c.session_id, runs.c.status.in_(ACTIVE))
    return (
        select(
            session_owners.c.session_id,
            session_owners.c.worker_id,
            session_owners.c.claim_token,
            session_owners.c.parked,
            session_owners.c.seen_at,
            age_us(session_owners.c.seen_at).label("age"),
            sessions.c.pool,
            sessions.c.agent,
            sessions.c.workspace_id,
            runs.c.id.label("run_id"),
            runs.c.status,
            runs.c.attempt,
            runs.c.recovery_attempts,
            runs.c.cancel_requested_at,
            runs.c.stop_reason,
            runs.c["class"].label("run_class"),
            runs.c.recovery_strategy,
            runs.c.recovery_max_attempts,
            workspaces.c.recovery_strategy.label("workspace_strategy"),
            workspaces.c.recovery_max_attempts.label("workspace_max_attempts"),
        )
        .select_from(
            session_owners.join(sessions, sessions.c.id == session_owners.c.session_id)
            .join(workspaces, workspaces.c.id == sessions.c.workspace_id)
            .outerjoin(runs, active)
        )
        .order_by(session_owners.c.session_id)
    )


def _owner(row: Any, waiting: ReadyClass | None) -> OwnerRow:
    return OwnerRow(
        session_id=SessionId(row.session_id),
        worker_id=WorkerId(row.worker_id),
        token=ClaimToken(row.claim_token),
        parked=bool(row.parked),
        seen_at=required(row.seen_at).isoformat(timespec="microseconds"),
        age=timedelta(microseconds=max(0, row.age)),
        lane=Lane(row.pool, row.agent),
        workspace_id=WorkspaceId(row.workspace_id),
        ready_class=waiting if row.run_id is None else ReadyClass(row.run_class),
        run_id=None if row.run_id is None else RunId(row.run_id),
        run_status=None if row.run_id is None else RunStatus(row.status),
        attempt=row.attempt or 0,
        recovery_attempts=row.recovery_attempts or 0,
        cancel_requested=row.cancel_requested_at is not None and asked_for(row.stop_reason),
        run_policy=override(row.recovery_strategy, row.recovery_max_attempts),
        workspace_policy=override(row.workspace_strategy, row.workspace_max_attempts),
    )
