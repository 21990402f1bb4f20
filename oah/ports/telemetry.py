"""Telemetry: how services, adapters and components report, without knowing who collects.

Names and labels are those of the one table (`oah/adapters/prometheus/table.py`). A name, a label or a label value that
the table does not know raises `Broken` there, so that a typo fails its first test instead of vanishing. Labels are
never ids: they come from closed sets or from configuration. A trailing underscore is dropped: `class_="interactive"` is
the label `class`.
"""

from __future__ import annotations

from typing import Protocol


class Telemetry(Protocol):
    """Counts, levels and distributions. Thread safe, never blocks, never raises for an unreachable collector."""

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Add `value` (≥ 0) to a counter."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a level."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add one observation to a distribution; durations in seconds, sizes in bytes."""

    def forget(self, name: str, **labels: str) -> None:
        """Drop a level whose subject is gone (a lane that is no longer served): better no figure than an old one."""


class NullTelemetry:
    """Collects nothing."""

    def count(self, name: str, value: float = 1, **labels: str) -> None: ...

    def gauge(self, name: str, value: float, **labels: str) -> None: ...

    def observe(self, name: str, value: float, **labels: str) -> None: ...

    def forget(self, name: str, **labels: str) -> None: ...
