"""Webhooks: made and looked after over the API, and, for who receives them, verified without it.

``verify_webhook`` needs nothing but the secret that ``create_webhook`` answered with.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from oah.client.calls import Calls, given, part, seconds
from oah.client.transport import Json
from oah.core.policy import signatures
from oah.errors import Unauthorized

TOLERANCE = timedelta(minutes=5)


def verify_webhook(
    body: bytes | str,
    headers: Mapping[str, str],
    secret: str | Sequence[str],
    *,
    tolerance: timedelta = TOLERANCE,
    now: float | None = None,
) -> dict[str, Any]:
    """The document of a request that is genuine. ``body``: as it came, before any parsing; ``headers`` of any case;
    ``secret``: one, or several while a secret is being changed; ``now``: seconds since the epoch.

    Raises Unauthorized ``invalid_signature`` (answer it with 401). A delivery may come more than once: its ``id`` is
    the same each time.
    """
    raw = body.encode() if isinstance(body, str) else body
    found = {name.lower(): value for name, value in headers.items()}
    message_id, stamp, given = (found.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
    if not (message_id and given and stamp.isascii() and stamp.isdigit() and len(stamp) < 16):
        raise Unauthorized("a webhook has the headers webhook-id, -timestamp and -signature", code="invalid_signature")
    if abs((time.time() if now is None else now) - int(stamp)) > tolerance.total_seconds():
        raise Unauthorized("the webhook is too old, or a clock is wrong", code="invalid_signature")
    secrets = [secret] if isinstance(secret, str) else secret
    if not signatures.fits(given, secrets, message_id=message_id, timestamp=int(stamp), body=raw):
        raise Unauthorized("the webhook's signature does not fit", code="invalid_signature")
    document: dict[str, Any] = json.loads(raw)
    return document


class WebhookCalls(Calls):
    """The client's part that speaks of webhooks."""

    def create_webhook(
        self,
        url: str,
        *,
        events: Iterable[str] | None = None,
        workspace: str | None = None,
        description: str | None = None,
        timeout: timedelta | float | None = None,
        secret: str | None = None,
    ) -> Json:
        """A new webhook; its ``secret`` is in this answer and nowhere else. Raises InvalidRequest
        (``invalid_url``, ``address_refused``, ``unknown_event``)."""
        body = given(
            url=url,
            events=None if events is None else list(events),
            workspace=workspace,
            description=description,
            timeout_seconds=seconds(timeout),
            secret=secret,
        )
        return self._one("POST", "/v1/webhooks", body=body, once=True)

    def webhooks(self, *, workspace: str | None = None, limit: int | None = None) -> list[Json]:
        """Webhooks without their secrets, newest first."""
        return self._list("/v1/webhooks", {"workspace": workspace}, limit=limit)

    def webhook(self, webhook_id: str) -> Json:
        """One webhook. Raises NotFound."""
        return self._one("GET", _path(webhook_id))

    def update_webhook(self, webhook_id: str, **changes: Any) -> Json:
        """Change ``url``, ``events``, ``description``, ``timeout_seconds``, ``secret``, ``active``."""
        return self._one("PATCH", _path(webhook_id), body=changes)

    def delete_webhook(self, webhook_id: str) -> Json:
        """With all its deliveries."""
        return self._one("DELETE", _path(webhook_id), once=True)

    def test_webhook(self, webhook_id: str) -> Json:
        """Send something now, once; the delivery that shows how it went."""
        return self._one("POST", f"{_path(webhook_id)}/test", once=True)

    def webhook_deliveries(self, webhook_id: str, *, state: str | None = None, limit: int | None = None) -> list[Json]:
        """Deliveries with every try, newest first."""
        return self._list(f"{_path(webhook_id)}/deliveries", {"state": state}, limit=limit)

    def webhook_delivery(self, webhook_id: str, delivery_id: str) -> Json:
        """One delivery. Raises NotFound."""
        return self._one("GET", f"{_path(webhook_id)}/deliveries/{part(delivery_id)}")

    def redeliver(self, webhook_id: str, delivery_id: str) -> Json:
        """Deliver once more, under the same id. Raises Conflict ``webhook_inactive``."""
        return self._one("POST", f"{_path(webhook_id)}/deliveries/{part(delivery_id)}/redeliver", once=True)


def _path(webhook_id: str) -> str:
    return f"/v1/webhooks/{part(webhook_id)}"
