"""Groups of sessions that can be paused or capped: all of them, those of a workspace, a pool or a profile."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from oah.core.model.ids import WorkspaceId
from oah.core.model.lane import Lane


class GroupKind(StrEnum):
    """What its sessions have in common."""

    ALL = "all"
    WORKSPACE = "workspace"
    POOL = "pool"
    PROFILE = "profile"


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """``name``: a workspace's id, a pool's or a profile's name; empty for all."""

    kind: GroupKind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else str(self.kind)

    def has(self, lane: Lane, workspace_id: WorkspaceId) -> bool:
        """Whether a session of that lane and workspace is one of them."""
        mine = {
            GroupKind.ALL: "",
            GroupKind.WORKSPACE: workspace_id,
            GroupKind.POOL: lane.pool,
            GroupKind.PROFILE: lane.profile,
        }
        return self.name == mine[self.kind]


ALL = Group(GroupKind.ALL)


def of_workspace(workspace_id: WorkspaceId) -> Group:
    """Its sessions."""
    return Group(GroupKind.WORKSPACE, workspace_id)


def of_profile(name: str) -> Group:
    """Sessions of every pool whose agent it is."""
    return Group(GroupKind.PROFILE, name)


def of_pool(name: str) -> Group:
    """Sessions of all its profiles."""
    return Group(GroupKind.POOL, name)


@dataclass(frozen=True, slots=True)
class Cap:
    """So many runs of a group hold a slot at once, no more."""

    group: Group
    max_active_runs: int
    by: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Pause:
    """No run of a group starts."""

    group: Group
    by: str
    at: datetime
    reason: str | None = None
