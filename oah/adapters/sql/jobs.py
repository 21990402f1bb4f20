"""Rows of maintenance jobs."""

from __future__ import annotations

from oah.adapters.sql import governance_tables
from oah.adapters.sql.aggregate import Aggregate


class Jobs(Aggregate):
    """The aggregate of maintenance jobs."""

    _table = governance_tables.jobs
