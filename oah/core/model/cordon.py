"""A cordon that an operator wants kept: of the name of a worker, through all its lives."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from oah.core.model.ids import WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """The worker of this name on this host takes no new runs, nor do those that come after it. `worker_id`: which was
    alive when it was told. `until` None: until somebody uncordons it."""

    host: str
    name: str
    pool: str
    worker_id: WorkerId
    by: str
    at: datetime
    until: datetime | None = None
    left: timedelta | None = None
    """Until it ends, when it was read, by the database's clock."""
