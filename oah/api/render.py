"""Nouns as the JSON documents of the HTTP interface. Moments are RFC 3339 in UTC, durations seconds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from starlette.responses import Response

from oah import __version__
from oah.core.model.cordon import Cordon
from oah.core.model.event import Event
from oah.core.model.run import COMMAND, Attempt, Run, RunStatus, Step
from oah.core.model.session import Session
from oah.core.model.worker import WorkerReport
from oah.core.model.workspace import ApiKey, Workspace
from oah.core.policy.waiting import WaitReason
from oah.ports.store import EXCERPT, Accepted
from oah.services.inspect import RecoveryOverview

Document = dict[str, Any]


def json_bytes(document: object) -> bytes:
    """Compact JSON in UTF-8; text that has no UTF-8 is escaped instead of failing the answer."""
    try:
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"), default=_plain).encode()
    except UnicodeEncodeError:
        return json.dumps(document, separators=(",", ":"), default=_plain).encode()


def _plain(value: object) -> object:
    match value:
        case datetime():
            return moment(value)
        case timedelta():
            return value.total_seconds()
        case Enum():
            return value.value
        case Mapping():
            return dict(value)
        case frozenset() | set() | tuple():
            return sorted(value)
        case _:
            raise TypeError(f"{type(value).__name__} has no JSON")


def answer(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A document as an answer."""
    return Response(json_bytes(document), status, dict(headers or {}), "application/json")


def page(items: Iterable[Document], next_cursor: str | None = None) -> Response:
    """A list as an answer."""
    return answer({"items": list(items), "next_cursor": next_cursor})


def moment(value: datetime | None) -> str | None:
    """RFC 3339, UTC, microseconds."""
    return None if value is None else value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def seconds(value: timedelta | None) -> float | None:
    """A duration as a number of seconds."""
    return None if value is None else value.total_seconds()


def session_document(session: Session) -> Document:
    """A session. Names of its environment are shown, values are not: they may be secrets."""
    return {
        "id": session.id,
        "workspace_id": session.workspace_id,
        "agent": session.lane.profile,
        "pool": session.lane.pool,
        "lane": str(session.lane),
        "state": session.state,
        "title": session.title,
        "labels": dict(session.labels),
        "metadata": dict(session.metadata),
        "cwd": session.cwd,
        "worktree": None if session.worktree is None else session.worktree.document(),
        "env": dict.fromkeys(session.env),
        "queued_count": session.queued_count,
        "event_seq": session.event_seq,
        "holds": [{"reason": reason, "until": moment(until)} for reason, until in session.holds.items()],
        "session_ref": session.session_ref,
        "home": None if session.home is None else {"mode": session.home.mode, "host": session.home.host},
        "wake": wake_document(session),
        "unsettled_messages": session.unsettled,
        "parent_run_id": session.parent_run_id,
        "created_at": moment(session.created_at),
        "closed_at": moment(session.closed_at),
    }


def wake_document(session: Session) -> Document:
    """Whether a message starts its agent, and what stands against it."""
    return {
        "mode": session.wake,
        "run_id": session.wake_run_id,
        "failures": session.wake_failures,
        "not_before": moment(session.wake_after),
        "stopped": session.wake_stopped,
    }


def wait_document(reason: WaitReason | None) -> Document | None:
    """Why a run waits: code, words, and the facts of the code; None for one that does not wait."""
    if reason is None:
        return None
    facts = {name: _plainly(value) for name, value in reason.data.items()}
    return {"code": reason.code, "message": reason.message, **facts}


def _plainly(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _plainly(each) for name, each in value.items()}
    return moment(value) if isinstance(value, datetime) else value


def question_document(step: Step | None) -> Document | None:
    """What the program of a run asks: the question's number, text and choices; None when nothing is asked."""
    if step is None:
        return None
    return {
        "number": step.number,
        **step.data["question"],
        "asked_at": moment(step.at),
        "deadline": moment(step.deadline_at),
        "answered": "answer" in step.data,
    }


