"""Why a run does not run: one answer, the first of what would have to change.

Guarantees: total; every queued run and every run that waits for an answer gets a reason, no other run does. The order
of the questions is the order in which a person can do something about them: the run's own time, its session, its place
in it, pauses, dispatch as a whole, workers, caps, slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from oah.core.model.group import GroupKind, Pause
from oah.core.model.ids import RunId
from oah.core.model.lane import Lane
from oah.core.model.run import RunStatus
from oah.core.model.session import HoldReason
from oah.core.model.worker import WorkerReport, WorkerState

MOST_TOLD = 5
"""Different reasons of workers that are told."""


class WaitCode(StrEnum):
    """The reasons, each with the facts that `data` carries."""

    WAITING_INPUT = "waiting_input"
    """Its agent waits for an answer. `asked`, `since`: what it said when it began to wait"""
    WAITING_CHILDREN = "waiting_children"
    """Runs that it has started live still; it holds no slot. `since`"""
    DELAYED = "delayed"
    """`until`"""
    RETRY_BACKOFF = "retry_backoff"
    """`until`, `failed_attempts`"""
    SESSION_HELD = "session_held"
    """`reasons` (reason → its end or null), `until` (null: somebody has to act)"""
    BEHIND_RUN = "behind_run"
    """`run_id`, `status`"""
    BROKER_AWAY = "broker_away"
    """Accepted and safe; dispatch pauses until the broker answers."""
    REBUILDING = "rebuilding"
    """The queues are rebuilt from SQL."""
    NO_WORKER = "no_worker"
    """`lane`, `workers` (that serve it, all cordoned or draining), `withdrawn` (why workers of the pool do not serve a
    profile that they know → how many of them)"""
    PAUSED = "paused"
    """`kind` and `name` of what is paused (a workspace, a pool, a profile, all), `by`, `since`, `reason`"""
    WORKSPACE_CAP = "workspace_cap"
    """`active`, `max_active_runs`"""
    PROFILE_CAP = "profile_cap"
    """`profile`, `active`, `max_active_runs`"""
    GLOBAL_CAP = "global_cap"
    """`active`, `max_active_runs` of the whole deployment"""
    PRESSURE = "pressure"
    """`lane`, `workers` (that would take it), `resources` (of which their machines are short)"""
    NO_FREE_SLOT = "no_free_slot"
    """`workers`, `slots`, `suspect` (a run with a recovery behind it: a worker takes one of those at a time)"""
    NO_LEADER = "no_leader"
    """Nobody repairs and promotes; a slot is free all the same."""
    DISPATCHING = "dispatching"
    """Nothing stands in its way: a worker is about to take it."""


@dataclass(frozen=True, slots=True)
class WaitReason:
    """The answer: a stable code, words for a person, and the facts."""

    code: WaitCode
    message: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Before:
    """The run that has to end first."""

    run_id: RunId
    status: RunStatus


@dataclass(frozen=True, slots=True)
class Cap:
    """How many runs of a group (its workspace, its profile, all) hold a slot, and how many may."""

    active: int
    most: int
    group: GroupKind = GroupKind.WORKSPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One run. `workers`: all that report; `broker_away` and `rebuilding`: of the dispatch shard."""

    status: RunStatus
    lane: Lane
    deferred: bool = False
    due_at: datetime | None = None
    retried: bool = False
    failed_attempts: int = 0
    recovery_attempts: int = 0
    holds: Mapping[HoldReason, datetime | None] = field(default_factory=dict)
    before: Before | None = None
    pause: Pause | None = None
    caps: Sequence[Cap] = ()
    workers: Sequence[WorkerReport] = ()
    broker_away: bool = False
    rebuilding: bool = False
    leader: bool = True


def withdrawn(workers: Sequence[WorkerReport], lane: Lane) -> dict[str, int]:
    """Why live workers of the lane's pool have withdrawn its profile → how many of them, the most frequent first."""
    pool = (w for w in workers if w.pool == lane.pool and w.state is not WorkerState.STOPPING)
    return dict(Counter(w.withdrawn[lane.profile] for w in pool if lane.profile in w.withdrawn).most_common(MOST_TOLD))


def why_withdrawn(reasons: Mapping[str, int]) -> str:
    """As the end of a sentence; empty when nobody has withdrawn it."""
    return "".join(f"; {count} withdrew it: {reason}" for reason, count in reasons.items())


def why(view: View) -> WaitReason | None:
    """The reason; None for a run that does not wait."""
    if view.status is RunStatus.WAITING_TOOL:
        return WaitReason(WaitCode.WAITING_INPUT, "waits for an answer to the agent")
    if view.status is not RunStatus.QUEUED:
        return None
    return _of_run(view) or _paused(view) or _of_dispatch(view) or _of_workers(view)


