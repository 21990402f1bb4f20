"""Which epoch a process believes in."""

from __future__ import annotations

from typing import Protocol

from oah.core.model.ids import EpochId
from oah.ports.broker import Epochs


class EpochSource(Protocol):
    """The current epoch id, cached; SQL is asked when Redis contradicts."""

    def current(self) -> EpochId:
        """The id to name in broker calls. Raises Unavailable while SQL cannot be asked for the first one."""
        ...

    def refresh(self) -> EpochId:
        """Read the id from SQL again, after an ``EpochMismatch``. Raises Unavailable."""
        ...

    def for_renewal(self, through: Epochs) -> EpochId:
        """As ``refresh``; with SQL away the id found in Redis, which a renewal, and only a renewal, may use."""
        ...
