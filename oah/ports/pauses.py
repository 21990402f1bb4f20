"""Pauses and caps: what takes no new runs, or only so many at once. A workspace's own cap stands with the workspace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from oah.core.model.group import Cap, Group, Pause
from oah.core.model.ids import SessionId


@dataclass(frozen=True, slots=True)
class IsPaused:
    """A session that was claimed has a run, and is one of a paused group: back to ready, where it stays once the broker
    knows."""

    session_id: SessionId


class PauseStore(Protocol):
    """Rows of SQL; each change that is one leaves an audit row."""

    def pauses(self) -> list[Pause]:
        """All, in the order of their groups."""
        ...

    def pause_group(self, group: Group, *, by: str, reason: str | None = None) -> Pause:
        """Its row; one that is paused stays so, by whom it was first. Raises NotFound (workspace)."""
        ...

    def resume_group(self, group: Group, *, by: str) -> bool:
        """Whether it was paused."""
        ...

    def caps(self) -> list[Cap]:
        """All but those of workspaces, in the order of their groups."""
        ...

    def set_cap(self, group: Group, max_active_runs: int, *, by: str) -> Cap:
        """Of a profile or of all. Raises InvalidRequest."""
        ...

    def drop_cap(self, group: Group, *, by: str) -> bool:
        """Whether it had one."""
        ...
