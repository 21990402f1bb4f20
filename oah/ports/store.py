"""What the services ask of the store (SQL): the truth about sessions, runs, owners and events.

Every method is one transaction. Batched methods answer per member, in order: one member's bad data fails that
member only, as a returned ``RequestError``. Connection trouble raises ``Unavailable``; a connection that breaks at
COMMIT raises ``InDoubt``: call the matching ``…_outcome`` method, which reads the rows *under their lock*.
Every change of a run or session locks the session row first, sessions in id order. Rows are stamped by the
database's clock; ages cross as durations (invariant I7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from oah.core.model.event import Event
from oah.core.model.ids import ClaimToken, EpochId, KeyId, RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import (
    Attempt,
    Outcome,
    ReadyClass,
    RecoveryState,
    Run,
    RunClass,
    RunStatus,
    StartReason,
)
from oah.core.model.session import HoldReason, Session, SessionState
from oah.core.model.workspace import ApiKey, Scope, Workspace
from oah.errors import RequestError

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
    max_retries: int = 0
    parent_run_id: RunId | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    request_hash: str | None = None
    reject_if_busy: bool = False
    """``on_busy=reject``: Conflict ``session_busy`` when a run is active or queued."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A committed run, and how to make the broker hear of it. ``replayed``: an earlier submit's run."""

    run: Run
    lane: Lane
    ready_class: ReadyClass
    due_in: timedelta | None
    event_number: int
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class SubmitLimits:
    """Exact per session, counted per workspace."""

    queued_per_session: int = 1_000
    queued_per_workspace: int = 100_000


# --- start ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartClaim:
    """A claimed session to start. ``suspect_place``: a run with a recovery behind it may be started."""

    session_id: SessionId
    token: ClaimToken
    suspect_place: bool = True


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
class NothingEligible:
    """No run to start: free to idle."""

    session_id: SessionId


StartReply = Started | AlreadyActive | IsHeld | IsSuspect | NothingEligible


# --- settle, release ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunFence:
    """Names one attempt: a write passes only while (attempt, token) match and the run is active (I3)."""

    session_id: SessionId
    run_id: RunId
    attempt: int
    token: ClaimToken


@dataclass(frozen=True, slots=True)
class Settlement:
    """The outcome of an attempt. ``keep_owner``: the agent lives on (→ parked); else the tree is verified empty."""

    fence: RunFence
    outcome: Outcome
    keep_owner: bool = False
    hold: HoldReason | None = None
    """Hold the session with this (``unkillable``)."""


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


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """Text for a ``run.output`` event, fenced."""

    fence: RunFence
    text: str


# --- marks, commands ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MarkReply:
    """Which of the listed (session, token) are still ours; which of our runs somebody wants cancelled."""

    confirmed: frozenset[SessionId]
    cancels: tuple[RunFence, ...] = ()


