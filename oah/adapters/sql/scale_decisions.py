"""Decisions of scaling, as rows."""

from __future__ import annotations

from oah.adapters.sql.aggregate import Aggregate


class ScaleDecisions(Aggregate):
    """See ports.scaling.ScalingStore."""
