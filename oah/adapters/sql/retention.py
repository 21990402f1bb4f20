"""Rows of what ages out."""

from __future__ import annotations

from oah.adapters.sql.aggregate import Aggregate


class Retention(Aggregate):
    """The aggregate of what ages out."""