def receipt_document(accepted: Accepted) -> Document:
    """What a submit or a requeue is answered with."""
    run = accepted.run
    return {"id": run.id, "session_id": run.session_id, "status": run.status, "position": run.position}


def run_document(run: Run, *, wait_reason: WaitReason | None = None, excerpt: bool = False) -> Document:
    """A run. ``excerpt``: in a list, where inputs are cut."""
    cut = excerpt and len(run.input) > EXCERPT
    return {
        "id": run.id,
        "session_id": run.session_id,
        "workspace_id": run.workspace_id,
        "parent_run_id": run.parent_run_id,
        "position": run.position,
        "class": run.run_class,
        "kind": run.kind,
        "status": run.status,
        "wait_reason": wait_document(wait_reason),
        "input": run.input[:EXCERPT] if cut else run.input,
        "input_truncated": cut,
        "command": run.command,
        "metadata": {name: value for name, value in run.metadata.items() if name != COMMAND},
        "deferred": run.deferred,
        "due_at": moment(run.due_at),
        "attempt": run.attempt,
        "recovery_attempts": run.recovery_attempts,
        "failed_attempts": run.failed_attempts,
        "max_retries": run.max_retries,
        "retry": None if run.retry is None else dict(run.retry),
        "order": run.order_mode,
        "priority": run.priority,
        "next_attempt_at": moment(next_attempt_at(run)),
        "timeout_seconds": seconds(run.timeout),
        "deadline": moment(run.deadline_at),
        "start_by": moment(run.start_by),
        "idle_timeout_seconds": seconds(run.idle_timeout),
        "step_timeout_seconds": seconds(run.step_timeout),
        "worker_id": run.worker_id,
        "cancel_requested_at": moment(run.cancel_requested_at),
        "cancel_requested_by": run.cancel_requested_by,
        "stop_reason": run.stop_reason,
        "voided": run.voided,
        "exit_code": run.exit_code,
        "error": error_document(run),
        "recovery": recovery_document(run),
        "note": run.note,
        "created_at": moment(run.created_at),
        "queued_at": moment(run.queued_at),
        "started_at": moment(run.started_at),
        "heartbeat_at": moment(run.heartbeat_at),
        "ended_at": moment(run.ended_at),
    }


def next_attempt_at(run: Run) -> datetime | None:
    """When the retry of a run is due that waits for one."""
    waits = run.status is RunStatus.QUEUED and run.failed_attempts > 0
    return run.due_at if waits and run.due_at is not None and run.due_at > run.queued_at else None


def error_document(run: Run) -> Document | None:
    """Why a run did not complete."""
    return None if run.error is None else {"code": run.error.code, "message": run.error.message}


def recovery_document(run: Run) -> Document | None:
    """What recovery did with a run; None when it never had to."""
    if run.recovery is None and run.recovery_state is None:
        return None
    recorded = dict(run.recovery or {})
    earlier = recorded.get("total") or {}  # of the lives before the last manual requeue
    now = {"recovery_attempts": run.recovery_attempts, "failed_attempts": run.failed_attempts}
    return {
        **recorded,
        "state": run.recovery_state,
        "attempts": recorded.get("attempts", run.recovery_attempts),
        "total": {name: int(earlier.get(name, 0)) + count for name, count in now.items()},
    }


def attempt_document(attempt: Attempt) -> Document:
    """One execution of a run."""
    return {
        "run_id": attempt.run_id,
        "attempt": attempt.attempt,
        "reason": attempt.reason,
        "worker_id": attempt.worker_id,
        "agent": attempt.agent,
        "agent_reason": attempt.agent_reason,
        "home": attempt.home,
        "recording": attempt.recording_blob,
        "started_at": moment(attempt.started_at),
        "ended_at": moment(attempt.ended_at),
        "outcome": attempt.outcome,
    }


def step_document(step: Step, run: Run | None = None) -> Document:
    """Something that was done to a run or in it. ``run``: as it is now; a step that it has left behind is abandoned."""
    return {
        "run_id": step.run_id,
        "number": step.number,
        "attempt": step.attempt,
        "kind": step.kind,
        "name": step.name,
        "state": _state_of(step, run),
        "outcome": step.outcome,
        "data": dict(step.data),
        "at": moment(step.at),
        "started_at": moment(step.at),
        "deadline": moment(step.deadline_at),
        "ended_at": moment(step.ended_at if step.kind != "system" else step.at),
    }


