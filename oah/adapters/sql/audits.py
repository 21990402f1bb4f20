"""Rows of the audit: written by whoever does something that somebody may ask about, listed for who asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, insert, select

from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.columns import now
from oah.adapters.sql.governance_tables import audit
from oah.adapters.sql.pages import LONGEST
from oah.core.model.ids import WorkspaceId
from oah.errors import InvalidRequest
from oah.ports.audit import AuditFilter, AuditRow
from oah.ports.store import Page


def entry(by: str, action: str, subject: str, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A row to write; its workspace is the ``workspace_id`` of its data, None where it was about the deployment."""
    rest = dict(data or {})
    workspace_id = rest.pop("workspace_id", None)
    return {"actor": by, "action": action, "subject": subject, "workspace_id": workspace_id, "data": rest}


def record(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows of ``entry``, in the transaction of what they tell of."""
    if rows:
        connection.execute(insert(audit).values(at=now()), list(rows))


class Audits(Aggregate):
    """The aggregate of the audit."""

    def audit_rows(self, where: AuditFilter) -> Page[AuditRow]:
        """By their numbers: the order in which they were written."""
        if where.limit < 1:
            raise InvalidRequest("limit must be at least 1")
        limit = min(where.limit, LONGEST)
        statement = select(audit)
        for column, value in (
            (audit.c.workspace_id, where.workspace_id),
            (audit.c.actor, where.actor),
            (audit.c.subject, where.subject),
        ):
            if value is not None:
                statement = statement.where(column == value)
        if where.action is not None:
            kind = where.action.endswith(".")
            wanted = (
                audit.c.action.startswith(where.action, autoescape=True) if kind else audit.c.action == where.action
            )
            statement = statement.where(wanted)
        if where.since is not None:
            statement = statement.where(audit.c.at >= where.since)
        if where.cursor is not None:
            if not (where.cursor.isascii() and where.cursor.isdigit() and len(where.cursor) < 19):
                raise InvalidRequest("this is no cursor of ours", hint="pass next_cursor of the page before")
            statement = statement.where(audit.c.id < int(where.cursor))
        with self._database.read() as connection:
            rows = connection.execute(statement.order_by(audit.c.id.desc()).limit(limit + 1)).all()
        return Page(tuple(map(_row, rows[:limit])), str(rows[limit - 1].id) if len(rows) > limit else None)

    def note_action(self, by: str, action: str, subject: str, data: Mapping[str, Any]) -> None:
        """A row of its own."""
        with self._database.write() as connection:
            record(connection, [entry(by, action, subject, data)])


def _row(row: Any) -> AuditRow:
    return AuditRow(
        id=row.id,
        at=row.at,
        actor=row.actor,
        action=row.action,
        subject=row.subject,
        workspace_id=None if row.workspace_id is None else WorkspaceId(row.workspace_id),
        data=row.data or {},
    )
