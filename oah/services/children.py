"""What the agent of a run does with runs below its own: opens sessions for them, submits, sees and ends them.

It is known by the key of its attempt. What is none of its children is to it as what does not exist; what it writes is
fenced by the attempt. Children belong to the run: those that an earlier attempt has started are the later one's, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.run import Run
from oah.core.model.session import Session
from oah.core.policy import admission, children
from oah.errors import NotFound
from oah.ports.children import Parent
from oah.ports.clock import Clock, Ids
from oah.ports.store import RunFence, Store
from oah.services import sessions
from oah.services.submit import Asked


@dataclass(frozen=True, slots=True)
class Rules:
    """Of a deployment."""

    bounds: children.Bounds = field(default_factory=children.Bounds)
    reach: children.Reach = field(default_factory=children.Reach)


@dataclass(frozen=True, slots=True)
class Lineage:
    """One attempt's agent and what is below it."""

    store: Store
    fence: RunFence
    rules: Rules
    own: Session
    """The session of the attempt."""

    @property
    def workspace_id(self) -> WorkspaceId:
        """Of all of it."""
        return self.own.workspace_id

    @property
    def parent(self) -> Parent:
        """What its submits are fenced by."""
        fence = self.fence
        return Parent(fence.session_id, fence.run_id, fence.attempt, fence.token, self.rules.bounds)

    def session(self, session_id: SessionId) -> Session:
        """One that the run has opened. Raises NotFound."""
        if session_id == self.own.id:
            raise NotFound(f"no session {session_id}")
        return self._entered(session_id)

    def _entered(self, session_id: SessionId) -> Session:
        session = self.store.session(session_id, self.workspace_id)
        if not children.may_enter(session, self.own, self.fence.run_id):
            raise NotFound(f"no session {session_id}")
        return session

    def adopt(self, asked: Asked) -> Asked:
        """A submit as the child that it will be; its idempotency key is one of this run's own. Raises Forbidden,
        NotFound, Conflict ``own_session``, InvalidRequest."""
        children.parent_of(asked.parent_run_id, self.fence.run_id)
        children.check_run(asked.run_class, asked.on_busy)
        self._entered(asked.session_id)
        key = admission.idempotency_key(asked.idempotency_key)
        return replace(asked, idempotency_key=None if key is None else _own_key(self.fence.run_id, key))

    def open(
        self,
        asked: sessions.AskedSession,
        key: str | None,
        *,
        clock: Clock,
        ids: Ids,
        agents: Callable[[], frozenset[str]],
        rules: admission.Rules,
    ) -> tuple[Session, bool]:
        """A session for a child, and whether this run has opened it before under this idempotency key. Raises what
        ``sessions.create`` raises, Forbidden, and what the store's ``open_child_session`` raises."""
        if asked.workspace_id != self.workspace_id:
            raise NotFound(f"no workspace '{asked.workspace_id[:80]}'")
        session = sessions.prepare(self.store, clock, ids, asked, agents=agents, rules=rules)
        self.rules.reach.check(session.lane, self.own.lane)
        children.check_surroundings(asked.env, asked.worktree, self.own, wake=asked.wake)
        if session.worktree is not None and not children.has_repository(session.worktree, self.own):
            session = replace(session, worktree=None)  # the workspace says so, not the agent
        session = replace(session, parent_run_id=self.fence.run_id)
        if admission.idempotency_key(key) is not None:
            session = replace(session, id=SessionId(f"ses_{_digest(self.fence.run_id, str(key))[:26]}"))
        return self.store.open_child_session(session, self.parent)


def lineage(store: Store, fence: RunFence, rules: Rules) -> Lineage:
    """Of the agent that a run's key names. Raises NotFound, Unavailable."""
    return Lineage(store, fence, rules, store.session(fence.session_id, None))


def child(store: Store, parent: RunId, run_id: RunId) -> Run:
    """A run that has this parent. Raises NotFound, as for one that does not exist."""
    run = store.run(run_id, None)
    if run.parent_run_id != parent:
        raise NotFound(f"no run {run_id}")
    return run


def _own_key(run_id: RunId, key: str) -> str:
    """Within the workspace; keys of a run are no other's."""
    return f"{run_id}:{_digest(run_id, key)}"


def _digest(run_id: RunId, key: str) -> str:
    return hashlib.sha256(f"{run_id}\n{key}".encode()).hexdigest()
