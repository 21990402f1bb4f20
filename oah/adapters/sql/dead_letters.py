"""Rows of what failed finally."""

from __future__ import annotations

from oah.adapters.sql import governance_tables
from oah.adapters.sql.aggregate import Aggregate


class DeadLetters(Aggregate):
    """The aggregate of what failed finally."""

    _table = governance_tables.dead_letters
