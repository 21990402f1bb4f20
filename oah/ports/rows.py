"""What crosses the store's port: requests, answers per member, and figures. Plain values without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from oah.core.model.ids import ClaimToken, RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import (
    OnBusy,
    OrderMode,
    Outcome,
    ReadyClass,
    RecoveryState,
    Run,
    RunClass,
    RunStatus,
    StartReason,
    StopReason,
)
from oah.core.model.session import HoldReason, Session
from oah.ports.children import Parent
from oah.ports.pauses import IsPaused

T = TypeVar("T")

# --- submit ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewRun:
    """One run to accept. ``request_hash`` identifies the body under an idempotency key."""

    id: RunId
    workspace_id: WorkspaceId
    session_id: SessionId
    input: str
    run_class: RunClass = RunClass.INTERACTIVE
    delay: timedelta | None = None
    due_at: datetime | None = None
    timeout: timedelta | None = None
    deadline_at: datetime | None = None
    max_retries: int | None = None
    """None: the profile's."""
    parent_run_id: RunId | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    order_mode: OrderMode = OrderMode.STRICT
    priority: int = 0
    start_timeout: timedelta | None = None
    """How long it may wait, from its due time on."""
    idle_timeout: timedelta | None = None
    step_timeout: timedelta | None = None
    retry: Mapping[str, Any] | None = None
    recovery_strategy: str | None = None
    recovery_max_attempts: int | None = None
    idempotency_key: str | None = None
    request_hash: str | None = None
    on_busy: OnBusy = OnBusy.ENQUEUE
    """``reject``: Conflict ``session_busy`` when a run is active or queued. ``interrupt``, ``rollback``: the active run
    is asked to stop, this one goes before all others. ``steer``: said into the active run instead, if there is one."""
    by: str = ""
    """Who submits it: also who asks the active run to stop."""
    parent: Parent | None = None  # where its agent submits it


@dataclass(frozen=True, slots=True)
class Stopped:
    """An active run that was asked to stop, and whose it is."""

    run_id: RunId
    worker_id: WorkerId | None


@dataclass(frozen=True, slots=True)
class Accepted:
    """A committed run, and how to make the broker hear of it. ``replayed``: an earlier submit's run."""

    run: Run
    lane: Lane
    ready_class: ReadyClass
    due_in: timedelta | None
    event_number: int
    replayed: bool = False
    stopped: Stopped | None = None
    """The active run that was asked to stop for this one (``interrupt``, ``rollback``)."""
    steer: RunId | None = None
    """No run was made: ``run`` is the active one, and the command found by this id has the text for it."""


@dataclass(frozen=True, slots=True)
class SubmitLimits:
    """Exact per session, counted per workspace."""

    queued_per_session: int = 1_000
    queued_per_workspace: int = 100_000


# --- start ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartClaim:
    """A claimed session to start. ``suspect_place``: a run with a recovery behind it may be started. ``place``: the
    mark of the homes that are here; None: it is not asked where the session's is."""

    session_id: SessionId
    token: ClaimToken
    suspect_place: bool = True
    place: str | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """The session's first eligible run is running under our token."""

    session: Session
    run: Run
    reason: StartReason
    event_number: int


@dataclass(frozen=True, slots=True)
class AlreadyActive:
    """The session has an active run or a foreign owner row: ``restore`` for that owner, never ``free``."""

    session_id: SessionId
    worker_id: WorkerId
    token: ClaimToken
    parked: bool
    age: timedelta
    """Age of the owner's mark."""


@dataclass(frozen=True, slots=True)
class IsHeld:
    """The session is held: free to held."""

    session_id: SessionId
    reasons: tuple[HoldReason, ...]
    until_in: timedelta | None


@dataclass(frozen=True, slots=True)
class IsSuspect:
    """Its first eligible run is a suspect and there is no place for one: ``release`` into that class."""

    session_id: SessionId


@dataclass(frozen=True, slots=True)
class IsElsewhere:
    """It has a run, and its home is at another place: ``bind`` to it. ``lane.host`` names it."""

    session_id: SessionId
    lane: Lane


@dataclass(frozen=True, slots=True)
class NothingEligible:
    """No run to start: free to idle."""

    session_id: SessionId


StartReply = Started | AlreadyActive | IsHeld | IsPaused | IsSuspect | IsElsewhere | NothingEligible