def _of_run(view: View) -> WaitReason | None:
    """Its own time, its session, its place."""
    facts: dict[str, Any]
    if view.deferred:
        until = view.due_at.isoformat() if view.due_at else "a later time"
        if view.retried:
            facts = {"until": view.due_at, "failed_attempts": view.failed_attempts}
            return WaitReason(WaitCode.RETRY_BACKOFF, f"is tried again at {until}", facts)
        return WaitReason(WaitCode.DELAYED, f"delayed until {until}", {"until": view.due_at})
    if view.holds:
        held = sorted(view.holds.items())
        words = ", ".join(f"{reason} until {end.isoformat()}" if end else str(reason) for reason, end in held)
        ends = [end for _, end in held]
        until_all = None if None in ends else max(end for end in ends if end is not None)
        facts = {"reasons": {str(reason): end for reason, end in held}, "until": until_all}
        return WaitReason(WaitCode.SESSION_HELD, f"session held: {words}", facts)
    if view.before is not None:
        run_id, status = view.before.run_id, view.before.status
        facts = {"run_id": run_id, "status": status}
        return WaitReason(WaitCode.BEHIND_RUN, f"behind run {run_id} ({status})", facts)
    return None


def _paused(view: View) -> WaitReason | None:
    if view.pause is None:
        return None
    group, pause = view.pause.group, view.pause
    facts = {"kind": str(group.kind), "name": group.name, "by": pause.by, "since": pause.at, "reason": pause.reason}
    words = f"{group} is paused" if group.name else "everything is paused"
    return WaitReason(WaitCode.PAUSED, f"{words}: {pause.reason}" if pause.reason else words, facts)


def _of_dispatch(view: View) -> WaitReason | None:
    if view.broker_away:
        return WaitReason(WaitCode.BROKER_AWAY, "the broker does not answer; dispatch goes on when it does")
    if view.rebuilding:
        return WaitReason(WaitCode.REBUILDING, "the queues are being rebuilt")
    return None


def _at_cap(cap: Cap, lane: Lane) -> WaitReason:
    facts: dict[str, Any] = {"active": cap.active, "max_active_runs": cap.most}
    if cap.group is GroupKind.WORKSPACE:
        return WaitReason(WaitCode.WORKSPACE_CAP, f"{cap.active} runs of its workspace run, no more may", facts)
    if cap.group is GroupKind.PROFILE:
        facts = {"profile": lane.profile, **facts}
        return WaitReason(WaitCode.PROFILE_CAP, f"{cap.active} runs of {lane.profile} run, no more may", facts)
    return WaitReason(WaitCode.GLOBAL_CAP, f"{cap.active} runs run, no more may", facts)


def _under_pressure(workers: Sequence[WorkerReport], lane: Lane) -> WaitReason:
    resources = sorted({resource for worker in workers for resource in worker.pressure})
    facts = {"lane": str(lane), "workers": len(workers), "resources": resources}
    words = f"every worker of lane {lane} is short of {', '.join(resources)} and takes nothing meanwhile"
    return WaitReason(WaitCode.PRESSURE, words, facts)


def _of_workers(view: View) -> WaitReason:
    """Who could take it, and whether anybody may and can now."""
    facts: dict[str, Any]
    serving = [w for w in view.workers if view.lane in w.lanes and w.state is not WorkerState.STOPPING]
    taking = [w for w in serving if not (w.cordoned or w.draining)]
    if not taking:
        lane, reasons = str(view.lane), withdrawn(view.workers, view.lane)
        words = (
            f"every worker of lane {lane} is cordoned or drains" if serving else f"no live worker serves lane {lane}"
        )
        facts = {"lane": lane, "workers": len(serving), "withdrawn": reasons}
        return WaitReason(WaitCode.NO_WORKER, f"{words}{why_withdrawn(reasons)}", facts)
    full = next((cap for cap in view.caps if cap.active >= cap.most), None)
    if full is not None:
        return _at_cap(full, view.lane)
    calm = [w for w in taking if not w.pressure]
    if not calm:
        return _under_pressure(taking, view.lane)
    suspect = view.recovery_attempts > 0
    if suspect or all(w.room(view.lane.profile) == 0 for w in calm):
        words = "waits for a worker that holds no other recovered run" if suspect else "waits for a free slot"
        facts = {"workers": len(taking), "slots": sum(w.capacity for w in taking), "suspect": suspect}
        return WaitReason(WaitCode.NO_FREE_SLOT, words, facts)
    if not view.leader:
        return WaitReason(WaitCode.NO_LEADER, "nobody leads; a free slot will take it all the same if Redis has it")
    return WaitReason(WaitCode.DISPATCHING, "about to be taken")
