"""What has happened in a demo so far: its board shows it, its verdict is drawn from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = Mapping[str, Any]

ENDED = frozenset({"completed", "failed", "cancelled", "timed_out"})


@dataclass(slots=True)
class Story:
    """What has happened so far; the board shows it, the verdict is drawn from it."""

    data_dir: Path
    sessions: dict[str, str] = field(default_factory=dict)
    """Session → its agent."""
    runs: list[str] = field(default_factory=list)
    victim: str = ""
    working_since: float | None = None
    """When the victim was first seen running (monotonic)."""
    killed_worker: str | None = None
    """Name of the worker that was killed."""
    killed_id: str | None = None
    """Its id (this incarnation) in the registry."""
    killed_at: float = 0.0
    recovered_after: float | None = None
    """Seconds from the kill to the start of the next attempt."""
    restarted: bool = False
    seen: dict[str, Json] = field(default_factory=dict)
    """Run → its document as last read."""

    def counts(self) -> dict[str, int]:
        """Runs by status."""
        counts: dict[str, int] = {}
        for run in self.seen.values():
            counts[run["status"]] = counts.get(run["status"], 0) + 1
        return counts

    @property
    def over(self) -> bool:
        """Whether nothing more will happen: all ended, and who was killed was started again."""
        return self.finished and (self.restarted or self.killed_worker is None)

    @property
    def finished(self) -> bool:
        """Whether every run has ended."""
        return len(self.seen) == len(self.runs) and all(run["status"] in ENDED for run in self.seen.values())
