"""Sessions: create, change, close, pause, resume."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from oah.core.model.home import Worktree, is_ref
from oah.core.model.ids import EpochId, RunId, SessionId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.message import WakeMode
from oah.core.model.session import EnvValue, HoldReason, Session, SessionState
from oah.core.policy import admission
from oah.errors import InvalidRequest, LeaseError, Unavailable
from oah.ports.broker import Broker, Hold
from oah.ports.clock import Clock, Ids
from oah.ports.commands import CommandKind
from oah.ports.store import Store
from oah.services.cancel import cancel
from oah.services.place import Places, awake

DEFAULT_POOL = "default"
CANCELLED_AT_ONCE = 1_000
"""Runs that closing with ``cancel`` ends; as many as a session may have queued (details.md, Defaults)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSession:
    """A session as it came from outside, typed but not judged."""

    agent: str
    workspace_id: WorkspaceId
    pool: str = DEFAULT_POOL
    title: str | None = None
    cwd: str | None = None
    worktree: Worktree | None = None
    env: Mapping[str, EnvValue] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    wake: WakeMode = WakeMode.LAZY


def create(
    store: Store,
    clock: Clock,
    ids: Ids,
    asked: AskedSession,
    *,
    agents: Callable[[], frozenset[str]],
    rules: admission.Rules,
) -> Session:
    """A new, open session. Raises InvalidRequest (``unknown_agent``), PayloadTooLarge, NotFound (workspace)."""
    return store.create_session(prepare(store, clock, ids, asked, agents=agents, rules=rules))


def prepare(
    store: Store,
    clock: Clock,
    ids: Ids,
    asked: AskedSession,
    *,
    agents: Callable[[], frozenset[str]],
    rules: admission.Rules,
) -> Session:
    """A checked session, ready to be written. Touches SQL only to read what its workspace says. Raises as `create`."""
    lane, changes = judge(asked, agents=agents, rules=rules)
    worktree = asked.worktree
    if worktree is None and asked.cwd is None:
        worktree = store.workspace(asked.workspace_id).worktree
    return Session(
        id=SessionId(ids.new("ses")),
        workspace_id=asked.workspace_id,
        lane=lane,
        state=SessionState.OPEN,
        created_at=clock.now(),
        wake=asked.wake,
        worktree=worktree,
        **changes,
    )


def judge(
    asked: AskedSession, *, agents: Callable[[], frozenset[str]], rules: admission.Rules
) -> tuple[Lane, dict[str, Any]]:
    """Whether there can be such a session: its lane, and the fields that people write. Raises as `create`."""
    lane = Lane(admission.name(asked.pool, what="pool"), admission.name(asked.agent, what="agent"))
    known = agents()
    if lane.profile not in known:
        raise InvalidRequest(
            f"no agent '{lane.profile}' is known",
            code="unknown_agent",
            hint=f"known: {', '.join(sorted(known)) or '-'}",
        )
    changes = checked(
        {"title": asked.title, "cwd": asked.cwd, "env": asked.env, "labels": asked.labels, "metadata": asked.metadata},
        rules,
    )
    if asked.worktree is not None:
        if asked.cwd is not None:
            raise InvalidRequest("a session has a cwd or a worktree, not both")
        check_worktree(asked.worktree)
    return lane, changes


def check_worktree(worktree: Worktree) -> None:
    """Whether it may be made is for the worker to judge: only it sees the repository. Raises InvalidRequest."""
    admission.clean(worktree.repo, what="worktree.repo", limit=4096, empty=False)
    if not worktree.repo.startswith("/"):
        raise InvalidRequest("worktree.repo must be an absolute path")
    if worktree.ref is not None and not is_ref(worktree.ref):
        raise InvalidRequest("worktree.ref must name a branch, tag or commit")


def change(
    store: Store,
    session_id: SessionId,
    workspace_id: WorkspaceId | None,
    changes: Mapping[str, Any],
    *,
    rules: admission.Rules,
) -> Session:
    """Change title, labels, metadata. Raises NotFound, InvalidRequest, PayloadTooLarge."""
    return store.update_session(session_id, workspace_id, checked(changes, rules))


def checked(changes: Mapping[str, Any], rules: admission.Rules) -> dict[str, Any]:
    """The fields of a session that people write, judged. Raises InvalidRequest, PayloadTooLarge."""
    for name, value in changes.items():
        if value is None:
            continue
        match name:
            case "title":
                admission.clean(value, what=name, limit=rules.title_bytes)
            case "cwd":
                admission.clean(value, what=name, limit=4096, empty=False)
                if not value.startswith("/"):
                    raise InvalidRequest("cwd must be an absolute path")
            case "wake":
                WakeMode(value)
            case "env":
                admission.environment(value, rules)
            case _:
                admission.document(value, what=name, rules=rules)
    return dict(changes)


def close(
    store: Store,
    broker: Broker,
    epoch: EpochId | None,
    session_id: SessionId,
    workspace_id: WorkspaceId | None,
    *,
    cancelling: bool,
    by: str,
    children_of: RunId | None = None,
) -> Session:
    """Take no more runs. Raises NotFound; Conflict ``session_busy`` while a run is active, unless ``cancelling``:
    all of them, or ``children_of`` a run; others then come to their ends."""
    session = store.session(session_id, workspace_id)
    if session.state is SessionState.CLOSED:
        return session
    # Closed to new runs first, so that none slips in behind the last one that is cancelled.
    closing = store.close_session(session_id, workspace_id, cancelling=cancelling)
    _end_agent(store, broker, session_id, by=by)
    if not cancelling or closing.state is SessionState.CLOSED:
        return closing
    for run in store.queue_of(session_id, limit=CANCELLED_AT_ONCE):
        if children_of is None or run.parent_run_id == children_of:
            cancel(store, broker, epoch, run.id, workspace_id, by=by)
    return store.session(session_id, workspace_id)


def _end_agent(store: Store, broker: Broker, session_id: SessionId, *, by: str) -> None:
    """Its warm agent, now or after the last run. Should this fail, the agent ends when it has been idle for long."""
    with contextlib.suppress(Unavailable, LeaseError):
        owner = store.command_session(session_id, CommandKind.CLOSE, by=by)
        if owner is not None:
            broker.look([owner], quick=True)


def pause(
    store: Store, broker: Broker, epoch: EpochId | None, session_id: SessionId, workspace_id: WorkspaceId | None
) -> Session:
    """Start no further run of this session; the active one goes on. Raises NotFound, Unavailable (the store)."""
    session = store.hold_session(session_id, workspace_id, HoldReason.PAUSED, until_in=None)
    if epoch is not None:
        try:
            broker.hold(epoch, [Hold(session_id, tuple(session.holds), None)])
        except (Unavailable, LeaseError):
            return session  # a start asks SQL, which says held
    return session


def resume(
    store: Store,
    broker: Broker,
    epoch: EpochId | None,
    session_id: SessionId,
    workspace_id: WorkspaceId | None,
    *,
    unkillable: bool = False,
) -> Session:
    """Undo ``pause``. Raises NotFound, Unavailable (the store).

    ``unkillable``: somebody has looked and says that the process which could not be killed is gone.
    """
    session = store.unhold_session(session_id, workspace_id, HoldReason.PAUSED)
    if unkillable:
        session = store.unhold_session(session_id, workspace_id, HoldReason.UNKILLABLE)
    if epoch is not None:
        try:
            Places(store, broker).put(epoch, [awake(each) for each in store.queued_sessions_of([session_id], epoch)])
        except (Unavailable, LeaseError):
            return session  # reconcile finds it eligible and without a place
    return session
