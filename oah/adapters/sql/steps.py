"""Rows of steps inside a run and its waits."""

from __future__ import annotations

from oah.adapters.sql.aggregate import Aggregate


class Steps(Aggregate):
    """The aggregate of steps inside a run and its waits."""
