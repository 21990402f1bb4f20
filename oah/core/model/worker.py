"""Workers as the registry shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from oah.core.model.cordon import Cordon
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
    waits: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """How long the runs that it started in the last five minutes had waited: class → bucket → how many
    (`core/policy/quantiles.py`)."""
    waits_now: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """The same of the last minute."""
    embedded: bool = False
    """Inside a process that has more to do: a drain does not end it."""
    last_seen_at: datetime | None = None
    slots_max: int = 0
    """As many slots as it may open. ``slots`` is how many are open now: between its minimum and this."""
    weight: int = 0
    """Slots that its runs take now, each by the weight of its profile."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """Of its profiles those whose agents take more slots than one → how many."""
    pressure: tuple[str, ...] = ()
    """Which resources are under pressure (``memory``, ``load``, ``disk``): meanwhile it takes no new runs."""
    memory_ratio: float = 0.0
    """In use, of what this machine or its control group may; likewise the disk of its data directory."""
    load_ratio: float = 0.0
    """Runnable processes per core that it may use."""
    disk_ratio: float = 0.0
    cordon: Cordon | None = None
    """An operator's, which its successor has too. Without it ``cordoned`` is of this life alone: by a drain, by who
    scales, by a rollout, or by itself."""

    @property
    def capacity(self) -> int:
        """What the fleet counts on: the maximum, which does not change while slots open and close. A worker of an
        older version has a fixed number and reports that alone."""
        return max(self.slots_max, self.slots)

    @property
    def taken(self) -> int:
        """Slots in use."""
        return max(self.weight, self.busy)

    @property
    def takes(self) -> bool:
        """Whether it takes new runs now, should a slot be free."""
        return not (self.cordoned or self.draining or self.pressure) and self.state is not WorkerState.STOPPING

    @property
    def free(self) -> int:
        """Slots for new runs, those included that it would open first."""
        return max(self.capacity - self.taken, 0) if self.takes else 0

    def room(self, profile: str) -> int:
        """How many more runs of a profile it would take now."""
        return self.free // self.weights.get(profile, 1)

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes it serves."""
        return tuple(Lane(self.pool, profile) for profile in self.profiles)