# --- recovery -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """``session_owners`` with what recovery needs to decide; ``age`` of ``seen_at`` by the database's clock.

    ``seen_at`` is kept verbatim (text or datetime of the driver, as ISO 8601 with microseconds) for compare-and-set."""

    session_id: SessionId
    worker_id: WorkerId
    token: ClaimToken
    parked: bool
    seen_at: str
    age: timedelta
    lane: Lane
    workspace_id: WorkspaceId
    ready_class: ReadyClass | None
    """Class to restore or recover into: of the active run, else the highest waiting."""
    run_id: RunId | None = None
    run_status: RunStatus | None = None
    attempt: int = 0
    recovery_attempts: int = 0
    cancel_requested: bool = False


class RecoveryAction(StrEnum):
    """What recovery does with one orphan."""

    REQUEUE = "requeue"
    FAIL = "fail"
    QUARANTINE = "quarantine"
    CANCEL = "cancel"
    DROP_OWNER = "drop_owner"
    """No active run: only the owner row goes."""


@dataclass(frozen=True, slots=True)
class RecoveryWrite:
    """A decision to apply by compare-and-set on status, attempt, token and the ``seen_at`` that was read."""

    owner: OwnerRow
    action: RecoveryAction
    strategy: str
    max_attempts: int
    reason: str
    """``worker_lost``, ``worker_restarted`` …"""
    by: str


# --- reconcile, rehydrate, relay ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueuedSession:
    """A session with queued runs as SQL sees it: what the broker ought to know."""

    session_id: SessionId
    lane: Lane
    workspace_id: WorkspaceId
    ready_class: ReadyClass | None
    """Highest eligible class; None: only deferred runs."""
    first_run_id: RunId | None
    holds: tuple[HoldReason, ...]
    until_in: timedelta | None
    owner: OwnerRow | None
    oldest_age: timedelta
    wrong_epoch: bool


@dataclass(frozen=True, slots=True)
class DeferredRun:
    """A delayed run, as a remaining duration (never negative)."""

    hear_session: SessionId
    run_id: RunId
    lane: Lane
    workspace_id: WorkspaceId
    ready_class: ReadyClass
    due_in: timedelta


class CancelResult(StrEnum):
    """What a cancel found."""

    REMOVED = "removed"
    """It was queued and is cancelled now."""
    SIGNALLED = "signalled"
    """It is active; its owner will end it."""
    TOO_LATE = "too_late"
    """It had already ended."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Answer of a cancel; ``owner`` to be told to look; ``after`` when it was removed from the queue."""

    run: Run
    result: CancelResult
    owner: WorkerId | None = None
    lane: Lane | None = None
    after: AfterRun | None = None


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list. ``workspace_id`` None: all (admin)."""

    workspace_id: WorkspaceId | None = None
    session_id: SessionId | None = None
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


class CommandKind(StrEnum):
    """What an operator asks of one worker; a row in SQL, control only says "look"."""

    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """A row of ``worker_commands`` that the worker has not seen yet."""

    id: int
    worker_id: WorkerId
    kind: CommandKind
    by: str


class WorkStore(Protocol):
    """The hot path: accept, start, settle, mark."""

    def submit(self, runs: Sequence[NewRun], *, limits: SubmitLimits) -> list[Accepted | RequestError]: ...
    def heard(self, runs: Sequence[RunId], epoch: EpochId) -> None:
        """The broker has heard of these runs under this epoch (``dispatched_epoch``)."""
        ...

    def start(self, worker_id: WorkerId, epoch: EpochId, claims: Sequence[StartClaim]) -> list[StartReply]:
        """Two statements: lock the session rows in id order, then choose with a new snapshot and update (HN2)."""
        ...

    def start_outcome(self, worker_id: WorkerId, claims: Sequence[StartClaim]) -> list[StartReply]:
        """After InDoubt: by locked reads, ``Started`` where a run is active under our token, else
        ``NothingEligible`` (the caller releases)."""
        ...

    def settle(self, settlements: Sequence[Settlement]) -> list[AfterRun]: ...
    def settle_outcome(self, settlements: Sequence[Settlement]) -> list[AfterRun]:
        """After InDoubt: ``applied`` where the attempt is terminal as asked; where it is still active under the
        token, ``applied`` False and ``status`` active: settle again."""
        ...

    def release(self, fences: Sequence[RunFence]) -> list[AfterRun]:
        """Back to ``queued`` at its place, nothing counted; the owner row goes (the tree is verified empty)."""
        ...

    def drop_owner(self, worker_id: WorkerId, sessions: Sequence[tuple[SessionId, ClaimToken]]) -> list[AfterRun]:
        """A parked agent ended and its tree is empty: the owner row goes."""
        ...

    def output(self, chunks: Sequence[OutputChunk]) -> list[int | None]:
        """Append ``run.output`` events; the event's number, or None where the fence refused."""
        ...

    def mark(
        self, worker_id: WorkerId, table: Sequence[tuple[SessionId, ClaimToken]], *, timeout: timedelta
    ) -> MarkReply:
        """The liveness mark of all owner rows of the worker that match the table. Own connection, bounded time."""
        ...

    def promote(self, runs: Sequence[RunId], holds_ended: Sequence[SessionId], epoch: EpochId) -> list[QueuedSession]:
        """Clear ``deferred`` (with a new position) of runs that are due and end holds that have ended; idempotent.
        Returns the sessions concerned for ``ensure``/``hold`` (also those with nothing left: ``ready_class`` None)."""
        ...

    def take_commands(self, worker_id: WorkerId) -> list[WorkerCommand]:
        """Commands for this worker, oldest first, each handed out once."""
        ...


class RecoveryStore(Protocol):
    """What the leader and a starting worker do."""

    def owners(
        self, *, stale_for: timedelta | None = None, limit: int = 1_000, after: SessionId | None = None
    ) -> list[OwnerRow]: ...
    def owners_of(self, sessions: Sequence[SessionId]) -> list[OwnerRow]: ...
    def owners_by_worker(self, workers: Sequence[WorkerId]) -> list[OwnerRow]: ...
    def apply_recovery(self, writes: Sequence[RecoveryWrite]) -> list[AfterRun]:
        """Each in a savepoint; ``applied`` False where the compare-and-set lost."""
        ...

    def queued_sessions(
        self, epoch: EpochId, *, after: SessionId | None, limit: int, wrong_epoch_only: bool = False
    ) -> list[QueuedSession]:
        """Sessions with queued runs in id order, from ``after`` on; an index probe per session."""
        ...

    def queued_sessions_of(self, sessions: Sequence[SessionId], epoch: EpochId) -> list[QueuedSession]: ...
    def deferred(self, *, after: RunId | None, limit: int) -> list[DeferredRun]: ...
    def unheard(self, epoch: EpochId, *, older_than: timedelta, limit: int) -> list[Accepted]: ...

    def current_epoch(self) -> EpochId | None: ...
    def mint_epoch(self, new: EpochId, *, over: EpochId | None) -> bool:
        """Compare-and-set of the newest row of ``dispatch_epochs``."""
        ...

    def knows_epoch(self, epoch: EpochId) -> bool: ...
    def record_worker(self, worker_id: WorkerId, name: str, host: str) -> None: ...


