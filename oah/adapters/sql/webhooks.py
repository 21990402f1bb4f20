"""Rows of webhooks and their deliveries."""

from __future__ import annotations

from oah.adapters.sql.aggregate import Aggregate


class Webhooks(Aggregate):
    """The aggregate of webhooks and their deliveries."""
