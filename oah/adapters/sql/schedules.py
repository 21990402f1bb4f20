"""Schedules and their firings, as rows."""

from __future__ import annotations

from oah.adapters.sql.aggregate import Aggregate


class Schedules(Aggregate):
    """See ports.schedules.ScheduleStore."""
