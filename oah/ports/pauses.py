"""Pauses and caps: what takes no new runs, or only so many at once."""

from __future__ import annotations

from typing import Protocol


class PauseStore(Protocol):
    """Rows of SQL."""
