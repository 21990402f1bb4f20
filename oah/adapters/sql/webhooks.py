"""Rows of webhooks. Whatever locks a webhook and deliveries locks sessions first, then the webhook, deliveries last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Select, delete, insert, select, text, update

from oah.adapters.sql.aggregate import Aggregate, picked
from oah.adapters.sql.audits import entry, record
from oah.adapters.sql.columns import now
from oah.adapters.sql.governance_tables import webhook_deliveries, webhooks
from oah.adapters.sql.pages import paged
from oah.adapters.sql.rows import duration, moment, parsed, required
from oah.adapters.sql.tables import workspaces
from oah.adapters.sql.text import require_sound
from oah.core.model.ids import WorkspaceId
from oah.errors import InvalidRequest, NotFound
from oah.ports.rows import Page
from oah.ports.webhooks import NewWebhook, Webhook

COLUMNS = (
    "id", "workspace_id", "url", "events", "description", "active", "timeout_ms", "failures", "not_before",
    "off_reason", "created_by", "created_at",
)  # fmt: skip
CHANGES = frozenset({"url", "events", "description", "active", "timeout", "secret"})
PENDING = webhook_deliveries.c.state == text("'pending'")
MILLISECOND = timedelta(milliseconds=1)


class Webhooks(Aggregate):
    """The aggregate of webhooks."""

    def create_webhook(self, webhook: NewWebhook) -> Webhook:
        """Raises NotFound (workspace)."""
        require_sound(url=webhook.url, description=webhook.description, secret=webhook.secret, by=webhook.by)
        with self._database.write() as connection:
            known = select(workspaces.c.id).where(workspaces.c.id == webhook.workspace_id)
            if connection.execute(known).first() is None:
                raise NotFound(f"no workspace '{webhook.workspace_id}'")
            connection.execute(
                insert(webhooks).values(
                    id=webhook.id,
                    workspace_id=webhook.workspace_id,
                    url=webhook.url,
                    secret=webhook.secret,
                    events=list(webhook.events),
                    description=webhook.description,
                    timeout_ms=webhook.timeout // MILLISECOND,
                    created_by=webhook.by,
                    created_at=now(),
                )
            )
            made = found_webhook(connection, webhook.id, None)
            written_down(connection, made, webhook.by, "created", url=made.url)
            return made

    def webhooks(
        self, workspace_id: WorkspaceId | None, *, cursor: str | None = None, limit: int = 100
    ) -> Page[Webhook]:
        """Newest first."""
        statement = select(*picked(webhooks, COLUMNS))
        if workspace_id is not None:
            statement = statement.where(webhooks.c.workspace_id == workspace_id)
        with self._database.read() as connection:
            return paged(
                connection,
                statement,
                webhooks,
                webhook_of,
                lambda item: (item.created_at, item.id),
                cursor=cursor,
                limit=limit,
            )

    def webhook(self, webhook_id: str, workspace_id: WorkspaceId | None) -> Webhook:
        """Raises NotFound."""
        with self._database.read() as connection:
            return found_webhook(connection, webhook_id, workspace_id)

    def update_webhook(
        self, webhook_id: str, workspace_id: WorkspaceId | None, changes: Mapping[str, Any], *, by: str
    ) -> Webhook:
        """Switched on again it begins anew."""
        if unknown := set(changes) - CHANGES:
            raise InvalidRequest(f"a webhook has no {', '.join(sorted(unknown))} to change")
        values = dict(changes)
        require_sound(by=by, **{name: values.get(name) for name in ("url", "description", "secret")})
        if "timeout" in values:
            values["timeout_ms"] = values.pop("timeout") // MILLISECOND
        if "events" in values:
            values["events"] = list(values["events"])
        if values.get("active"):
            values.update(failures=0, not_before=None, off_reason=None)
        with self._database.write() as connection:
            before = locked(connection, webhook_id, workspace_id)
            if values.get("active") and not before.active:
                mine = (webhook_deliveries.c.webhook_id == webhook_id, PENDING)
                connection.execute(update(webhook_deliveries).where(*mine).values(next_at=now()))
            if values:
                connection.execute(update(webhooks).where(webhooks.c.id == webhook_id).values(**values))
                shown = {name: value for name, value in changes.items() if name in ("url", "active")}
                changed = {"changed": sorted(changes), **shown}
                written_down(connection, before, by, "changed", **changed)
            return found_webhook(connection, webhook_id, None)

    def delete_webhook(self, webhook_id: str, workspace_id: WorkspaceId | None, *, by: str) -> Webhook:
        """With its deliveries."""
        with self._database.write() as connection:
            found = locked(connection, webhook_id, workspace_id)
            connection.execute(delete(webhooks).where(webhooks.c.id == webhook_id))
            connection.execute(delete(webhook_deliveries).where(webhook_deliveries.c.webhook_id == webhook_id))
            written_down(connection, found, by, "deleted", url=found.url)
            return found


def webhook_of(row: Sequence[Any]) -> Webhook:
    """A row in the order of COLUMNS."""
    (
        webhook_id, workspace_id, url, events, description, active, timeout_ms, failures, not_before, off_reason,
        created_by, created_at,
    ) = row  # fmt: skip
    return Webhook(
        id=webhook_id,
        workspace_id=WorkspaceId(workspace_id),
        url=url,
        events=tuple(parsed(events)),
        timeout=duration(timeout_ms) or timedelta(0),
        description=description,
        active=bool(active),
        created_by=created_by,
        created_at=required(created_at),
        failures=failures,
        off_reason=off_reason,
        not_before=moment(not_before),
    )


def found_webhook(connection: Connection, webhook_id: str, workspace_id: WorkspaceId | None) -> Webhook:
    """Raises NotFound, also for another workspace's."""
    return _one(connection, select(*picked(webhooks, COLUMNS)), webhook_id, workspace_id)


def locked(connection: Connection, webhook_id: str, workspace_id: WorkspaceId | None) -> Webhook:
    """The same, its row locked."""
    return _one(connection, select(*picked(webhooks, COLUMNS)).with_for_update(), webhook_id, workspace_id)


def _one(connection: Connection, statement: Select[Any], webhook_id: str, workspace_id: WorkspaceId | None) -> Webhook:
    row = connection.execute(statement.where(webhooks.c.id == webhook_id)).first()
    if row is None or (workspace_id is not None and row.workspace_id != workspace_id):
        raise NotFound(f"no webhook {webhook_id}")
    return webhook_of(row)


def written_down(connection: Connection, webhook: Webhook, by: str, what: str, **data: Any) -> None:
    """A row of the audit."""
    record(connection, [entry(by, f"webhook.{what}", webhook.id, {"workspace_id": webhook.workspace_id, **data})])
