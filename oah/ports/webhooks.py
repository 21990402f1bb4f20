"""Webhooks and the log of their deliveries."""

from __future__ import annotations

from typing import Protocol


class WebhookStore(Protocol):
    """Rows of ``webhooks`` and ``webhook_deliveries``."""
