"""Why runs wait, and what has not moved for too long. Reads only; every statement is bounded and goes by an index."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Text, and_, func, literal, select, text, union_all

from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.columns import MICROSECOND, age_us
from oah.adapters.sql.mail_tending import overdue
from oah.adapters.sql.owners import ACTIVE
from oah.adapters.sql.pauses import Governance, governance
from oah.adapters.sql.rows import holds_of, moment
from oah.adapters.sql.tables import dispatch_epochs, runs, session_owners, sessions, workspaces
from oah.core.model.ids import RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import RunStatus, StartReason
from oah.core.model.session import HoldReason
from oah.core.policy.waiting import Before, Cap
from oah.ports.waits import Diagnosis, Stuck, WaitFacts

_SQLITE_HAS = "json_type(sessions.holds, '$.' || :held_for) IS NOT NULL"
SCANNED = 10_000
"""Queued runs that are looked through for those that have waited for long, from the oldest on."""
_ELIGIBLE = "{0}.status = 'queued' AND NOT {0}.deferred"


class Waits(Aggregate):
    """Reading what stands in the way."""

    def waits(self, runs: Sequence[RunId]) -> dict[RunId, WaitFacts]:
        """Of those of the runs that are queued."""
        if not runs:
            return {}
        with self._database.read() as connection:
            rows = connection.execute(_facts(runs)).all()
            active = _active(connection, {row.workspace_id for row in rows if row.max_active_runs is not None})
            governed = governance(connection)
        return {RunId(row.id): _wait(row, active, governed) for row in rows}

    def diagnosis(
        self,
        workspace_id: WorkspaceId | None,
        *,
        lease: timedelta,
        unheeded_for: timedelta,
        waiting_for: timedelta,
        limit: int,
    ) -> Diagnosis:
        """Of a workspace, or of all: one entry more than ``limit`` is read, so that a cut is known."""
        ours: list[ColumnElement[bool]] = [] if workspace_id is None else [sessions.c.workspace_id == workspace_id]
        more = limit + 1
        asked = {
            "silent": _silent(lease, ours, more),
            "unheeded": _unheeded(unheeded_for, ours, more),
            "unkillable": _unkillable(self._database.dialect, ours, more),
            "waiting": _waiting(self._database.dialect, waiting_for, workspace_id, more),
            "undelivered": _undelivered(waiting_for, ours, more),
        }
        with self._database.read() as connection:
            self._database.by_index(connection)
            looked = {name: connection.execute(statement).all() for name, statement in asked.items()}
        return Diagnosis(
            **{name: tuple(_stuck(row) for row in rows[:limit]) for name, rows in looked.items()},
            truncated=frozenset(name for name, rows in looked.items() if len(rows) > limit),
        )


def _facts(ids: Sequence[RunId]) -> Any:
    """Per run its session and workspace, the active run, and the eligible run before it, each by an index probe."""
    other = runs.alias("other")

    def active(column: Any) -> Any:
        return (
            select(column)
            .where(other.c.session_id == runs.c.session_id, other.c.status.in_(ACTIVE))
            .limit(1)
            .correlate(runs)
            .scalar_subquery()
        )

    ahead = (
        select(other.c.id)
        .where(
            other.c.session_id == runs.c.session_id,
            text(_ELIGIBLE.format("other")),
            other.c.position < runs.c.position,
        )
        .order_by(other.c.position.desc())
        .limit(1)
        .correlate(runs)
        .scalar_subquery()
    )
    return (
        select(
            runs.c.id,
            runs.c.workspace_id,
            runs.c.deferred,
            runs.c.due_at,
            runs.c.queued_reason,
            runs.c.failed_attempts,
            runs.c.recovery_attempts,
            sessions.c.pool,
            sessions.c.agent,
            sessions.c.holds,
            workspaces.c.max_active_runs,
            ahead.label("ahead"),
            active(other.c.id).label("active"),
            active(other.c.status).label("active_status"),
        )
        .select_from(
            runs.join(sessions, sessions.c.id == runs.c.session_id).join(
                workspaces, workspaces.c.id == runs.c.workspace_id
            )
        )
        .where(runs.c.id.in_(ids), runs.c.status == RunStatus.QUEUED)
    )


def _active(connection: Connection, names: set[str]) -> dict[str, int]:
    """Runs that hold a slot, of these workspaces."""
    if not names:
        return {}
    statement = (
        select(runs.c.workspace_id, func.count())
        .where(runs.c.workspace_id.in_(sorted(names)), runs.c.status == RunStatus.RUNNING)
        .group_by(runs.c.workspace_id)
    )
    return {row[0]: int(row[1]) for row in connection.execute(statement)}


def _wait(row: Any, active: dict[str, int], governed: Governance) -> WaitFacts:
    before: Before | None = None
    if row.ahead is not None:
        before = Before(RunId(row.ahead), RunStatus.QUEUED)
    elif row.active is not None:
        before = Before(RunId(row.active), RunStatus(row.active_status))
    most, lane = row.max_active_runs, Lane(row.pool, row.agent)
    of_workspace = () if most is None else (Cap(active.get(row.workspace_id, 0), most),)
    return WaitFacts(
        lane=lane,
        deferred=bool(row.deferred),
        due_at=moment(row.due_at),
        retried=row.queued_reason == StartReason.RETRIED,
        failed_attempts=row.failed_attempts,
        recovery_attempts=row.recovery_attempts,
        holds=holds_of(row.holds),
        before=before,
        caps=(*of_workspace, *governed.caps_of(lane)),
        pause=governed.pause_of(lane, WorkspaceId(row.workspace_id)),
    )


def _silent(lease: timedelta, ours: list[ColumnElement[bool]], limit: int) -> Any:
    age = age_us(session_owners.c.seen_at)
    active = and_(runs.c.session_id == session_owners.c.session_id, runs.c.status.in_(ACTIVE))
    return (
        select(session_owners.c.session_id, runs.c.id.label("run_id"), session_owners.c.worker_id, age.label("age"))
        .select_from(
            session_owners.join(sessions, sessions.c.id == session_owners.c.session_id).outerjoin(runs, active)
        )
        .where(age > lease // MICROSECOND, *ours)
        .order_by(age.desc())
        .limit(limit)
    )


def _unheeded(longer: timedelta, ours: list[ColumnElement[bool]], limit: int) -> Any:
    age = age_us(runs.c.cancel_requested_at)
    return (
        select(runs.c.session_id, runs.c.id.label("run_id"), runs.c.worker_id, age.label("age"))
        .join(sessions, sessions.c.id == runs.c.session_id)
        .where(text("runs.status IN ('running', 'waiting_tool')"), age > longer // MICROSECOND, *ours)
        .order_by(age.desc())
        .limit(limit)
    )


def _unkillable(dialect: str, ours: list[ColumnElement[bool]], limit: int) -> Any:
    """Which of the few held sessions (ix_sessions_held) are held for this; since when nobody has written down."""
    has = "jsonb_exists(sessions.holds, :held_for)" if dialect == "postgresql" else _SQLITE_HAS
    present = text(f"sessions.held = 1 AND {has}").bindparams(held_for=HoldReason.UNKILLABLE.value)
    nothing, unknown = literal(None, Text), literal(0)
    return (
        select(
            sessions.c.id.label("session_id"),
            nothing.label("run_id"),
            nothing.label("worker_id"),
            unknown.label("age"),
        )
        .where(present, *ours)
        .order_by(sessions.c.id)
        .limit(limit)
    )


def _undelivered(longer: timedelta, ours: list[ColumnElement[bool]], limit: int) -> Any:
    nothing = literal(None, Text)
    statement = overdue(longer, stopped=True).where(*ours).limit(limit)
    return statement.add_columns(nothing.label("run_id"), nothing.label("worker_id"))


def _waiting(dialect: str, longer: timedelta, workspace_id: WorkspaceId | None, limit: int) -> Any:
    """The oldest eligible runs, of each epoch that the broker may have heard of them under."""
    current = select(dispatch_epochs.c.id).order_by(dispatch_epochs.c.number.desc()).limit(1).scalar_subquery()
    parts = [_oldest(dialect, which, longer).subquery() for which in ("", current)]
    both = union_all(*(select(part) for part in parts)).subquery()
    statement = select(both).where(both.c.deferred.is_(False), both.c.age > longer // MICROSECOND)
    if workspace_id is not None:
        statement = statement.where(both.c.workspace_id == workspace_id)
    return statement.order_by(both.c.age.desc()).limit(limit)


def _oldest(dialect: str, epoch: Any, longer: timedelta) -> Any:
    """A stretch of ix_runs_dispatched: who was queued lately is not looked at, and never more than ``SCANNED``."""
    before = "now() - :us * interval '1 microsecond'" if dialect == "postgresql" else "now_us() - :us"
    return (
        select(
            runs.c.session_id,
            runs.c.id.label("run_id"),
            runs.c.workspace_id,
            runs.c.deferred,
            literal(None, Text).label("worker_id"),
            age_us(runs.c.queued_at).label("age"),
        )
        .where(
            text("runs.status = 'queued'"),
            runs.c.dispatched_epoch == epoch,
            text(f"runs.created_at <= {before}").bindparams(us=longer // MICROSECOND),
        )
        .order_by(runs.c.created_at)
        .limit(SCANNED)
    )


def _stuck(row: Any) -> Stuck:
    return Stuck(
        SessionId(row.session_id),
        None if row.run_id is None else RunId(row.run_id),
        None if row.worker_id is None else WorkerId(row.worker_id),
        timedelta(microseconds=max(0, row.age)),
    )
