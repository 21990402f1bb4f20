"""Values of recovery and of repair: who owns a session, what is done with an orphan, what the broker ought to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from oah.core.model.ids import ClaimToken, RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass, RunStatus
from oah.core.model.session import HoldReason
from oah.core.policy.recovery import SAYS_NOTHING, Override


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
    run_policy: Override = SAYS_NOTHING
    workspace_policy: Override = SAYS_NOTHING


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
    policy_from: Mapping[str, str] = field(default_factory=dict)
    """Which source said ``strategy`` and ``max_attempts``."""


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
    priority: int = 0
    """Of its first eligible run."""
