"""What the services ask of the store (SQL): the truth about sessions, runs, owners and events.

Every method is one transaction. Batched methods answer per member, in order: one member's bad data fails that
member only, as a returned ``RequestError``. Connection trouble raises ``Unavailable``; a connection that breaks at
COMMIT raises ``InDoubt``: call the matching ``…_outcome`` method, which reads the rows *under their lock*.
Every change of a run or session locks the session row first, sessions in id order. Rows are stamped by the
database's clock; ages cross as durations (invariant I7).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from oah.core.model.event import Event
from oah.core.model.ids import ClaimToken, EpochId, KeyId, RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.run import (
    Attempt,
    RecoveryStrategy,
    Run,
    Step,
    StopReason,
)
from oah.core.model.session import HoldReason, Session, SessionState
from oah.core.model.workspace import ApiKey, Scope, Workspace
from oah.errors import RequestError
from oah.ports.audit import AuditStore
from oah.ports.children import ChildrenStore
from oah.ports.commands import CommandKind, CommandStore, WorkerCommand
from oah.ports.conversations import ConversationStore
from oah.ports.cordons import CordonStore
from oah.ports.dead_letters import DeadLetterStore
from oah.ports.figures import FigureStore
from oah.ports.jobs import JobStore
from oah.ports.mailboxes import MailboxStore
from oah.ports.messages import MessageStore
from oah.ports.orphans import OwnerRow, QueuedSession, RecoveryAction, RecoveryWrite
from oah.ports.pauses import PauseStore
from oah.ports.questions import QuestionStore
from oah.ports.requeue import RequeueStore
from oah.ports.retention import RetentionStore
from oah.ports.rollouts import RolloutStore
from oah.ports.rows import (
    EXCERPT,
    Accepted,
    AfterRun,
    AlreadyActive,
    DeferredRun,
    IsElsewhere,
    IsHeld,
    IsSuspect,
    MarkReply,
    NewRun,
    NothingEligible,
    OutputChunk,
    Page,
    RetryPlan,
    RunFence,
    RunFilter,
    Settlement,
    StartClaim,
    Started,
    StartReply,
    Stop,
    Stopped,
    StoreCounts,
    SubmitLimits,
)
from oah.ports.scaling import ScalingStore
from oah.ports.schedules import ScheduleStore
from oah.ports.steps import StepStore
from oah.ports.stops import Cancelled, CancelResult
from oah.ports.traces import TraceStore
from oah.ports.viewing import WriterStore
from oah.ports.waits import WaitStore
from oah.ports.webhooks import WebhookStore

__all__ = [
    "EXCERPT",
    "Accepted",
    "AfterRun",
    "AlreadyActive",
    "CancelResult",
    "Cancelled",
    "CatalogStore",
    "CommandKind",
    "DeferredRun",
    "IsElsewhere",
    "IsHeld",
    "IsSuspect",
    "MarkReply",
    "NewRun",
    "NothingEligible",
    "OutputChunk",
    "OwnerRow",
    "Page",
    "QueuedSession",
    "RecoveryAction",
    "RecoveryStore",
    "RecoveryWrite",
    "RetryPlan",
    "RunFence",
    "RunFilter",
    "Settlement",
    "StartClaim",
    "StartReply",
    "Started",
    "Stop",
    "Stopped",
    "Store",
    "StoreCounts",
    "SubmitLimits",
    "WorkStore",
    "WorkerCommand",
]


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


class RecoveryStore(Protocol):
    """What the leader and a starting worker do."""

    def owners(
        self, *, stale_for: timedelta | None = None, limit: int = 1_000, after: SessionId | None = None
    ) -> list[OwnerRow]: ...
    def owners_of(self, sessions: Sequence[SessionId]) -> list[OwnerRow]: ...
    def owners_by_worker(self, workers: Sequence[WorkerId]) -> list[OwnerRow]: ...
    def owning_names(self, names: Collection[str], *, host: str | None = None) -> set[str]:
        """Those of which any incarnation (on this host) owns sessions."""
        ...

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
    def recount(self) -> int:
        """Set the workspaces' counters of queued runs to what is queued; how many were off (reconcile, once a lap)."""
        ...

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
        runs_per_minute: int | None = None,
        runs_burst: int | None = None,
        recovery_strategy: RecoveryStrategy | None = None,
        recovery_max_attempts: int | None = None,
        by: str = "system",
    ) -> Workspace: ...
    def workspaces(self) -> list[Workspace]: ...
    def workspace(self, id_or_name: str) -> Workspace: ...
    def update_workspace(self, id_or_name: str, changes: Mapping[str, Any], *, by: str = "system") -> Workspace: ...
    def create_key(
        self,
        key_id: KeyId,
        digest: str,
        *,
        name: str,
        workspace_id: WorkspaceId | None,
        scopes: frozenset[Scope],
        expires_at: datetime | None,
        by: str = "system",
    ) -> ApiKey: ...
    def key_by_digest(self, digest: str) -> ApiKey | None: ...

    def keys_by_digest(self, digests: Collection[str]) -> Mapping[str, ApiKey]:
        """The same of many, in one statement; those that there are."""
        ...

    def keys(self, workspace_id: WorkspaceId | None) -> list[ApiKey]: ...
    def revoke_key(self, key_id: KeyId, *, by: str = "system") -> ApiKey: ...

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
    def close_session(
        self, session_id: SessionId, workspace_id: WorkspaceId | None, *, cancelling: bool = False
    ) -> Session:
        """``closing`` while it has runs, else ``closed``. Conflict ``session_busy`` when a run is active, unless
        ``cancelling``: then its end closes the session."""
        ...

    def hold_session(
        self, session_id: SessionId, workspace_id: WorkspaceId | None, reason: HoldReason, *, until_in: timedelta | None
    ) -> Session: ...
    def unhold_session(
        self, session_id: SessionId, workspace_id: WorkspaceId | None, reason: HoldReason
    ) -> Session: ...

    def run(self, run_id: RunId, workspace_id: WorkspaceId | None) -> Run: ...
    def runs(self, where: RunFilter) -> Page[Run]:
        """Newest first, as excerpts: inputs are cut after ``EXCERPT`` + 1 characters and results left out."""
        ...

    def queue_of(self, session_id: SessionId, *, limit: int) -> list[Run]:
        """Queued and active runs of a session in the order in which they will run, as excerpts."""
        ...

    def attempts(self, run_id: RunId) -> list[Attempt]: ...
    def steps(self, run_id: RunId) -> list[Step]: ...
    def cancel(
        self,
        run_id: RunId,
        workspace_id: WorkspaceId | None,
        *,
        by: str,
        reason: StopReason = StopReason.CANCEL,
    ) -> Cancelled: ...
    def annotate_run(
        self, run_id: RunId, workspace_id: WorkspaceId | None, note: str, *, by: str = "system"
    ) -> Run: ...
    def events(self, session_id: SessionId, *, after: int, limit: int, run_id: RunId | None = None) -> list[Event]: ...
    def events_since(self, cursors: Mapping[SessionId, int], *, limit: int) -> list[Event]:
        """For a tailer: events of many sessions after their cursors, in one statement, each session's in order. A
        session gets at least its share, ``limit // len(cursors)``, if it has that many."""
        ...

    def counts(self, workspace_id: WorkspaceId | None, *, lease: timedelta) -> StoreCounts: ...


class Store(
    WorkStore,
    ConversationStore,
    RecoveryStore,
    CatalogStore,
    WaitStore,
    CommandStore,
    ChildrenStore,
    StepStore,
    QuestionStore,
    WriterStore,
    DeadLetterStore,
    JobStore,
    WebhookStore,
    RequeueStore,
    AuditStore,
    FigureStore,
    RetentionStore,
    MailboxStore,
    MessageStore,
    TraceStore,
    ScalingStore,
    RolloutStore,
    PauseStore,
    ScheduleStore,
    CordonStore,
    Protocol,
):
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
