"""The epoch: which incarnation of the broker's data the deployment believes in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from oah.core.model.ids import EpochId

SCHEMA = 1
"""The broker schema this release writes; it also reads SCHEMA - 1."""


class EpochState(StrEnum):
    """Whether claims are answered."""

    OPEN = "open"
    REBUILDING = "rebuilding"


@dataclass(frozen=True, slots=True)
class EpochView:
    """What the broker says of itself. ``id`` is None when the epoch key is missing (flushed, new)."""

    id: EpochId | None
    state: EpochState | None
    run_id: str | None
    """The server's run_id (or master_replid) that was written when the epoch was minted; None in process."""
    server_run_id: str | None
    """The server's run_id now; None where it is hidden."""
    schema: int | None
    open_for: timedelta | None
    """How long it has been open, by the broker's clock."""
