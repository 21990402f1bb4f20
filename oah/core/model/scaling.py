"""What is remembered of a pool that shrinks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from oah.core.model.ids import WorkerId


@dataclass(frozen=True, slots=True)
class Going:
    """A worker, by its name, that will leave its pool once it is empty."""

    since: datetime
    """When it was chosen, by the database's clock."""
    worker_id: WorkerId | None = None
    """The incarnation that was alive then; None: it did not report."""
    ours: bool = True
    """Who scales has cordoned it. What somebody else has cordoned is never uncordoned by who scales."""
    removing: bool = False
    """It was found empty and its target was, or is being, told to let it go: there is no way back."""
