"""Pauses and caps, as rows: few, read whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Integer, Table, Text, and_, delete, func, literal, select, text, union_all

from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.audits import entry, record
from oah.adapters.sql.columns import now
from oah.adapters.sql.fleet_tables import caps, pauses
from oah.adapters.sql.rows import required, session_of
from oah.adapters.sql.tables import runs, sessions, workspaces
from oah.adapters.sql.text import require_sound
from oah.core.model.group import Cap, Group, GroupKind, Pause
from oah.core.model.ids import WorkspaceId
from oah.core.model.lane import Lane
from oah.core.policy import waiting
from oah.errors import InvalidRequest, NotFound

NO_WORKSPACE = WorkspaceId("")
CAPPED = (GroupKind.ALL, GroupKind.PROFILE)
"""Kinds whose caps stand here."""


class Pauses(Aggregate):
    """See ports.pauses.PauseStore."""

    def pauses(self) -> list[Pause]:
        """All, in the order of their groups."""
        with self._database.read() as connection:
            rows = connection.execute(select(pauses).order_by(pauses.c.kind, pauses.c.subject))
            return [_pause(row) for row in rows]

    def pause_group(self, group: Group, *, by: str, reason: str | None = None) -> Pause:
        """A second pause changes nothing."""
        require_sound(name=group.name, by=by, reason=reason)
        with self._database.write() as connection:
            if group.kind is GroupKind.WORKSPACE:
                _require_workspace(connection, group.name)
            if (found := connection.execute(_of(pauses, group)).first()) is not None:
                return _pause(found)
            row = {"kind": group.kind.value, "subject": group.name, "by": by, "reason": reason}
            connection.execute(pauses.insert().values(**row, at=now()))
            _audit(connection, by, "paused", group, {"reason": reason} if reason else {})
            return _pause(connection.execute(_of(pauses, group)).one())

    def resume_group(self, group: Group, *, by: str) -> bool:
        """Whether it was paused."""
        return self._drop(pauses, group, by, "resumed")

    def caps(self) -> list[Cap]:
        """All but those of workspaces."""
        with self._database.read() as connection:
            rows = connection.execute(select(caps).order_by(caps.c.kind, caps.c.subject))
            return [_cap(row) for row in rows]

    def set_cap(self, group: Group, max_active_runs: int, *, by: str) -> Cap:
        """The same cap again is no change."""
        require_sound(name=group.name, by=by)
        if group.kind not in CAPPED:
            raise InvalidRequest(f"a {group.kind} has no cap here", hint="profiles, and all together")
        with self._database.write() as connection:
            found = connection.execute(_of(caps, group)).first()
            if found is None or found.max_active_runs != max_active_runs:
                connection.execute(delete(caps).where(_is(caps, group)))
                row = {"kind": group.kind.value, "subject": group.name, "max_active_runs": max_active_runs, "by": by}
                connection.execute(caps.insert().values(**row, at=now()))
                _audit(connection, by, "cap_set", group, {"max_active_runs": max_active_runs})
            return _cap(connection.execute(_of(caps, group)).one())

    def drop_cap(self, group: Group, *, by: str) -> bool:
        """Whether it had one."""
        return self._drop(caps, group, by, "cap_dropped")

    def _drop(self, table: Table, group: Group, by: str, action: str) -> bool:
        require_sound(name=group.name, by=by)
        with self._database.write() as connection:
            gone = bool(connection.execute(delete(table).where(_is(table, group))).rowcount)
            if gone:
                _audit(connection, by, action, group, {})
            return gone


@dataclass(frozen=True, slots=True)
class Governance:
    """What is paused and capped, and how many runs hold a slot: by profile, where there are caps."""

    pauses: tuple[Pause, ...]
    caps: tuple[Cap, ...]
    running: Mapping[str, int]

    def pause_of(self, lane: Lane, workspace_id: WorkspaceId) -> Pause | None:
        """That of all first, then in the order of the kinds."""
        return next((each for each in self.pauses if each.group.has(lane, workspace_id)), None)

    def caps_of(self, lane: Lane) -> tuple[waiting.Cap, ...]:
        """That of the profile, then that of all."""
        found = []
        for cap in reversed(self.caps):
            kind = cap.group.kind
            if cap.group.has(lane, NO_WORKSPACE):
                running = self.running.get(lane.profile, 0) if kind is GroupKind.PROFILE else sum(self.running.values())
                found.append(waiting.Cap(running, cap.max_active_runs, kind))
        return tuple(found)


def governance(connection: Connection) -> Governance:
    """One statement, and a second one where caps stand: it counts what runs."""
    nothing = literal(None, Text), literal(None, Integer)
    of_pauses = select(pauses.c.kind, pauses.c.subject, pauses.c.by, pauses.c.at, pauses.c.reason, nothing[1])
    of_caps = select(caps.c.kind, caps.c.subject, caps.c.by, caps.c.at, nothing[0], caps.c.max_active_runs)
    rows = connection.execute(union_all(of_pauses, of_caps)).all()
    paused, capped = [], []
    for kind, subject, by, at, reason, most in rows:
        group, when = Group(GroupKind(kind), subject), required(at)
        if most is None:
            paused.append(Pause(group, by, when, reason))
        else:
            capped.append(Cap(group, most, by, when))
    running = _running(connection) if capped else {}
    return Governance(tuple(sorted(paused, key=_group)), tuple(sorted(capped, key=_group)), running)


def paused_of(rows: Sequence[tuple[str, str]], sessions_: Mapping[str, Sequence[Any]]) -> set[str]:
    """Those of the locked sessions that are of a paused group."""
    if not rows:
        return set()
    groups = [Group(GroupKind(kind), subject) for kind, subject in rows]
    found = {name: session_of(row) for name, row in sessions_.items()}
    return {name for name, each in found.items() if any(group.has(each.lane, each.workspace_id) for group in groups)}


def _group(each: Pause | Cap) -> Group:
    return each.group


def _running(connection: Connection) -> dict[str, int]:
    """Runs that hold a slot, by profile: by the index of what is active."""
    statement = (
        select(sessions.c.agent, func.count())
        .select_from(runs.join(sessions, sessions.c.id == runs.c.session_id))
        .where(text("runs.status IN ('running', 'waiting_tool')"), runs.c.status == "running")
        .group_by(sessions.c.agent)
    )
    return {profile: int(count) for profile, count in connection.execute(statement)}


def _is(table: Table, group: Group) -> Any:
    return and_(table.c.kind == group.kind.value, table.c.subject == group.name)


def _of(table: Table, group: Group) -> Any:
    return select(table).where(_is(table, group))


def _require_workspace(connection: Connection, workspace_id: str) -> None:
    if connection.execute(select(workspaces.c.id).where(workspaces.c.id == workspace_id)).first() is None:
        raise NotFound(f"no workspace '{workspace_id}'")


def _audit(connection: Connection, by: str, action: str, group: Group, data: dict[str, Any]) -> None:
    if group.kind is GroupKind.WORKSPACE:
        data = {**data, "workspace_id": group.name}
    record(connection, [entry(by, f"{group.kind}.{action}", group.name, data)])


def _pause(row: Any) -> Pause:
    return Pause(Group(GroupKind(row.kind), row.subject), row.by, required(row.at), row.reason)


def _cap(row: Any) -> Cap:
    return Cap(Group(GroupKind(row.kind), row.subject), row.max_active_runs, row.by, required(row.at))
