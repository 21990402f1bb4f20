"""A worker's own record of outcomes that SQL could not take: nothing that an agent has done is lost by a restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from oah.ports.store import RunFence, Settlement


class OutcomeLog(Protocol):
    """Kept beside the worker's name lock. ``keep`` returns only when the outcome is on the disk."""

    def keep(self, settlements: Sequence[Settlement]) -> None:
        """Write outcomes; one that is kept already stays once. Raises Unavailable: the disk does not take them."""
        ...

    def kept(self) -> list[Settlement]:
        """What has not been delivered yet, oldest first."""
        ...

    def delivered(self, fences: Sequence[RunFence]) -> None:
        """SQL has answered for these (written or refused by the fence)."""
        ...

    def worker_ids(self) -> tuple[str, ...]:
        """Incarnations of this name that ran in this directory before."""
        ...

    def incarnation(self, worker_id: str) -> None:
        """Record this incarnation, before its first claim."""
        ...

    def close(self) -> None: ...
