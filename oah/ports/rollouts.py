"""Rolling restarts."""

from __future__ import annotations

from typing import Protocol


class RolloutStore(Protocol):
    """Rows of SQL."""