# --- settle, release ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunFence:
    """Names one attempt: a write passes only while (attempt, token) match and the run is active (I3)."""

    session_id: SessionId
    run_id: RunId
    attempt: int
    token: ClaimToken


@dataclass(frozen=True, slots=True)
class RetryPlan:
    """Another attempt, not before ``delay`` has passed. ``max_retries``: by the rules that decided it."""

    delay: timedelta
    max_retries: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """The outcome of an attempt. ``keep_owner``: the agent lives on (→ parked); else the tree is verified empty."""

    fence: RunFence
    outcome: Outcome
    keep_owner: bool = False
    hold: HoldReason | None = None
    """Hold the session with this (``unkillable``)."""
    retry: RetryPlan | None = None
    """The outcome is an attempt's, not the run's: queue the run again. Refused where somebody has asked the run to stop
    or its deadline comes first; then the outcome is the run's after all."""


@dataclass(frozen=True, slots=True)
class DeferredRun:
    """A delayed run, as a remaining duration (never negative)."""

    hear_session: SessionId
    run_id: RunId
    lane: Lane
    workspace_id: WorkspaceId
    ready_class: ReadyClass
    due_in: timedelta


@dataclass(frozen=True, slots=True)
class AfterRun:
    """What the session looks like after settle, release, or cancel: where ``free`` must put it."""

    applied: bool
    """False: the fence refused the write; nothing was changed."""
    waiting: ReadyClass | None
    """The highest waiting class (``suspect`` if the first eligible run is one); None: nothing eligible."""
    held: tuple[HoldReason, ...] = ()
    until_in: timedelta | None = None
    event_number: int = 0
    status: RunStatus | None = None
    """The status now; a settle of a run whose cancel was asked for may end as the outcome says."""
    priority: int = 0
    """Of the first eligible run."""
    voided: bool = False
    """The run was rolled back: an agent that was to be kept is ended, the session's next run starts fresh."""
    due: DeferredRun | None = None
    """A retry for which nobody waits (``order=skip_failed``): the broker is to hear when it is due."""


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """Text for a ``run.output`` event, fenced."""

    fence: RunFence
    text: str


# --- marks, commands ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stop:
    """An active run that is to be ended, by whom and why."""

    fence: RunFence
    reason: StopReason = StopReason.CANCEL
    by: str = ""


@dataclass(frozen=True, slots=True)
class MarkReply:
    """Which of the listed (session, token) are still ours; which of our runs somebody wants stopped."""

    confirmed: frozenset[SessionId]
    stops: tuple[Stop, ...] = ()
    unread: frozenset[SessionId] = frozenset()
    """Rows that somebody else kept locked: neither ours still nor lost."""
    heard: Mapping[SessionId, timedelta] = field(default_factory=dict)
    """How long ago a run said something of itself (a step, progress); nothing at all for one that waits."""

    @property
    def cancels(self) -> tuple[RunFence, ...]:
        """The runs to be stopped."""
        return tuple(stop.fence for stop in self.stops)


# --- reading --------------------------------------------------------------------------------------------------------

EXCERPT = 2_000
"""Characters of an input that a list of runs shows: a page of whole ones could be hundreds of megabytes."""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list. ``workspace_id`` None: all (admin)."""

    workspace_id: WorkspaceId | None = None
    session_id: SessionId | None = None
    parent_run_id: RunId | None = None
    status: tuple[RunStatus, ...] = ()
    error_code: str | None = None
    recovery_state: RecoveryState | None = None
    run_class: RunClass | None = None
    created_after: datetime | None = None
    cursor: str | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a listing; ``next_cursor`` None: the end."""

    items: tuple[T, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """Figures for metrics, health and doctor."""

    runs: Mapping[RunStatus, int]
    queued_eligible: int
    deferred: int
    active_sessions: int
    owners: int
    stale_owners: int
    """Owner rows whose mark is older than the lease given."""
    ready_runs: int = 0
    """Eligible runs of open, unheld sessions without an owner row."""
    ready_subagent_runs: int = 0
    """Those of class ``subagent``."""
    ready_sessions: int = 0
    """Sessions of the ``ready_runs``."""
    locked_sessions: int = 0
    """Sessions with an owner row and an eligible run."""
