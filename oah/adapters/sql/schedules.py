"""Schedules, as rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.audits import entry, record
from oah.adapters.sql.columns import now
from oah.adapters.sql.fleet_tables import schedule_firings, schedules
from oah.adapters.sql.pages import paged
from oah.adapters.sql.rows import moment, parsed, required
from oah.adapters.sql.tables import workspaces
from oah.adapters.sql.text import require_sound
from oah.core.model.ids import SessionId, WorkspaceId
from oah.core.model.schedule import Overlap, Schedule
from oah.errors import Conflict, InvalidRequest, NotFound
from oah.ports.rows import Page
from oah.ports.schedules import NewSchedule

CHANGES = frozenset({"name", "cron", "timezone", "overlap", "session_id", "template", "paused", "next_at"})


class Schedules(Aggregate):
    """See ports.schedules.ScheduleStore."""

    def create_schedule(self, schedule: NewSchedule, *, most: int = 1_000) -> Schedule:
        """Two at once may make one more than `most`: it is there to bound what a leader has to look after."""
        require_sound(
            id=schedule.id, name=schedule.name, cron=schedule.cron, timezone=schedule.timezone, by=schedule.by
        )
        with self._database.write() as connection:
            known = select(workspaces.c.id).where(workspaces.c.id == schedule.workspace_id)
            if connection.execute(known).first() is None:
                raise NotFound(f"no workspace '{schedule.workspace_id}'")
            _free(connection, schedule.workspace_id, schedule.name)
            mine = select(func.count()).where(schedules.c.workspace_id == schedule.workspace_id)
            if connection.execute(mine).scalar_one() >= most:
                raise Conflict(
                    f"workspace '{schedule.workspace_id}' has {most} schedules",
                    code="too_many_schedules",
                    hint="delete one that nobody needs",
                )
            statement = insert(schedules).values(
                id=schedule.id,
                workspace_id=schedule.workspace_id,
                name=schedule.name,
                cron=schedule.cron,
                timezone=schedule.timezone,
                overlap=schedule.overlap.value,
                session_id=schedule.session_id,
                template=dict(schedule.template),
                paused=schedule.paused,
                next_at=schedule.next_at,
                created_by=schedule.by,
                created_at=now(),
                updated_at=now(),
            )
            try:
                connection.execute(statement)
            except IntegrityError as error:  # two at once under one name
                raise _taken(schedule.name) from error
            made = _found(connection, schedule.id, None)
            written_down(connection, made, schedule.by, "created")
            return made

    def schedules(
        self, workspace_id: WorkspaceId | None, *, cursor: str | None = None, limit: int = 100
    ) -> Page[Schedule]:
        """Newest first."""
        statement = select(schedules)
        if workspace_id is not None:
            statement = statement.where(schedules.c.workspace_id == workspace_id)
        with self._database.read() as connection:
            return paged(
                connection,
                statement,
                schedules,
                lambda row: schedule_of(row._mapping),
                lambda item: (item.created_at, item.id),
                cursor=cursor,
                limit=limit,
            )

    def schedule(self, named: str, workspace_id: WorkspaceId | None) -> Schedule:
        """By id, or by name."""
        with self._database.read() as connection:
            return _found(connection, named, workspace_id)

    def update_schedule(
        self,
        schedule_id: str,
        workspace_id: WorkspaceId | None,
        changes: Mapping[str, Any],
        *,
        by: str,
        seen: datetime | None = None,
    ) -> Schedule:
        """Under the row's lock."""
        if unknown := set(changes) - CHANGES:
            raise InvalidRequest(f"a schedule has no {', '.join(sorted(unknown))} to change")
        values = dict(changes)
        require_sound(by=by, **{name: values.get(name) for name in ("name", "cron", "timezone")})
        if "overlap" in values:
            values["overlap"] = Overlap(values["overlap"]).value
        with self._database.write() as connection:
            before = _found(connection, schedule_id, workspace_id, lock=True)
            if seen is not None and before.updated_at != seen:
                raise Conflict(f"schedule '{before.name}' was changed meanwhile", code="schedule_changed")
            if values.get("name", before.name) != before.name:
                _free(connection, before.workspace_id, values["name"])
            statement = update(schedules).where(schedules.c.id == before.id).values(**values, updated_at=now())
            try:
                connection.execute(statement)
            except IntegrityError as error:
                raise _taken(values["name"]) from error
            written_down(connection, before, by, "changed", changed=sorted(changes))
            return _found(connection, before.id, None)

    def delete_schedule(self, schedule_id: str, workspace_id: WorkspaceId | None, *, by: str) -> Schedule:
        """With its firings."""
        with self._database.write() as connection:
            found = _found(connection, schedule_id, workspace_id, lock=True)
            connection.execute(delete(schedule_firings).where(schedule_firings.c.schedule_id == found.id))
            connection.execute(delete(schedules).where(schedules.c.id == found.id))
            written_down(connection, found, by, "deleted")
            return found


def _found(connection: Connection, named: str, workspace_id: WorkspaceId | None, *, lock: bool = False) -> Schedule:
    """Raises NotFound; of several workspaces' schedules of one name, none is meant."""
    statement = select(schedules).where((schedules.c.id == named) | (schedules.c.name == named))
    if workspace_id is not None:
        statement = statement.where(schedules.c.workspace_id == workspace_id)
    # One may be named as another's id is: an id is meant before a name.
    statement = statement.order_by((schedules.c.id == named).desc(), schedules.c.id).limit(2)
    rows = connection.execute(statement.with_for_update() if lock else statement).mappings().all()
    if rows and rows[0]["id"] == named:
        return schedule_of(rows[0])
    if len(rows) > 1:
        raise NotFound(f"several workspaces have a schedule '{named}'", hint="name it by its id")
    if not rows:
        raise NotFound(f"no schedule '{named}'")
    return schedule_of(rows[0])


def _free(connection: Connection, workspace_id: WorkspaceId, name: str) -> None:
    same = (schedules.c.workspace_id == workspace_id, schedules.c.name == name)
    if connection.execute(select(schedules.c.id).where(*same)).first() is not None:
        raise _taken(name)


def _taken(name: str) -> Conflict:
    return Conflict(f"there is a schedule '{name}' already", code="name_taken", hint="change that one, or name it else")


def schedule_of(row: RowMapping) -> Schedule:
    """The schedule of a row."""
    return Schedule(
        id=row["id"],
        workspace_id=WorkspaceId(row["workspace_id"]),
        name=row["name"],
        cron=row["cron"],
        timezone=row["timezone"],
        overlap=Overlap(row["overlap"]),
        session_id=None if row["session_id"] is None else SessionId(row["session_id"]),
        template=parsed(row["template"]),
        paused=bool(row["paused"]),
        next_at=moment(row["next_at"]),
        last_at=moment(row["last_at"]),
        created_by=row["created_by"],
        created_at=required(row["created_at"]),
        updated_at=required(row["updated_at"]),
    )


def written_down(connection: Connection, schedule: Schedule, by: str, what: str, **data: Any) -> None:
    """Leave a row in the audit."""
    about = {"workspace_id": schedule.workspace_id, "name": schedule.name, "cron": schedule.cron, **data}
    record(connection, [entry(by, f"schedule.{what}", schedule.id, about)])
