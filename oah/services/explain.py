"""Explain why runs wait, and what has not moved for too long. Reads only; a page costs as much as one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from oah.core.model.epoch import EpochState
from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import Run, RunStatus, Step
from oah.core.model.session import Place
from oah.core.model.worker import WorkerReport, WorkerState
from oah.core.policy import waiting
from oah.core.policy.waiting import WaitCode, WaitReason
from oah.errors import LeaseError, OahError, Unavailable
from oah.ports.broker import Broker
from oah.ports.dispatch import QueueFigures
from oah.ports.store import Store
from oah.ports.waits import Diagnosis, Stuck, WaitFacts

LADDER = timedelta(seconds=20)
"""The longest that the owner of a run takes to end it once it knows: key, INT, TERM with 5 s each, and the kill."""
LONG = timedelta(minutes=1)
"""A run that is eligible for longer than this wants an explanation."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The broker's side at one moment, for any number of runs."""

    workers: tuple[WorkerReport, ...] = ()
    away: bool = False
    rebuilding: bool = False
    leader: bool = True


def dispatch(broker: Broker) -> Dispatch:
    """Three calls. An absence of the broker is an answer too."""
    try:
        view = broker.view()
        rebuilding = view.state is not EpochState.OPEN
        return Dispatch(tuple(broker.workers()), rebuilding=rebuilding, leader=broker.leader() is not None)
    except Unavailable:
        return Dispatch(away=True)


def wait_reasons(store: Store, look: Callable[[], Dispatch], runs: Sequence[Run]) -> dict[RunId, WaitReason]:
    """Of those of the runs that wait. ``look``: at the broker; two statements and one look, or none when no run is
    queued, and one statement for all that wait for an answer."""
    found: dict[RunId, WaitReason] = {}
    asking = store.waits_for([run.id for run in runs if run.status is RunStatus.WAITING_TOOL])
    for run in runs:
        if run.status is RunStatus.WAITING_TOOL:
            reason = waiting.why(waiting.View(status=run.status, lane=_NO_LANE))
            assert reason is not None
            step = asking.get(run.id)
            found[run.id] = reason if step is None else _asked(reason, step)
    queued = [run.id for run in runs if run.status is RunStatus.QUEUED]
    return {**found, **_reasons_of(store, look, queued)}


def _reasons_of(store: Store, look: Callable[[], Dispatch], queued: Sequence[RunId]) -> dict[RunId, WaitReason]:
    """Of those that are still queued."""
    facts = store.waits(queued) if queued else {}
    if not facts:
        return {}
    at = look()
    return {run_id: _reason(each, at) for run_id, each in facts.items()}


def _asked(reason: WaitReason, step: Step) -> WaitReason:
    """With what it has asked for; an answered question only waits for a slot."""
    data = {"asked": step.name, "since": step.at}
    if "children" in step.data:
        return WaitReason(WaitCode.WAITING_CHILDREN, "waits for its child runs to end", {"since": step.at})
    if "answer" in step.data:
        return replace(reason, message="answered; goes on when its worker has a slot for it", data=data)
    return replace(reason, data=data)


def question_of(store: Store, run: Run) -> Step | None:
    """The open question of a run's program."""
    if run.status is not RunStatus.WAITING_TOOL:
        return None
    step = store.waits_for([run.id]).get(run.id)
    return step if step is not None and "question" in step.data else None


_NO_LANE = Lane("none", "none")


def _reason(facts: WaitFacts, at: Dispatch) -> WaitReason:
    reason = waiting.why(
        waiting.View(
            status=RunStatus.QUEUED,
            lane=facts.lane,
            deferred=facts.deferred,
            due_at=facts.due_at,
            retried=facts.retried,
            failed_attempts=facts.failed_attempts,
            recovery_attempts=facts.recovery_attempts,
            holds=facts.holds,
            before=facts.before,
            pause=facts.pause,
            caps=facts.caps,
            workers=at.workers,
            broker_away=at.away,
            rebuilding=at.rebuilding,
            leader=at.leader,
        )
    )
    assert reason is not None  # a queued run always waits for something
    return reason


@dataclass(frozen=True, slots=True)
class Explained:
    """What did not move, why runs wait, and lanes that nobody serves."""

    found: Diagnosis
    reasons: dict[RunId, WaitReason]
    unserved: dict[Lane, int]
    """Ready sessions of lanes whose workers are all gone, cordoned or draining."""
    leader: bool
    broker_away: bool
    withdrawn: Mapping[Lane, Mapping[str, int]] = field(default_factory=dict)
    """Of the unserved lanes: why workers that know the profile do not serve it → how many."""
    unplaced: tuple[SessionId, ...] = ()
    """Of the sessions of the runs that wait: those that the broker does not know of, though nothing holds them."""

    @property
    def dominant(self) -> tuple[tuple[str, int], ...]:
        """How often each reason stands among the runs that wait, most frequent first."""
        return tuple(Counter(str(reason.code) for reason in self.reasons.values()).most_common())


