"""An election kept elsewhere, announced where everybody looks."""

from __future__ import annotations

import contextlib
from datetime import timedelta

from oah.errors import OahError
from oah.ports.election import Election


class Announced:
    """Decides by `election`; the winner also takes the lease of `board`, so that whoever reads there (`oah doctor`, the
    API) sees who leads. What stands on the board decides nothing: one that is away delays nobody's leadership longer
    than its own time-out, and the name of a dead leader goes with its lease."""

    def __init__(self, election: Election, board: Election) -> None:
        self._election = election
        self._board = board

    def lead(self, holder: str, *, lease: timedelta) -> bool:
        """Raises Unavailable when the election does."""
        has = self._election.lead(holder, lease=lease)
        if has:
            with contextlib.suppress(OahError):
                self._board.lead(holder, lease=lease)
        return has

    def resign(self, holder: str) -> None:
        """Raises Unavailable when the election does."""
        with contextlib.suppress(OahError):
            self._board.resign(holder)
        self._election.resign(holder)

    def leader(self) -> str | None:
        """As the election has it."""
        return self._election.leader()
