"""Pauses and caps, as rows."""

from __future__ import annotations

from oah.adapters.sql.aggregate import Aggregate


class Pauses(Aggregate):
    """See ports.pauses.PauseStore."""
