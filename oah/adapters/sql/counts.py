"""Figures: what metrics, health and doctor want to know, and the counters that reconcile sets right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, case, delete, distinct, exists, func, insert, select, text

from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.columns import MICROSECOND, age_us
from oah.adapters.sql.owners import ACTIVE
from oah.adapters.sql.rows import required as moment
from oah.adapters.sql.tables import RECOVERED, runs, session_owners, sessions, workspace_counters
from oah.core.model.ids import SessionId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import RecoveryState, RunStatus
from oah.ports.figures import LaneRuns, RecoveryFigures
from oah.ports.store import StoreCounts

AT_ONCE = 500
_SESSIONS = sessions
LANE_RUNS = (
    select(sessions.c.pool, sessions.c.agent, runs.c.status, func.count())
    .select_from(runs.join(sessions, sessions.c.id == runs.c.session_id))
    .where(text("runs.status IN ('running', 'waiting_tool')"))
    .group_by(sessions.c.pool, sessions.c.agent, runs.c.status)
)


class Counts(Aggregate):
    """Counting."""

    def counts(self, workspace_id: WorkspaceId | None, *, lease: timedelta) -> StoreCounts:
        """Of a workspace, or of all. Counts rows: for every few seconds, not for every request."""
        ours: list[ColumnElement[bool]] = [] if workspace_id is None else [runs.c.workspace_id == workspace_id]
        by_status = select(runs.c.status, func.count()).where(*ours).group_by(runs.c.status)
        waiting = select(func.count()).select_from(runs).where(text("status = 'queued' AND deferred"), *ours)
        owners = select(func.count()).select_from(session_owners)
        if workspace_id is not None:
            owners = owners.join(sessions, sessions.c.id == session_owners.c.session_id).where(
                sessions.c.workspace_id == workspace_id
            )
        stale = owners.where(age_us(session_owners.c.seen_at) > lease // MICROSECOND)
        eligible = text("runs.status = 'queued' AND NOT runs.deferred")
        owned = exists().where(session_owners.c.session_id == sessions.c.id)
        ready = (
            select(
                func.count(),
                func.coalesce(func.sum(case((runs.c["class"] == "subagent", 1), else_=0)), 0),
                func.count(distinct(runs.c.session_id)),
            )
            .select_from(runs.join(sessions, sessions.c.id == runs.c.session_id))
            .where(eligible, sessions.c.held == 0, ~owned, *ours)
        )
        waits = exists().where(runs.c.session_id == session_owners.c.session_id, eligible)
        locked = owners.where(waits)
        with self._database.read() as connection:
            ready_runs, ready_subagents, ready_sessions = connection.execute(ready).one()
            found = {RunStatus(status): int(count) for status, count in connection.execute(by_status)}
            deferred = _figure(connection, waiting)
            return StoreCounts(
                runs={status: found.get(status, 0) for status in RunStatus},
                queued_eligible=found.get(RunStatus.QUEUED, 0) - deferred,
                deferred=deferred,
                active_sessions=sum(found.get(RunStatus(status), 0) for status in ACTIVE),
                owners=_figure(connection, owners),
                stale_owners=_figure(connection, stale),
                ready_runs=int(ready_runs),
                ready_subagent_runs=int(ready_subagents),
                ready_sessions=int(ready_sessions),
                locked_sessions=_figure(connection, locked),
            )

    def lane_runs(self) -> dict[Lane, LaneRuns]:
        """By the index of active runs."""
        found: dict[Lane, Counter[str]] = {}
        with self._database.read() as connection:
            self._database.by_index(connection)
            for pool, agent, status, count in connection.execute(LANE_RUNS):
                found.setdefault(Lane(pool, agent), Counter())[status] += int(count)
        return {
            lane: LaneRuns(counts[RunStatus.RUNNING], counts[RunStatus.WAITING_TOOL]) for lane, counts in found.items()
        }

    def known_sessions(self, sessions: Sequence[SessionId]) -> set[SessionId]:
        """By the primary key, some at a time."""
        known: set[SessionId] = set()
        with self._database.read() as connection:
            for begin in range(0, len(sessions), AT_ONCE):
                chosen = select(_SESSIONS.c.id).where(_SESSIONS.c.id.in_(sessions[begin : begin + AT_ONCE]))
                known |= {SessionId(row[0]) for row in connection.execute(chosen)}
        return known

    def recovery_figures(self, workspace_id: WorkspaceId | None) -> RecoveryFigures:
        """By the index of the runs that recovery met: one group for each state and reason."""
        reason = runs.c.recovery["reason"].as_string()
        last = func.max(runs.c.recovery["last_recovered_at"].as_string())
        ended = runs.c.ended_at
        statement = (
            select(runs.c.recovery_state, reason, func.count(), func.min(ended), func.max(ended), last)
            .where(text(RECOVERED))
            .group_by(runs.c.recovery_state, reason)
        )
        if workspace_id is not None:
            statement = statement.where(runs.c.workspace_id == workspace_id)
        with self._database.read() as connection:
            groups = connection.execute(statement).all()
        counts: Counter[RecoveryState] = Counter()
        reasons: Counter[str] = Counter()
        for state, why, count, *_ in groups:
            counts[RecoveryState(state)] += count
            reasons[why or "unknown"] += count
        quarantined = [row for row in groups if row[0] == RecoveryState.QUARANTINED.value]
        latest = max((row[5] for row in groups if row[5]), default=None)
        return RecoveryFigures(
            counts={state: counts[state] for state in RecoveryState},
            reasons=dict(reasons.most_common()),
            oldest_quarantined_at=min((moment(row[3]) for row in quarantined if row[3]), default=None),
            newest_quarantined_at=max((moment(row[4]) for row in quarantined if row[4]), default=None),
            newest_recovered_at=None if latest is None else datetime.fromisoformat(latest),
        )

    def recount(self) -> int:
        """Set the workspaces' counters to what is queued; how many were off. Writers wait meanwhile."""
        with self._database.write() as connection:
            if self._database.dialect == "postgresql":
                connection.execute(text("LOCK TABLE workspace_counters IN SHARE ROW EXCLUSIVE MODE"))
            queued = select(runs.c.workspace_id, func.count()).where(text("status = 'queued'"))
            true = {row[0]: int(row[1]) for row in connection.execute(queued.group_by(runs.c.workspace_id))}
            summed = select(workspace_counters.c.workspace_id, func.sum(workspace_counters.c.queued))
            kept = connection.execute(summed.group_by(workspace_counters.c.workspace_id))
            counted = {row[0]: int(row[1]) for row in kept}
            off = [name for name in true.keys() | counted.keys() if true.get(name, 0) != counted.get(name, 0)]
            for name in off:
                connection.execute(delete(workspace_counters).where(workspace_counters.c.workspace_id == name))
                values = {"workspace_id": name, "part": self._database.part, "queued": true.get(name, 0)}
                connection.execute(insert(workspace_counters).values(**values))
            return len(off)


def _figure(connection: Connection, statement: object) -> int:
    return int(connection.execute(statement).scalar_one())  # type: ignore[call-overload]