def _state_of(step: Step, run: Run | None) -> str:
    if step.kind == "system" or step.ended_at is not None:
        return "finished"
    over = run is not None and (not run.status.active or run.attempt != step.attempt)
    return "abandoned" if over else "started"


def event_document(event: Event) -> Document:
    """One event; ``number`` is the session's sequence."""
    return {
        "session_id": event.session_id,
        "number": event.number,
        "run_id": event.run_id,
        "attempt": event.attempt,
        "type": event.type,
        "data": dict(event.data),
        "at": moment(event.at),
    }


def worker_document(worker: WorkerReport, *, sessions: bool) -> Document:
    """A worker by its own report. ``sessions``: whether the caller may see what it executes."""
    return {
        "id": worker.id,
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "pool": worker.pool,
        "state": worker.state,
        "slots": worker.slots,
        "slots_max": worker.capacity,
        "busy": worker.busy,
        "weight": worker.taken,
        "weights": dict(worker.weights),
        "pressure": list(worker.pressure),
        "parked": worker.parked,
        "profiles": list(worker.profiles),
        "withdrawn": dict(worker.withdrawn),
        "version": worker.version,
        "version_skew": worker.version != __version__,
        "cordoned": worker.cordoned,
        "cordon": None if worker.cordon is None else cordon_document(worker.cordon),
        "draining": worker.draining,
        "embedded": worker.embedded,
        "started_at": moment(worker.started_at),
        "last_seen_at": moment(worker.last_seen_at),
        "cpu_percent": worker.cpu_percent,
        "rss_bytes": worker.rss_bytes,
        "memory_ratio": worker.memory_ratio,
        "load_ratio": worker.load_ratio,
        "disk_ratio": worker.disk_ratio,
        "sessions": dict(worker.sessions) if sessions else None,
    }


def cordon_document(cordon: Cordon) -> Document:
    """A cordon that an operator wants kept. ``until`` null: until somebody uncordons it."""
    return {"by": cordon.by, "at": moment(cordon.at), "until": moment(cordon.until)}


def workspace_document(workspace: Workspace) -> Document:
    """A workspace."""
    return {
        "id": workspace.id,
        "name": workspace.name,
        "weight": workspace.weight,
        "max_active_runs": workspace.max_active_runs,
        "max_queued_runs": workspace.max_queued_runs,
        "runs_per_minute": workspace.runs_per_minute,
        "runs_burst": workspace.runs_burst,
        "recovery_strategy": workspace.recovery_strategy,
        "recovery_max_attempts": workspace.recovery_max_attempts,
        "answers": [dict(rule) for rule in workspace.answers],
        "worktree": None if workspace.worktree is None else workspace.worktree.document(),
        "created_at": moment(workspace.created_at),
    }


def key_document(key: ApiKey) -> Document:
    """A key without its secret."""
    return {
        "id": key.id,
        "name": key.name,
        "workspace_id": key.workspace_id,
        "scopes": sorted(key.scopes),
        "created_at": moment(key.created_at),
        "expires_at": moment(key.expires_at),
        "revoked_at": moment(key.revoked_at),
    }


def recovery_overview_document(overview: RecoveryOverview) -> Document:
    """What recovery did; the counts are exact."""
    figures = overview.figures
    return {
        "counts": {str(state): count for state, count in figures.counts.items()},
        "quarantined": [run_document(run, excerpt=True) for run in overview.quarantine],
        "oldest_quarantined_at": moment(figures.oldest_quarantined_at),
        "newest_quarantined_at": moment(figures.newest_quarantined_at),
        "newest_recovered_at": moment(figures.newest_recovered_at),
        "reasons": [{"reason": reason, "count": count} for reason, count in list(figures.reasons.items())[:10]],
        "stale_owner_count": overview.stale_owners,
    }
