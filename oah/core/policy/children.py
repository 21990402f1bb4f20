"""What the agent of a run may start by itself: runs below its own, in sessions that it has opened.

Agents are not trusted. Whatever a child gets its parent's agent could have asked for already: the same agent and pool
unless the deployment names others, no secret and no repository that its own session has not, a class that comes after
people's. How many there are is bounded here; queues, rates and caps of the workspace bound them as they do all runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oah.core.model.home import Worktree
from oah.core.model.ids import RunId
from oah.core.model.lane import Lane
from oah.core.model.message import WakeMode
from oah.core.model.run import OnBusy, RunClass
from oah.core.model.session import EnvValue, Session
from oah.errors import Conflict, Forbidden, LimitReached, RequestError

ANY = "*"
DEEPEST = 64
"""No tree may be allowed to be deeper: above a run nobody looks further than this."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a tree grows that agents make. ``depth``: runs above the lowest; ``live``: children of one run that are
    queued or active at once; ``in_all``: children of one run, and sessions that it opens."""

    depth: int = 5
    live: int = 32
    in_all: int = 1_000


@dataclass(frozen=True, slots=True)
class Reach:
    """Agents and pools of children besides those of the parent's own session; ``*``: any."""

    agents: frozenset[str] = frozenset()
    pools: frozenset[str] = frozenset()

    def check(self, lane: Lane, own: Lane) -> None:
        """Raises Forbidden (``child_agent``, ``child_pool``)."""
        if lane.profile != own.profile and not self.agents & {lane.profile, ANY}:
            raise Forbidden(
                f"an agent of '{own.profile}' starts no '{lane.profile}'",
                code="child_agent",
                hint="OAH_CHILDREN__AGENTS of the API names the agents that it may start",
            )
        if lane.pool != own.pool and not self.pools & {lane.pool, ANY}:
            raise Forbidden(
                f"an agent of pool '{own.pool}' starts nothing in pool '{lane.pool}'",
                code="child_pool",
                hint="OAH_CHILDREN__POOLS of the API names the pools",
            )


@dataclass(frozen=True, slots=True)
class Family:
    """A run that is to have one child more. ``depth``: how many runs are above it."""

    depth: int
    live: int
    in_all: int


def refusal(family: Family, bounds: Bounds) -> RequestError | None:
    """Why it gets no further child; None: it does."""
    if family.depth + 1 > bounds.depth:
        return Conflict(
            f"there are {family.depth} runs above this one: its child would be too deep", code="tree_too_deep"
        )
    if family.in_all >= bounds.in_all:
        return Conflict(f"a run starts at most {bounds.in_all} others", code="too_many_children")
    if family.live >= bounds.live:
        return LimitReached(
            f"{bounds.live} children of this run are queued or active",
            code="too_many_live_children",
            hint="wait for some to end",
        )
    return None


def parent_of(asked: str | None, own: RunId) -> RunId:
    """The parent of what its agent starts is the run itself. Raises Forbidden (``not_its_child``)."""
    if asked is not None and asked != own:
        raise Forbidden(
            "the key of a run starts children of that run only", code="not_its_child", hint="leave parent_run_id out"
        )
    return own


def check_run(run_class: RunClass, on_busy: OnBusy) -> None:
    """Of a run that an agent starts. Raises Forbidden (``child_class``, ``child_steer``)."""
    if run_class is not RunClass.SUBAGENT:
        raise Forbidden(f"what an agent starts is of class {RunClass.SUBAGENT}", code="child_class")
    if on_busy is OnBusy.STEER:
        raise Forbidden("the key of a run says nothing into another's turn", code="child_steer", hint="enqueue it")


def may_enter(session: Session, own: Session, run_id: RunId) -> bool:
    """Whether the run's agent may give work to this session; what it may not see it is told nothing of.

    Raises Conflict (``own_session``): there a child would wait for the end of its parent, which waits for the child.
    """
    if session.id == own.id:
        raise Conflict(
            "a child in the session of its parent would wait for its parent's end",
            code="own_session",
            hint="open a session for it",
        )
    return session.parent_run_id == run_id


def check_surroundings(
    env: Mapping[str, EnvValue], worktree: Worktree | None, own: Session, *, wake: WakeMode = WakeMode.LAZY
) -> None:
    """Of a session that an agent opens: nothing comes in that its own has not, and messages start nothing there: what
    they start is nobody's child. Raises Forbidden (``child_secret``, ``child_worktree``, ``child_wake``)."""
    if wake is not WakeMode.LAZY:
        raise Forbidden(
            "messages start no agent in a session that an agent opens", code="child_wake", hint="submit runs"
        )
    has = {value["secret"] for value in own.env.values() if not isinstance(value, str)}
    for value in env.values():
        if not isinstance(value, str) and value["secret"] not in has:
            raise Forbidden(f"its own session was not given the secret {value['secret']}", code="child_secret")
    if worktree is not None and not has_repository(worktree, own):
        raise Forbidden("its own session is no worktree of that repository", code="child_worktree")


def has_repository(worktree: Worktree, own: Session) -> bool:
    """Whether its own session is a worktree of that repository: else it gets none, not even its workspace's."""
    return own.worktree is not None and worktree.repo == own.worktree.repo
