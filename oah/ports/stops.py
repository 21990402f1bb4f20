"""What a cancel finds, and what it leaves behind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from oah.core.model.ids import WorkerId
from oah.core.model.lane import Lane
from oah.core.model.run import Run
from oah.ports.rows import AfterRun


class CancelResult(StrEnum):
    """What a cancel found."""

    REMOVED = "removed"
    """It was queued and is cancelled now."""
    SIGNALLED = "signalled"
    """It is active; its owner will end it."""
    TOO_LATE = "too_late"
    """It had already ended."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Answer of a cancel; ``owner`` to be told to look; ``after`` when it was removed from the queue."""

    run: Run
    result: CancelResult
    owner: WorkerId | None = None
    lane: Lane | None = None
    after: AfterRun | None = None
    unheld: bool = False
    """It was waiting for its retry, and the hold of its session ended with it."""
