"""Workers as the registry shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from oah.core.model.ids import WorkerId
from oah.core.model.lane import Lane


class WorkerState(StrEnum):
    """``starting`` → ``idle`` ⇄ ``busy`` → ``stopping``."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker says of itself every few seconds (its heartbeat)."""

    id: WorkerId
    name: str
    host: str
    pid: int
    pool: str
    profiles: tuple[str, ...]
    state: WorkerState
    slots: int
    busy: int
    parked: int
    cordoned: bool
    draining: bool
    version: str
    started_at: datetime
    address: str | None = None
    """``host:port`` of the worker's private endpoint."""
    token: str | None = field(default=None, repr=False)
    """What that endpoint wants to hear before it shows a terminal. From the registry to API processes, and no
    further."""
    cpu_percent: float = 0.0
    rss_bytes: int = 0
    sessions: Mapping[str, str] = field(default_factory=dict)
    """Session → run that it executes now (bounded by the slots)."""
    withdrawn: Mapping[str, str] = field(default_factory=dict)
    """Profiles that it knows and does not serve → why: no program, or one that their rules were not made for."""
    last_seen_at: datetime | None = None

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes it serves."""
        return tuple(Lane(self.pool, profile) for profile in self.profiles)