class CatalogStore(Protocol):
    """Workspaces, keys, sessions, runs, events as people and the API see them."""

    def create_workspace(
        self,
        workspace_id: WorkspaceId,
        name: str,
        *,
        weight: int,
        max_active_runs: int | None,
        max_queued_runs: int | None,
    ) -> Workspace: ...
    def workspaces(self) -> list[Workspace]: ...
    def workspace(self, id_or_name: str) -> Workspace: ...
    def update_workspace(self, id_or_name: str, changes: Mapping[str, Any]) -> Workspace: ...
    def create_key(
        self,
        key_id: KeyId,
        digest: str,
        *,
        name: str,
        workspace_id: WorkspaceId | None,
        scopes: frozenset[Scope],
        expires_at: datetime | None,
    ) -> ApiKey: ...
    def key_by_digest(self, digest: str) -> ApiKey | None: ...
    def keys(self, workspace_id: WorkspaceId | None) -> list[ApiKey]: ...
    def revoke_key(self, key_id: KeyId) -> ApiKey: ...

    def create_session(self, session: Session) -> Session: ...
    def session(self, session_id: SessionId, workspace_id: WorkspaceId | None) -> Session:
        """Raises NotFound, also for another workspace's session."""
        ...

    def sessions(
        self,
        workspace_id: WorkspaceId | None,
        *,
        state: SessionState | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Session]: ...
    def update_session(
        self, session_id: SessionId, workspace_id: WorkspaceId | None, changes: Mapping[str, Any]
    ) -> Session: ...
    def close_session(self, session_id: SessionId, workspace_id: WorkspaceId | None) -> Session:
        """``closing`` while it has runs, else ``closed``. Conflict when a run is active."""
        ...

    def hold_session(
        self, session_id: SessionId, workspace_id: WorkspaceId | None, reason: HoldReason, *, until_in: timedelta | None
    ) -> Session: ...
    def unhold_session(
        self, session_id: SessionId, workspace_id: WorkspaceId | None, reason: HoldReason
    ) -> Session: ...

    def run(self, run_id: RunId, workspace_id: WorkspaceId | None) -> Run: ...
    def runs(self, where: RunFilter) -> Page[Run]: ...
    def queue_of(self, session_id: SessionId, *, limit: int) -> list[Run]:
        """Queued and active runs of a session in the order in which they will run."""
        ...

    def attempts(self, run_id: RunId) -> list[Attempt]: ...
    def cancel(self, run_id: RunId, workspace_id: WorkspaceId | None, *, by: str) -> Cancelled: ...
    def requeue(self, run_id: RunId, workspace_id: WorkspaceId | None, *, by: str) -> Accepted:
        """A terminal run becomes eligible now with a new position; counters restart. Conflict
        ``run_requeue_invalid_status`` otherwise."""
        ...

    def annotate_run(self, run_id: RunId, workspace_id: WorkspaceId | None, note: str) -> Run: ...
    def events(self, session_id: SessionId, *, after: int, limit: int, run_id: RunId | None = None) -> list[Event]: ...
    def events_since(self, cursors: Mapping[SessionId, int], *, limit: int) -> list[Event]:
        """For a tailer: events of many sessions after their cursors, in one statement, each session's in order. A
        session gets at least its share, ``limit // len(cursors)``, if it has that many."""
        ...

    def command_worker(self, worker_id: WorkerId, kind: CommandKind, *, by: str) -> None:
        """Write a command (and an audit row)."""
        ...

    def counts(self, workspace_id: WorkspaceId | None, *, lease: timedelta) -> StoreCounts: ...


class Store(WorkStore, RecoveryStore, CatalogStore, Protocol):
    """Everything the store offers; one object per process, safe to use from many threads."""

    def migrate(self) -> None: ...
    def check(self) -> None:
        """A cheap probe; raises Unavailable."""
        ...

    def now(self) -> float:
        """The database's clock in seconds since the epoch; for comparing clocks only."""
        ...

    def facts(self) -> dict[str, str]: ...
    def close(self) -> None: ...
