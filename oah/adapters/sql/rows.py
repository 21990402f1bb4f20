"""Rows of either dialect as the nouns of the core. The column lists fix the order in which statements return them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from oah.adapters.sql.columns import from_us
from oah.core.model.event import Event
from oah.core.model.home import session_home, worktree_of
from oah.core.model.ids import ClaimToken, KeyId, RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.message import WakeMode
from oah.core.model.run import (
    Attempt,
    OrderMode,
    RecoveryState,
    RecoveryStrategy,
    Run,
    RunClass,
    RunError,
    RunKind,
    RunStatus,
    StartReason,
    Step,
    StopReason,
)
from oah.core.model.session import HoldReason, Session, SessionState
from oah.core.model.workspace import ApiKey, Scope, Workspace

RUN_COLUMNS = (
    "id", "session_id", "workspace_id", "position", "class", "status", "input", "created_at", "queued_at", "deferred",
    "due_at", "attempt", "recovery_attempts", "failed_attempts", "max_retries", "timeout_ms", "deadline_at",
    "parent_run_id", "worker_id", "claim_token", "cancel_requested_at", "cancel_requested_by", "result", "result_blob",
    "exit_code", "error_code", "error_message", "recovery", "recovery_state", "note", "metadata", "started_at",
    "ended_at", "order_mode", "start_by", "idle_timeout_ms", "step_timeout_ms", "retry", "recovery_strategy",
    "recovery_max_attempts", "stop_reason", "voided", "kind", "priority",
)  # fmt: skip
SESSION_COLUMNS = (
    "id", "workspace_id", "pool", "agent", "state", "created_at", "queued_count", "event_seq", "holds", "session_ref",
    "home", "cwd", "env", "title", "labels", "metadata", "closed_at", "worktree", "wake", "wake_failures", "wake_after",
    "wake_stopped", "wake_run_id", "unsettled", "parent_run_id",
)  # fmt: skip
WORKSPACE_COLUMNS = (
    "id", "name", "created_at", "weight", "max_active_runs", "max_queued_runs", "recovery_strategy",
    "recovery_max_attempts", "answers", "worktree", "runs_per_minute", "runs_burst",
)  # fmt: skip
KEY_COLUMNS = ("id", "name", "workspace_id", "scopes", "created_at", "expires_at", "revoked_at")
EVENT_COLUMNS = ("session_id", "number", "run_id", "attempt", "type", "data", "at")
ATTEMPT_COLUMNS = (
    "run_id", "attempt", "reason", "worker_id", "agent", "home", "recording_blob", "started_at", "ended_at", "outcome",
    "agent_reason",
)  # fmt: skip

STEP_COLUMNS = (
    "run_id", "number", "attempt", "kind", "name", "data", "at", "deadline_at", "ended_at", "outcome",
)  # fmt: skip


def listed(columns: Sequence[str], prefix: str = "") -> str:
    """The columns as SQL text, each with the prefix (``r.``)."""
    return ", ".join(prefix + column for column in columns)


def moment(value: Any) -> datetime | None:
    """A moment of either dialect."""
    if value is None:
        return None
    if isinstance(value, int):
        return from_us(value)
    found: datetime = value.astimezone(UTC)
    return found


def required(value: Any) -> datetime:
    """A moment that cannot be missing."""
    found = moment(value)
    assert found is not None  # the column is NOT NULL
    return found


def duration(milliseconds: int | None) -> timedelta | None:
    """A duration of either dialect."""
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


def parsed(value: Any) -> Any:
    """A JSON column of either dialect."""
    if isinstance(value, str):
        return {} if value == "{}" else json.loads(value)
    return value


def holds_of(value: Any) -> dict[HoldReason, datetime | None]:
    """The holds column: reason → its end."""
    if value in ("{}", {}, None):
        return {}
    return {HoldReason(reason): moment(end) for reason, end in parsed(value).items()}


def run_of(row: Sequence[Any], heartbeat: Any = None) -> Run:
    """A row in the order of RUN_COLUMNS. ``heartbeat``: the owner row's ``seen_at``."""
    (
        run_id, session_id, workspace_id, position, run_class, status, text, created, queued, deferred, due, attempt,
        recoveries, failures, retries, timeout_ms, deadline, parent, worker, token, cancel_at, cancel_by, result, blob,
        exit_code, error_code, error_message, recovery, recovery_state, note, metadata, started, ended,
        order_mode, start_by, idle_ms, step_ms, retry, strategy, max_attempts, stop_reason, voided, kind, priority,
    ) = row  # fmt: skip
    return Run(
        id=RunId(run_id),
        session_id=SessionId(session_id),
        workspace_id=WorkspaceId(workspace_id),
        position=position,
        run_class=RunClass(run_class),
        status=RunStatus(status),
        input=text,
        created_at=required(created),
        queued_at=required(queued),
        deferred=bool(deferred),
        due_at=moment(due),
        attempt=attempt,
        recovery_attempts=recoveries,
        failed_attempts=failures,
        max_retries=retries,
        timeout=duration(timeout_ms),
        deadline_at=moment(deadline),
        parent_run_id=None if parent is None else RunId(parent),
        worker_id=None if worker is None else WorkerId(worker),
        claim_token=None if token is None else ClaimToken(token),
        cancel_requested_at=moment(cancel_at),
        cancel_requested_by=cancel_by,
        result=result,
        result_blob=blob,
        exit_code=exit_code,
        error=None if error_code is None else RunError(error_code, error_message or ""),
        recovery=parsed(recovery),
        recovery_state=None if recovery_state is None else RecoveryState(recovery_state),
        note=note,
        metadata=parsed(metadata),
        priority=priority,
        order_mode=OrderMode(order_mode),
        start_by=moment(start_by),
        idle_timeout=duration(idle_ms),
        step_timeout=duration(step_ms),
        retry=parsed(retry),
        recovery_strategy=strategy,
        recovery_max_attempts=max_attempts,
        stop_reason=None if stop_reason is None else StopReason(stop_reason),
        voided=bool(voided),
        kind=RunKind(kind),
        started_at=moment(started),
        ended_at=moment(ended),
        heartbeat_at=moment(heartbeat),
    )


