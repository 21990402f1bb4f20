"""What stands in the broker's ready sets, entry by entry, for whoever governs them. A claim never reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from oah.core.model.ids import EpochId, SessionId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass

EVERY = WorkspaceId("")
"""In place of a workspace: all of them together."""


class Fit(StrEnum):
    """Whether the session's own record agrees with an entry."""

    WELL = "well"
    TORN = "torn"
    """It does, and another index lacks it: it counts as ready and would never be taken, or is taken and never
    counted."""
    STRAY = "stray"
    """It does not: the session is elsewhere, or nothing is known of it."""


@dataclass(frozen=True, slots=True, order=True)
class ReadySet:
    """One set. `EVERY`: that of all workspaces, by age (what figures count), else the one that a claim
    takes from."""

    lane: Lane
    ready_class: ReadyClass
    workspace_id: WorkspaceId = EVERY


@dataclass(frozen=True, slots=True)
class ReadyEntry:
    """A session in a set."""

    ready_set: ReadySet
    session_id: SessionId
    fit: Fit


class ReadySets(Protocol):
    """Raises Unavailable, EpochMismatch."""

    def ready_sets(self, workspaces: Sequence[WorkspaceId] = ()) -> list[ReadySet]:
        """Those that are not empty, sorted: of the lanes that the broker knows, by age and of each workspace that
        stands in a ring, is capped, or is named."""
        ...

    def ready_entries(self, epoch: EpochId, where: ReadySet, *, first: int, limit: int) -> list[ReadyEntry]:
        """A stretch of a set, the oldest first."""
        ...

    def weed(self, epoch: EpochId, entries: Sequence[ReadyEntry]) -> int:
        """Remove those entries that are strays still; how many."""
        ...
