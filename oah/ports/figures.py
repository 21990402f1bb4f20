"""Figures about recovery, exact however many runs there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from oah.core.model.ids import SessionId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import RecoveryState


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFigures:
    """What recovery did last with the runs that exist now."""

    counts: Mapping[RecoveryState, int]
    reasons: Mapping[str, int]
    """Why recovery came, over all states."""
    oldest_quarantined_at: datetime | None
    newest_quarantined_at: datetime | None
    newest_recovered_at: datetime | None


@dataclass(frozen=True, slots=True)
class LaneRuns:
    """Active runs of the sessions of one lane, whoever has them."""

    running: int = 0
    """Those that hold a slot."""
    waiting: int = 0
    """Those that wait for an answer, parked: an agent lives, no slot is held."""


class FigureStore(Protocol):
    """Aggregates for people and for scaling."""

    def lane_runs(self) -> Mapping[Lane, LaneRuns]:
        """By lane; those without any are missing. Its cost is that of the active runs, whatever the backlog."""
        ...

    def known_sessions(self, sessions: Sequence[SessionId]) -> set[SessionId]:
        """Those of these that exist."""
        ...

    def recovery_figures(self, workspace_id: WorkspaceId | None) -> RecoveryFigures:
        """Of a workspace, or of all; one pass over the runs that recovery ever met."""
        ...