def session_of(row: Sequence[Any]) -> Session:
    """A row in the order of SESSION_COLUMNS."""
    (
        session_id, workspace_id, pool, agent, state, created, queued_count, event_seq, holds, session_ref, home, cwd,
        env, title, labels, metadata, closed, worktree, wake, wake_failures, wake_after, wake_stopped, wake_run,
        unsettled, parent,
    ) = row  # fmt: skip
    return Session(
        id=SessionId(session_id),
        workspace_id=WorkspaceId(workspace_id),
        lane=Lane(pool, agent),
        state=SessionState(state),
        created_at=required(created),
        queued_count=queued_count,
        event_seq=event_seq,
        holds=holds_of(holds),
        session_ref=session_ref,
        home=session_home(parsed(home)),
        cwd=cwd,
        worktree=worktree_of(parsed(worktree)),
        env=parsed(env),
        title=title,
        labels=parsed(labels),
        metadata=parsed(metadata),
        closed_at=moment(closed),
        wake=WakeMode(wake),
        wake_failures=wake_failures,
        wake_after=moment(wake_after),
        wake_stopped=wake_stopped,
        wake_run_id=None if wake_run is None else RunId(wake_run),
        unsettled=unsettled,
        parent_run_id=None if parent is None else RunId(parent),
    )


def workspace_of(row: Sequence[Any]) -> Workspace:
    """A row in the order of WORKSPACE_COLUMNS."""
    (
        workspace_id,
        name,
        created,
        weight,
        active,
        queued,
        strategy,
        max_attempts,
        answers,
        worktree,
        per_minute,
        burst,
    ) = row
    known = RecoveryStrategy(strategy) if strategy in set(RecoveryStrategy) else None
    return Workspace(
        id=WorkspaceId(workspace_id),
        name=name,
        created_at=required(created),
        weight=weight,
        runs_per_minute=per_minute,
        runs_burst=burst,
        max_active_runs=active,
        max_queued_runs=queued,
        recovery_strategy=known,
        recovery_max_attempts=max_attempts,
        answers=tuple(parsed(answers) or ()),
        worktree=worktree_of(parsed(worktree)),
    )


def key_of(row: Sequence[Any]) -> ApiKey:
    """A row in the order of KEY_COLUMNS."""
    key_id, name, workspace_id, scopes, created, expires, revoked = row
    return ApiKey(
        id=KeyId(key_id),
        name=name,
        workspace_id=None if workspace_id is None else WorkspaceId(workspace_id),
        scopes=frozenset(Scope(scope) for scope in parsed(scopes)),
        created_at=required(created),
        expires_at=moment(expires),
        revoked_at=moment(revoked),
    )


def event_of(row: Sequence[Any]) -> Event:
    """A row in the order of EVENT_COLUMNS."""
    session_id, number, run_id, attempt, kind, data, at = row
    found: Mapping[str, Any] = parsed(data)
    run = None if run_id is None else RunId(run_id)
    return Event(SessionId(session_id), number, run, attempt, kind, found, required(at))


def step_of(row: Sequence[Any]) -> Step:
    """A row in the order of STEP_COLUMNS."""
    run_id, number, attempt, kind, name, data, at, deadline, ended, outcome = row
    when = (required(at), moment(deadline), moment(ended))
    return Step(RunId(run_id), number, attempt, kind, name, parsed(data) or {}, *when, outcome)


def attempt_of(row: Sequence[Any]) -> Attempt:
    """A row in the order of ATTEMPT_COLUMNS."""
    run_id, attempt, reason, worker, agent, home, recording, started, ended, outcome, agent_reason = row
    return Attempt(
        run_id=RunId(run_id),
        attempt=attempt,
        reason=StartReason(reason),
        worker_id=WorkerId(worker),
        agent=agent or "",
        home=home,
        recording_blob=recording,
        started_at=required(started),
        ended_at=moment(ended),
        outcome=outcome,
        agent_reason=agent_reason,
    )
