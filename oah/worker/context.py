"""What the composition root hands to a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from oah.core.model.drain import AtDeadline
from oah.core.model.home import HomeMode, HomeRules
from oah.core.model.hook import Hook
from oah.core.model.ids import WorkerId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.policy import claim_order, pressure, retry
from oah.core.policy.answers import Rule
from oah.core.policy.pressure import Usage
from oah.ports.agent import AgentFactory, KillLadder
from oah.ports.broker import Broker
from oah.ports.clock import Clock, Ids
from oah.ports.epochs import EpochSource
from oah.ports.history import OutcomeLog
from oah.ports.homes import Homes
from oah.ports.hooks import HookCaller, NoHookCaller
from oah.ports.secrets import NoSecrets, Secrets
from oah.ports.store import Store
from oah.ports.telemetry import Telemetry
from oah.ports.terminal import AgentHost
from oah.services.recover import RecoverOwners


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRules:
    """The numbers of a worker. Sources: the table of defaults in the reference."""

    slots: int
    """Open at most: the capacity that the fleet counts."""
    parked: int
    lease: timedelta
    warm_idle: timedelta
    affinity: timedelta
    drain_grace: timedelta
    drain_then: AtDeadline = AtDeadline.REQUEUE
    """What becomes of runs that still run when the grace is over."""
    heartbeat: timedelta
    ladder: KillLadder = field(default_factory=KillLadder)
    slots_min: int | None = None
    """Open at least; None: all of them, always."""
    slot_idle: timedelta = timedelta(minutes=1)
    """How long a slot is not used before it is closed."""
    stuck: timedelta = timedelta(minutes=1)
    """A claim loop that has not moved for so long is stuck."""
    waiting: int = 64
    """Runs that wait for an answer in no slot; each one more takes the place of a new run."""
    output_bytes: int = 1024 * 1024
    """Text of ``run.output`` events per attempt."""
    home_wait: timedelta = timedelta(minutes=1)
    """How long a session waits for the host of its local home when that is gone."""
    tidy: timedelta = timedelta(minutes=1)
    """How often leftovers of closed sessions are looked for."""
    agent_uid: int | None = None
    agent_gid: int | None = None
    """The user that agents run as; None: the worker's own."""

    @property
    def least(self) -> int:
        """Slots that are always open."""
        return self.slots if self.slots_min is None else min(self.slots_min, self.slots)

    @property
    def period(self) -> timedelta:
        """How often renew and mark run: L/6."""
        return self.lease / 6

    @property
    def margin(self) -> timedelta:
        """How long before its session may move an agent is dead: L/6."""
        return self.lease / 6


class Figures(Protocol):
    """What this process uses now."""

    @property
    def cpu_percent(self) -> float: ...
    @property
    def rss_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """Adapters, services and numbers. ``witness_broker`` has a connection and a time-out of its own."""

    worker_id: WorkerId
    name: str
    host: str
    version: str
    pool: str
    lanes: tuple[Lane, ...]
    withdrawn: Mapping[str, str] = field(default_factory=dict)
    """Profiles that are not among its lanes → why."""
    rules: WorkerRules
    store: Store
    broker: Broker
    witness_broker: Broker
    epochs: EpochSource
    clock: Clock
    ids: Ids
    telemetry: Telemetry
    agent_host: AgentHost
    agents: AgentFactory
    outcomes: OutcomeLog
    recover: RecoverOwners
    """For runs whose owner is known to be gone, without waiting for the witnesses."""
    promote: Callable[[], None]
    claim_rules: claim_order.Rules
    retry_rules: Callable[[str], retry.Rules] = lambda profile: retry.Rules()
    """Of a profile, over those of the deployment."""
    figures: Callable[[], Figures]
    """CPU percent and resident bytes of worker and host."""
    machine: Callable[[], Usage] = Usage
    """What the machine uses of its memory, processors and disk."""
    pressure: pressure.Rules = field(default_factory=pressure.Rules)
    slot_weight: Callable[[str], int] = lambda profile: 1
    """How many slots an agent of a profile takes."""
    pid: int
    data_dir: Path
    homes: Homes
    tidy: Callable[[], object] = lambda: None
    """Takes away a little of what sessions that are over have left on this host."""
    home_rules: Callable[[str], HomeRules | None]
    """Of a profile; None: its agents have no files."""
    secrets: Secrets = field(default_factory=NoSecrets)
    one_engine: bool
    """SQLite has one writer: claimer and settler share a thread."""
    address: Callable[[], str | None] = lambda: None
    """``host:port`` of the private endpoint, once it listens."""
    token: str | None = field(default=None, repr=False)
    """What the private endpoint wants to hear."""
    hooks: Callable[[str], tuple[Hook, ...]] = lambda profile: ()
    """Of a profile, those of the deployment first."""
    hook_caller: HookCaller = field(default_factory=NoHookCaller)
    api_url: Callable[[], str | None] = lambda: None
    """Where agents reach the API; told to them in ``OAH_API_URL``."""
    nats_url: str | None = None
    """Where agents reach the gateway; told to them in ``OAH_NATS_URL``."""
    answers: Callable[[str], tuple[Rule, ...]] = lambda profile: ()
    """Which questions of its programs a profile answers itself."""
    workspace_answers: Callable[[WorkspaceId], tuple[Rule, ...]] = lambda workspace: ()
    """The same of a workspace, as it was known a moment ago."""
    takes_messages: Callable[[str], bool] = lambda profile: True
    """Whether messages may be given to a profile's program as texts."""
    message_attempts: int = 5
    """Given to an agent so often, a message becomes a dead letter."""
    wait_timeout: Callable[[str], timedelta] = lambda profile: timedelta(days=1)
    """How long a question of that profile's program stands."""
    on_drain: Callable[[], None] = lambda: None
    """An operator has drained this worker: a process of its own ends, an embedded one only takes no more."""
    embedded: bool = False
    """It lives inside a process that has more to do, and does not end by a drain."""
    place: str | None = None
    """The mark of the homes that are here; None: homes are not asked about."""

    @property
    def home_lanes(self) -> tuple[Lane, ...]:
        """Lanes of sessions that only this place can go on with."""
        if self.place is None:
            return ()
        rules = ((lane, self.home_rules(lane.profile)) for lane in self.lanes)
        return tuple(lane.at(self.place) for lane, each in rules if each is not None and each.mode != HomeMode.SHARED)

    @property
    def all_lanes(self) -> tuple[Lane, ...]:
        """Of every session that this worker may claim."""
        return (*self.lanes, *self.home_lanes)
