"""Pauses and caps, as rows: few, read whole."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Table, and_, delete, select

from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.audits import entry, record
from oah.adapters.sql.columns import now
from oah.adapters.sql.fleet_tables import caps, pauses
from oah.adapters.sql.tables import workspaces
from oah.adapters.sql.text import require_sound
from oah.core.model.group import Cap, Group, GroupKind, Pause
from oah.errors import InvalidRequest, NotFound

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
    return Pause(Group(GroupKind(row.kind), row.subject), row.by, row.at, row.reason)


def _cap(row: Any) -> Cap:
    return Cap(Group(GroupKind(row.kind), row.subject), row.max_active_runs, row.by, row.at)