def diagnose(
    store: Store,
    broker: Broker,
    workspace_id: WorkspaceId | None,
    *,
    lease: timedelta,
    waiting_for: timedelta = LONG,
    limit: int = 20,
    at: Dispatch | None = None,
    figures: QueueFigures | None = None,
) -> Explained:
    """Raises Unavailable when SQL is away; what only the broker knows is left out when it is. ``at`` and ``figures``:
    the broker's side, for a caller that has just looked."""
    found = store.diagnosis(
        workspace_id, lease=lease, unheeded_for=LADDER + lease, waiting_for=waiting_for, limit=limit
    )
    at = at or dispatch(broker)
    waits = store.waits([each.run_id for each in found.waiting if each.run_id is not None])
    reasons = {run_id: _reason(each, at) for run_id, each in waits.items()}
    # Started, cancelled or held meanwhile: it does not wait any more.
    still = tuple(each for each in found.waiting if each.run_id in waits)
    try:
        unserved = {} if at.away else unserved_lanes(figures or broker.figures(), at.workers)
    except OahError:
        unserved = {}
    return Explained(
        found=replace(found, waiting=still),
        reasons=reasons,
        unserved=unserved,
        withdrawn={lane: waiting.withdrawn(at.workers, lane) for lane in unserved},
        leader=at.leader,
        broker_away=at.away,
        unplaced=() if at.away else _unplaced(store, broker, still, reasons),
    )


_PLACELESS = frozenset({WaitCode.SESSION_HELD, WaitCode.BEHIND_RUN, WaitCode.REBUILDING})
"""Reasons that explain why a session is in no ready set."""


def _unplaced(
    store: Store, broker: Broker, waiting: Sequence[Stuck], reasons: Mapping[RunId, WaitReason]
) -> tuple[SessionId, ...]:
    asked = [each.session_id for each in waiting if each.run_id and reasons[each.run_id].code not in _PLACELESS]
    epoch = store.current_epoch() if asked else None
    if epoch is None:
        return ()
    try:
        return tuple(view.session_id for view in broker.leases(epoch, asked) if view.place is Place.IDLE)
    except (Unavailable, LeaseError):
        return ()


def told(explained: Explained) -> dict[str, Any]:
    """As plain values, for the API and for doctor."""
    found = explained.found
    names = ("silent", "unheeded", "unkillable", "undelivered")
    lists = {name: [_one(each) for each in getattr(found, name)] for name in names}
    waiting = [
        {**_one(each), "wait_reason": _words(explained.reasons[each.run_id])} for each in found.waiting if each.run_id
    ]
    return {
        "leader": explained.leader,
        "broker_away": explained.broker_away,
        **lists,
        "waiting": waiting,
        "waiting_reasons": dict(explained.dominant),
        "oldest_waiting_seconds": max((each["seconds"] for each in waiting), default=0.0),
        "unplaced": list(explained.unplaced),
        "unserved_lanes": [
            {"lane": str(lane), "sessions": sessions, "withdrawn": dict(explained.withdrawn.get(lane, {}))}
            for lane, sessions in sorted(explained.unserved.items())
        ],
        "truncated": sorted(found.truncated),
    }


def _one(stuck: Stuck) -> dict[str, Any]:
    seconds = stuck.age.total_seconds()
    return {
        "session_id": stuck.session_id,
        "run_id": stuck.run_id,
        "worker_id": stuck.worker_id,
        "seconds": seconds,
    }


def _words(reason: WaitReason) -> dict[str, str]:
    return {"code": str(reason.code), "message": reason.message}


def unserved_lanes(figures: QueueFigures, workers: Sequence[WorkerReport]) -> dict[Lane, int]:
    """Lanes with ready sessions that no live worker takes: how many sessions."""
    served = {
        lane
        for worker in workers
        if worker.state is not WorkerState.STOPPING and not (worker.cordoned or worker.draining)
        for lane in worker.lanes
    }
    found: dict[Lane, int] = {}
    for depth in figures.ready:
        if depth.sessions and depth.lane not in served:
            found[depth.lane] = found.get(depth.lane, 0) + depth.sessions
    return found
