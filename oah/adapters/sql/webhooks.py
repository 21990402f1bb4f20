"""Rows of webhooks and their deliveries."""

from __future__ import annotations

from oah.adapters.sql import governance_tables
from oah.adapters.sql.aggregate import Aggregate


class Webhooks(Aggregate):
    """The aggregate of webhooks and their deliveries."""

    _table = governance_tables.webhooks
