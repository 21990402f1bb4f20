"""/v1/webhooks: who outside is told of what ended, and the log of that."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from oah.api.auth import Caller, needs
from oah.api.render import Document, answer, moment, page, seconds
from oah.api.schemas import Body, Cursor, Filter, Limit, Named, Number
from oah.api.state import Desk
from oah.core.model.workspace import Scope
from oah.ports.webhooks import Delivery, DeliveryState, Webhook
from oah.services import webhooks, workspaces

router = APIRouter(prefix="/v1", tags=["webhooks"])


class WebhookBody(Body):
    """POST /webhooks"""

    url: str
    events: list[str] | None = Field(default=None, max_length=50)
    workspace: str | None = None
    description: str | None = None
    timeout_seconds: Number | None = None
    secret: str | None = None


class WebhookChanges(Body):
    """PATCH /webhooks/{id}; what is absent stays."""

    url: str = ""
    events: list[str] = Field(default_factory=list, max_length=50)
    description: str | None = None
    timeout_seconds: Number = 0
    secret: str = ""
    active: bool = True


@router.post("/webhooks", status_code=201, **needs(Scope.OPERATE))
def create_webhook(body: WebhookBody, desk: Desk, caller: Caller) -> Response:
    """A new webhook; its secret is in this answer and nowhere else."""
    context = desk.context
    made = webhooks.create(
        context.store,
        context.ids,
        context.webhooks,
        workspace_id=workspaces.resolve(context.store, body.workspace, caller.workspace_id),
        url=body.url,
        events=body.events,
        description=body.description,
        timeout_seconds=body.timeout_seconds,
        secret=body.secret,
        by=caller.by,
    )
    headers = {"location": f"/v1/webhooks/{made.webhook.id}", "cache-control": "no-store"}
    return answer({**webhook_document(made.webhook), "secret": made.secret}, 201, headers)


@router.get("/webhooks", **needs(Scope.OPERATE))
def list_webhooks(
    desk: Desk, caller: Caller, workspace: Filter = None, cursor: Cursor = None, limit: Limit = 100
) -> Response:
    """Webhooks, newest first."""
    store = desk.context.store
    where = caller.workspace_id if workspace is None else workspaces.resolve(store, workspace, caller.workspace_id)
    found = store.webhooks(where, cursor=cursor, limit=limit)
    return page(map(webhook_document, found.items), found.next_cursor)


@router.get("/webhooks/{webhook_id}", **needs(Scope.OPERATE))
def show_webhook(webhook_id: Named, desk: Desk, caller: Caller) -> Response:
    """One webhook, without its secret."""
    return answer(webhook_document(desk.context.store.webhook(webhook_id, caller.workspace_id)))


@router.patch("/webhooks/{webhook_id}", **needs(Scope.OPERATE))
def change_webhook(webhook_id: Named, body: WebhookChanges, desk: Desk, caller: Caller) -> Response:
    """Change a webhook. Switched on again it begins anew: what is pending is due at once."""
    context = desk.context
    changes = body.model_dump(exclude_unset=True)
    return answer(
        webhook_document(
            webhooks.change(context.store, context.webhooks, webhook_id, caller.workspace_id, changes, by=caller.by)
        )
    )


@router.delete("/webhooks/{webhook_id}", **needs(Scope.OPERATE))
def delete_webhook(webhook_id: Named, desk: Desk, caller: Caller) -> Response:
    """Delete a webhook with all its deliveries."""
    return answer(webhook_document(desk.context.store.delete_webhook(webhook_id, caller.workspace_id, by=caller.by)))


@router.post("/webhooks/{webhook_id}/test", status_code=202, **needs(Scope.OPERATE))
def test_webhook(webhook_id: Named, desk: Desk, caller: Caller) -> Response:
    """Send something now, once: the delivery shows how it went."""
    context = desk.context
    made = webhooks.test(context.store, context.jobs, webhook_id, caller.workspace_id, by=caller.by)
    return answer(delivery_document(made), 202)


@router.get("/webhooks/{webhook_id}/deliveries", **needs(Scope.OPERATE))
def list_deliveries(
    webhook_id: Named,
    desk: Desk,
    caller: Caller,
    state: Annotated[DeliveryState | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Deliveries with every try, newest first."""
    found = desk.context.store.deliveries(webhook_id, caller.workspace_id, state=state, cursor=cursor, limit=limit)
    return page(map(delivery_document, found.items), found.next_cursor)


@router.get("/webhooks/{webhook_id}/deliveries/{delivery_id}", **needs(Scope.OPERATE))
def show_delivery(webhook_id: Named, delivery_id: Named, desk: Desk, caller: Caller) -> Response:
    """One delivery."""
    return answer(delivery_document(desk.context.store.delivery(webhook_id, delivery_id, caller.workspace_id)))


@router.post("/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver", status_code=202, **needs(Scope.OPERATE))
def redeliver(webhook_id: Named, delivery_id: Named, desk: Desk, caller: Caller) -> Response:
    """Deliver once more, under the same id, whatever became of it before."""
    context = desk.context
    again = webhooks.redeliver(context.store, context.jobs, webhook_id, delivery_id, caller.workspace_id, by=caller.by)
    return answer(delivery_document(again), 202)


def webhook_document(webhook: Webhook) -> Document:
    """A webhook; never its secret."""
    return {
        "id": webhook.id,
        "workspace_id": webhook.workspace_id,
        "url": webhook.url,
        "events": list(webhook.events),
        "description": webhook.description,
        "timeout_seconds": seconds(webhook.timeout),
        "active": webhook.active,
        "off_reason": webhook.off_reason,
        "failures": webhook.failures,
        "not_before": moment(webhook.not_before),
        "created_by": webhook.created_by,
        "created_at": moment(webhook.created_at),
    }


def delivery_document(delivery: Delivery) -> Document:
    """A delivery with its log."""
    return {
        "id": delivery.id,
        "webhook_id": delivery.webhook_id,
        "type": delivery.type,
        "session_id": delivery.session_id,
        "number": delivery.number,
        "run_id": delivery.run_id,
        "state": delivery.state,
        "tries": delivery.tries,
        "log": [dict(entry) for entry in delivery.log],
        "next_at": moment(delivery.next_at) if delivery.state is DeliveryState.PENDING else None,
        "created_at": moment(delivery.created_at),
        "ended_at": moment(delivery.ended_at),
    }
