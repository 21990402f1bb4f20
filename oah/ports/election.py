"""Who leads: one lease that one process at a time holds, wherever it is kept (the broker, a Kubernetes Lease)."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol


class Election(Protocol):
    """Where the leader lease is kept. A holder is valid for `lease` from before the call that answered True, never
    longer: a keeper must not hand the lease to another before that, whatever the clocks of machines say."""

    def lead(self, holder: str, *, lease: timedelta) -> bool:
        """Take or keep the lease; True while `holder` has it. Raises Unavailable."""
        ...

    def resign(self, holder: str) -> None:
        """Give it up, if `holder` has it. Raises Unavailable."""
        ...

    def leader(self) -> str | None:
        """Who has it; None: nobody, or nobody any more. Raises Unavailable."""
        ...
