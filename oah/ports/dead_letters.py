"""Dead letters: what failed finally, whole, until somebody redrives or purges it."""

from __future__ import annotations

from typing import Protocol


class DeadLetterStore(Protocol):
    """Rows of ``dead_letters``."""
