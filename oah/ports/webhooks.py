"""Webhooks and the log of their deliveries.

A delivery is written by the transaction that writes its event, once per webhook: that is the outbox. Its row is the
truth about what was tried and what is still to be done; queues only carry the id of the webhook.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.policy.webhooks import Verdict
from oah.ports.rows import Page

LOGGED = 32
"""Tries that a delivery's log keeps, the newest."""


class DeliveryState(StrEnum):
    """Where a delivery is in its life."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWebhook:
    """A webhook to create; everything is judged already."""

    id: str
    workspace_id: WorkspaceId
    url: str
    secret: str
    events: tuple[str, ...]
    timeout: timedelta
    description: str | None = None
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A row of ``webhooks`` without its secret. ``failures``: rounds in a row that all failed; ``off_reason``: why it
    was switched off, where that was not asked for."""

    id: str
    workspace_id: WorkspaceId
    url: str
    events: tuple[str, ...]
    timeout: timedelta
    description: str | None
    active: bool
    created_by: str
    created_at: datetime
    failures: int = 0
    off_reason: str | None = None
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A row of ``webhook_deliveries``. ``tries`` of this series; ``log``: one document per try, oldest first:
    ``{try, at, outcome, status, duration_ms, error, excerpt}``."""

    id: str
    webhook_id: str
    workspace_id: WorkspaceId
    session_id: SessionId | None
    number: int
    type: str
    run_id: RunId | None
    state: DeliveryState
    tries: int
    log: tuple[Mapping[str, Any], ...]
    next_at: datetime
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """A delivery that was taken for one try. ``body`` is kept: every try says the same."""

    id: str
    type: str
    tries: int
    body: str
    at: datetime
    """By the database's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Deliveries of one webhook that were taken together. Without any: ``wait`` until there may be one, None when
    nothing is pending or the webhook is off."""

    webhook_id: str
    url: str = ""
    secret: str = ""
    timeout: timedelta = timedelta(0)
    failures: int = 0
    sendings: tuple[Sending, ...] = ()
    wait: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """How a try went. ``entry``: what is added to the log's document of it."""

    sending: Sending
    verdict: Verdict
    entry: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Deliveries that are pending, the age of the oldest, and webhooks that were switched off for their failures."""

    pending: int
    oldest: timedelta
    off: int


class WebhookStore(Protocol):
    """Rows of ``webhooks`` and ``webhook_deliveries``."""

    def create_webhook(self, webhook: NewWebhook) -> Webhook: ...
    def webhooks(
        self, workspace_id: WorkspaceId | None, *, cursor: str | None = None, limit: int = 100
    ) -> Page[Webhook]:
        """Newest first."""
        ...

    def webhook(self, webhook_id: str, workspace_id: WorkspaceId | None) -> Webhook:
        """Raises NotFound, also for another workspace's webhook."""
        ...

    def update_webhook(
        self, webhook_id: str, workspace_id: WorkspaceId | None, changes: Mapping[str, Any], *, by: str
    ) -> Webhook:
        """Change ``url``, ``events``, ``description``, ``active``, ``timeout``, ``secret``. Switched on it begins anew:
        what is pending is due."""
        ...

    def delete_webhook(self, webhook_id: str, workspace_id: WorkspaceId | None, *, by: str) -> Webhook:
        """With its deliveries, whatever their state."""
        ...

    def deliveries(
        self,
        webhook_id: str,
        workspace_id: WorkspaceId | None,
        *,
        state: DeliveryState | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Delivery]:
        """Newest first."""
        ...

    def delivery(self, webhook_id: str, delivery_id: str, workspace_id: WorkspaceId | None) -> Delivery: ...
    def add_test_delivery(self, webhook_id: str, workspace_id: WorkspaceId | None, *, by: str) -> Delivery:
        """Raises Conflict ``webhook_inactive``."""
        ...

    def redeliver(self, webhook_id: str, delivery_id: str, workspace_id: WorkspaceId | None, *, by: str) -> Delivery:
        """Due now, with all its tries before it, under the same id. Raises Conflict ``webhook_inactive``."""
        ...

    def due_webhooks(self, *, limit: int) -> Sequence[str]:
        """Webhooks that have something to deliver now, or a try that was interrupted."""
        ...

    def webhook_backlog(self) -> Backlog:
        """Of all workspaces."""
        ...

    def take_deliveries(self, webhook_id: str, *, limit: int, hold: timedelta) -> Round:
        """Take due deliveries for a try each, oldest first: counted and logged before anything is sent. Nobody else
        takes them for the webhook's time-out and ``hold``. While rounds fail, one at a time."""
        ...

    def end_deliveries(self, webhook_id: str, tried: Sequence[Tried], *, pause: timedelta, off_after: int) -> bool:
        """Record how the tries of a round went; what somebody else has taken meanwhile is left alone. What is given up
        becomes a dead letter. ``pause``: when all failed. ``off_after`` failed rounds in a row, or a receiver that is
        gone, switch the webhook off, with an audit row: whether that happened."""
        ...
