"""Schedules: runs that time submits, exactly once per fire time."""

from __future__ import annotations

from typing import Protocol


class ScheduleStore(Protocol):
    """Rows of SQL."""
