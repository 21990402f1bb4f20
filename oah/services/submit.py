"""Submit runs: check, commit in SQL, then let the broker hear of them.

The commit is the acceptance (I1). Hearing is best effort: what the broker did not hear of, the relay repeats.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from oah.core.model.ids import EpochId, RunId, SessionId, WorkspaceId
from oah.core.model.retry import retry_wish
from oah.core.model.run import COMMAND, OnBusy, OrderMode, RunClass
from oah.core.policy import admission
from oah.errors import EpochMismatch, InvalidRequest, RequestError
from oah.ports.broker import Broker
from oah.ports.children import Parent
from oah.ports.clock import Clock, Ids
from oah.ports.store import Accepted, NewRun, Store, SubmitLimits
from oah.services.place import Places
from oah.services.relay import hear as hear_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A submit as it came from outside, typed but not judged."""

    session_id: SessionId
    input: str
    run_class: RunClass = RunClass.INTERACTIVE
    delay_seconds: float | None = None
    run_at: datetime | None = None
    timeout_seconds: float | None = None
    deadline: datetime | None = None
    start_timeout_seconds: float | None = None
    idle_timeout_seconds: float | None = None
    step_timeout_seconds: float | None = None
    max_retries: int | None = None
    retry: Mapping[str, Any] | None = None
    recovery_strategy: str | None = None
    recovery_max_attempts: int | None = None
    order: OrderMode = OrderMode.STRICT
    priority: int = 0
    on_busy: OnBusy = OnBusy.ENQUEUE
    parent_run_id: RunId | None = None
    command: bool = False
    """Its text may be a command of the agent's program."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None


def prepare(
    store: Store,
    clock: Clock,
    ids: Ids,
    asked: Asked,
    *,
    workspace_id: WorkspaceId,
    rules: admission.Rules,
    by: str = "",
    parent: Parent | None = None,
) -> NewRun:
    """A checked run, ready to be committed. Touches SQL only to find a parent in the same workspace. ``parent``: the
    attempt whose agent submits it.

    Raises InvalidRequest, PayloadTooLarge, NotFound.
    """
    _supported(asked)
    delay = admission.duration(asked.delay_seconds, what="delay_seconds", rules=rules, zero=True)
    if delay is not None and asked.run_at is not None:
        raise InvalidRequest("delay_seconds and run_at exclude each other")
    if asked.max_retries is not None and not 0 <= asked.max_retries <= rules.retries:
        raise InvalidRequest(f"max_retries must be 0 to {rules.retries}")
    retry_wish(asked.retry or {})
    text = admission.run_input(asked.input, rules)
    now = clock.now()
    if asked.parent_run_id is not None:
        store.run(asked.parent_run_id, workspace_id)
    key = admission.idempotency_key(asked.idempotency_key)
    return NewRun(
        id=RunId(ids.new("run")),
        workspace_id=workspace_id,
        session_id=asked.session_id,
        input=text,
        run_class=asked.run_class,
        delay=delay or None,
        due_at=admission.moment(asked.run_at, what="run_at", now=now, rules=rules),
        timeout=admission.duration(asked.timeout_seconds, what="timeout_seconds", rules=rules),
        deadline_at=admission.moment(asked.deadline, what="deadline", now=now, rules=rules),
        max_retries=asked.max_retries,
        parent_run_id=asked.parent_run_id,
        order_mode=asked.order,
        priority=admission.priority(asked.priority),
        start_timeout=admission.duration(asked.start_timeout_seconds, what="start_timeout_seconds", rules=rules),
        idle_timeout=admission.duration(asked.idle_timeout_seconds, what="idle_timeout_seconds", rules=rules),
        step_timeout=admission.duration(asked.step_timeout_seconds, what="step_timeout_seconds", rules=rules),
        retry=asked.retry,
        recovery_strategy=asked.recovery_strategy,
        recovery_max_attempts=asked.recovery_max_attempts,
        metadata=_metadata(asked, rules),
        idempotency_key=key,
        request_hash=fingerprint(asked) if key else None,
        on_busy=asked.on_busy,
        by=by,
        parent=parent,
    )


def _metadata(asked: Asked, rules: admission.Rules) -> Mapping[str, Any]:
    """A caller that passes on what others wrote must not pass on that it is a command."""
    if COMMAND in asked.metadata:
        raise InvalidRequest(f"metadata {COMMAND!r} is not for callers", hint="say command: true")
    own = {COMMAND: True} if asked.command else {}
    return admission.document({**asked.metadata, **own}, what="metadata", rules=rules)


def _supported(asked: Asked) -> None:
    if asked.command and asked.on_busy is OnBusy.STEER:
        raise InvalidRequest("on_busy=steer excludes command: a command is never said into a turn")
    at_once = asked.on_busy.stops or asked.on_busy is OnBusy.STEER
    if at_once and (asked.delay_seconds is not None or asked.run_at is not None):
        raise InvalidRequest(f"on_busy={asked.on_busy} acts now: it excludes delay_seconds and run_at")
    if asked.on_busy is OnBusy.STEER:
        admission.spoken(asked.input)


def fingerprint(asked: Asked) -> str:
    """Identifies the body under an idempotency key: the same wish gives the same text, in any process."""
    wish = {
        "session": asked.session_id,
        "input": asked.input,
        "class": asked.run_class,
        "delay": asked.delay_seconds,
        "run_at": asked.run_at and asked.run_at.isoformat(),
        "timeout": asked.timeout_seconds,
        "deadline": asked.deadline and asked.deadline.isoformat(),
        "start_timeout": asked.start_timeout_seconds,
        "idle_timeout": asked.idle_timeout_seconds,
        "step_timeout": asked.step_timeout_seconds,
        "max_retries": asked.max_retries,
        "retry": asked.retry,
        "recovery": [asked.recovery_strategy, asked.recovery_max_attempts],
        "order": asked.order,
        "on_busy": asked.on_busy,
        "parent": asked.parent_run_id,
        "metadata": asked.metadata,
        **({"command": True} if asked.command else {}),
        **({"priority": asked.priority} if asked.priority else {}),
    }
    return hashlib.sha256(json.dumps(wish, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def commit(store: Store, runs: Sequence[NewRun], limits: SubmitLimits) -> list[Accepted | RequestError]:
    """One transaction for all; a member's fault is its own answer. Answers in the order given. Raises Unavailable."""
    order = sorted(range(len(runs)), key=lambda index: runs[index].session_id)
    answers = store.submit([runs[index] for index in order], limits=limits)
    placed = dict(zip(order, answers, strict=True))
    return [placed[index] for index in range(len(runs))]


def hear(broker: Broker, store: Store, epoch: EpochId | None, accepted: Sequence[Accepted]) -> EpochId | None:
    """Let the broker hear of committed runs and call the owners of parked sessions.

    Returns the epoch under which it heard, None when there is none yet. Raises Unavailable, Backpressure, LeaseError:
    the relay repeats all of it.
    """
    fresh = [one for one in accepted if not one.replayed and one.steer is None]
    if epoch is None or not fresh:
        return None
    places, hears = Places(store, broker), [hear_of(one) for one in fresh]
    try:
        places.hear(epoch, hears)
    except EpochMismatch:
        current = store.current_epoch()
        if current is None or current == epoch:
            raise
        epoch = current
        places.hear(epoch, hears)
    newest: dict[SessionId, int] = {}
    for one in fresh:
        newest[one.run.session_id] = max(one.event_number, newest.get(one.run.session_id, 0))
    broker.publish(list(newest.items()))
    return epoch
