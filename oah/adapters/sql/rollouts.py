"""Rolling restarts, as rows."""

from __future__ import annotations

from oah.adapters.sql.aggregate import Aggregate


class Rollouts(Aggregate):
    """See ports.rollouts.RolloutStore."""
