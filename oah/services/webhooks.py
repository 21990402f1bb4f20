"""Webhooks: created, changed, tested; their secrets are shown once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from oah.core.model.ids import WorkspaceId
from oah.core.policy import addresses, admission, signatures, webhooks
from oah.errors import InvalidRequest, Unavailable
from oah.ports.clock import Ids
from oah.ports.jobs import JobQueue
from oah.ports.store import Store
from oah.ports.webhooks import Delivery, NewWebhook, Webhook

log = logging.getLogger(__name__)

TASK = "webhook"
"""The name under which a webhook with something to deliver is queued; its handler is ``DeliverWebhook``."""
NEVER_NULL = ("url", "events", "timeout_seconds", "secret", "active")
LONGEST_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Limits:
    """Where webhooks may go, and how long a receiver has by default."""

    addresses: addresses.Rules = field(default_factory=addresses.Rules)
    timeout: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Made:
    """A webhook with the only copy of its secret that anybody gets."""

    webhook: Webhook
    secret: str


def create(
    store: Store,
    ids: Ids,
    limits: Limits,
    *,
    workspace_id: WorkspaceId,
    url: str,
    events: Iterable[str] | None,
    description: str | None,
    timeout_seconds: float | None,
    secret: str | None,
    by: str,
) -> Made:
    """A new webhook. Raises InvalidRequest (``invalid_url``, ``address_refused``, ``unknown_event``, …), NotFound."""
    given = {"url": url, "description": description, "timeout_seconds": timeout_seconds, "secret": secret}
    wish = _judged({name: value for name, value in given.items() if value is not None}, limits)
    secret = secret or signatures.secret_of(bytes.fromhex(ids.nonce() + ids.nonce()))
    made = store.create_webhook(
        NewWebhook(
            id=ids.new("wh"),
            workspace_id=workspace_id,
            url=url,
            secret=secret,
            events=webhooks.subscription(events),
            timeout=wish.get("timeout", limits.timeout),
            description=description,
            by=by,
        )
    )
    return Made(made, secret)


def change(
    store: Store,
    limits: Limits,
    webhook_id: str,
    workspace_id: WorkspaceId | None,
    changes: Mapping[str, Any],
    *,
    by: str,
) -> Webhook:
    """Change what is named. Raises as ``create``, NotFound."""
    return store.update_webhook(webhook_id, workspace_id, _judged(changes, limits), by=by)


def _judged(changes: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    judged = dict(changes)
    for name in NEVER_NULL:
        if name in judged and judged[name] is None:
            raise InvalidRequest(f"{name} cannot be null")
    if "url" in judged:
        addresses.check(addresses.target(judged["url"]), limits.addresses)
    if "events" in judged:
        judged["events"] = webhooks.subscription(judged["events"])
    if judged.get("description") is not None:
        admission.clean(judged["description"], what="description", limit=2_000)
    if "secret" in judged:
        signatures.key_of(judged["secret"])
    if "timeout_seconds" in judged:
        judged["timeout"] = _timeout(judged.pop("timeout_seconds"))
    return judged


def _timeout(seconds: float) -> timedelta:
    if not 0.1 <= seconds <= LONGEST_TIMEOUT.total_seconds():
        raise InvalidRequest(f"timeout_seconds must be 0.1 to {LONGEST_TIMEOUT.total_seconds():g}")
    return timedelta(seconds=seconds)


def test(store: Store, queue: JobQueue, webhook_id: str, workspace_id: WorkspaceId | None, *, by: str) -> Delivery:
    """Something to deliver now, tried once. Raises NotFound, Conflict ``webhook_inactive``."""
    delivery = store.add_test_delivery(webhook_id, workspace_id, by=by)
    _tell(queue, webhook_id)
    return delivery


def redeliver(
    store: Store, queue: JobQueue, webhook_id: str, delivery_id: str, workspace_id: WorkspaceId | None, *, by: str
) -> Delivery:
    """Deliver once more, whatever became of it. Raises NotFound, Conflict ``webhook_inactive``."""
    delivery = store.redeliver(webhook_id, delivery_id, workspace_id, by=by)
    _tell(queue, webhook_id)
    return delivery


def _tell(queue: JobQueue, webhook_id: str) -> None:
    try:
        queue.enqueue(TASK, webhook_id)
    except Unavailable as error:
        log.warning("webhook %s is told to the queue later: %s", webhook_id, error)
