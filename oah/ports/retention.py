"""What ages out of SQL, in bounded batches."""

from __future__ import annotations

from typing import Protocol


class RetentionStore(Protocol):
    """Deletes of what nobody needs any more."""
