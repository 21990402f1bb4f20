"""Rows of maintenance jobs."""

from __future__ import annotations

from oah.adapters.sql.aggregate import Aggregate


class Jobs(Aggregate):
    """The aggregate of maintenance jobs."""
