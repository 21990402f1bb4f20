"""What the calls of the broker take and answer. Times are durations (invariant I7)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from oah.core.model.group import Group
from oah.core.model.ids import ClaimToken, RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.core.model.session import HoldReason, Place
from oah.errors import OahError


@dataclass(frozen=True, slots=True)
class Hear:
    """``enqueue``: an eligible (or delayed) run exists."""

    session_id: SessionId
    run_id: RunId
    lane: Lane
    workspace_id: WorkspaceId
    ready_class: ReadyClass
    due_in: timedelta | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Ensure:
    """``ensure``: SQL says that this session has an eligible run. ``runs`` rewrites the hint list when given."""

    session_id: SessionId
    lane: Lane
    workspace_id: WorkspaceId
    ready_class: ReadyClass
    score: float | None = None
    """Where in the ready set; None: at the end. Rehydrate passes an order of age."""
    runs: tuple[RunId, ...] | None = None
    """Rewrites the session's hint list when given (reconcile)."""
    promoted: tuple[RunId, ...] = ()
    """Runs that SQL no longer defers: their entries of ``due`` go. An ended hold goes by itself."""
    priority: int = 0
    """Of its first eligible run: higher ones come first among those of their class and workspace."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a session stands after the call; ``owner`` when it is parked and was called: push ``look`` to it."""

    place: Place
    owner: WorkerId | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """``hold``: idle or ready → held. ``until_in`` None: no end by itself."""

    session_id: SessionId
    reasons: tuple[HoldReason, ...]
    until_in: timedelta | None = None


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """``claim``: up to ``want`` sessions of the given lanes and classes, looked through in the order given."""

    worker_id: WorkerId
    request: ClaimToken
    """The token of every session newly taken; repeating a request repeats its answer."""
    lease: timedelta
    counter: int
    """Number of this claim in the worker's table: renewals with a lower counter do not touch its sessions."""
    want: int
    order: tuple[tuple[Lane, ReadyClass], ...]
    suspect_place: bool = True
    """Whether the worker has a place for a suspect (it holds at most one)."""
    resumes_only: bool = False
    """Of the worker's own parked sessions only those that were called in class ``resume``."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """One session of a claim. A called parked session keeps its own token (``parked`` True)."""

    session_id: SessionId
    token: ClaimToken
    parked: bool
    ready_class: ReadyClass


@dataclass(frozen=True, slots=True)
class ClaimReply:
    """Answer of a claim. Raises ``EpochMismatch`` or ``Rebuilding`` instead where those apply."""

    sessions: tuple[Claimed, ...]
    more_left: bool
    next_due_in: timedelta | None
    ticked_ago: timedelta | None
    """Age of the last ``tick`` by the broker's clock; an ear runs tick itself when it is older than 2 s."""


@dataclass(frozen=True, slots=True)
class Held:
    """One entry of a worker's own table."""

    session_id: SessionId
    token: ClaimToken


class Renewal(StrEnum):
    """What a renewal says of one listed session."""

    EXTENDED = "extended"
    EXPIRED = "expired"
    """The lease had passed: not extended; neither a confirmation nor a loss."""
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class RenewReply:
    """``states`` in the order of the table; ``returned`` were owned, unlisted and older: ready again, counted.

    ``strangers`` are parked sessions of the same kind. They stay: the owner either restores them or says with the
    next renewal (``agentless``) that it has no agent for them.
    """

    states: tuple[Renewal, ...]
    returned: tuple[SessionId, ...] = ()
    strangers: tuple[SessionId, ...] = ()


@dataclass(frozen=True, slots=True)
class Restore:
    """``restore``: leased or parked again for the owner that SQL names."""

    session_id: SessionId
    worker_id: WorkerId
    token: ClaimToken
    parked: bool
    lane: Lane
    workspace_id: WorkspaceId
    ready_class: ReadyClass
    life: timedelta
    over: ClaimToken | None = None
    """A foreign token that may be replaced (the caller's own claim that met an active run)."""


class Target(StrEnum):
    """Where ``free`` and ``recover`` may put a session."""

    READY = "ready"
    PARKED = "parked"
    IDLE = "idle"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Free:
    """``free`` with the token: the run is settled; ``heard`` is honoured."""

    session_id: SessionId
    token: ClaimToken
    target: Target
    ready_class: ReadyClass | None = None
    """For READY: the highest waiting class (``suspect`` if the first eligible run is one)."""
    until_in: timedelta | None = None
    reasons: tuple[HoldReason, ...] = ()
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Freed:
    """Resulting place; None = ``other``: somebody else's token, nothing was done. ``owner`` as in Placed.

    A session that nobody holds (the first answer of a repeated call was lost) answers where it stands.
    """

    place: Place | None
    owner: WorkerId | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """Answer of ``turn``: what became of the sessions freed, and the claim's answer or why there is none."""

    freed: tuple[Freed, ...]
    claim: ClaimReply | None
    refused: OahError | None = None
    """``Rebuilding`` or ``Backpressure``: the frees were done, nothing was claimed."""


@dataclass(frozen=True, slots=True)
class Release:
    """``release`` with the token: back to ready at the old score, in the class given."""

    session_id: SessionId
    token: ClaimToken
    ready_class: ReadyClass


@dataclass(frozen=True, slots=True)
class Bind:
    """``bind`` with the token: back to ready at the old score, for workers of ``host`` alone. ``wait``: after that
    ``tick`` lists it."""

    session_id: SessionId
    token: ClaimToken
    ready_class: ReadyClass
    host: str
    wait: timedelta


@dataclass(frozen=True, slots=True)
class Unbind:
    """``unbind``: ready for every worker of its lane; with ``wait``: for its host's still, and listed again then."""

    session_id: SessionId
    wait: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """A ready session whose host is to be asked about; ``lane.host`` names it."""

    session_id: SessionId
    lane: Lane


@dataclass(frozen=True, slots=True)
class Expired:
    """A lease that has passed, by the broker's clock."""

    session_id: SessionId
    worker_id: WorkerId | None
    token: ClaimToken | None
    parked: bool
    passed: timedelta


@dataclass(frozen=True, slots=True)
class Recover:
    """``recover`` with the dead owner's token: → ready at the old score, held, or idle.

    On an idle session (after a flush) as asked too, which is why lane and workspace are given.
    """

    session_id: SessionId
    token: ClaimToken
    target: Target
    lane: Lane
    workspace_id: WorkspaceId
    ready_class: ReadyClass | None = None
    until_in: timedelta | None = None
    reasons: tuple[HoldReason, ...] = ()
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Due:
    """An entry of ``due``: a delayed run whose time has come. It stays listed until ``ensure`` or ``undue``."""

    run_id: RunId
    session_id: SessionId


@dataclass(frozen=True, slots=True)
class TickReply:
    """What time has brought; promotion clears it in SQL and then calls ``ensure``."""

    due: tuple[Due, ...]
    holds_ended: tuple[SessionId, ...]
    next_due_in: timedelta | None
    oldest_ready: timedelta | None
    bound: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkspaceLimit:
    """Weight in the ring and cap on sessions that hold a slot (None: no cap, 0: paused), as SQL has them."""

    workspace_id: WorkspaceId
    weight: int = 1
    max_active: int | None = None


@dataclass(frozen=True, slots=True)
class GroupCap:
    """How many sessions of a group may hold a slot; 0: it is paused. A workspace's is part of its limit."""

    group: Group
    most: int


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A session as the broker sees it (repair, doctor, inspect)."""

    session_id: SessionId
    place: Place
    worker_id: WorkerId | None = None
    token: ClaimToken | None = None
    life: timedelta | None = None
    """Remaining life of the lease; negative when it has passed."""
    ready_class: ReadyClass | None = None


class WakeKind(StrEnum):
    """Why ``wait`` returned."""

    WORK = "work"
    LOOK = "look"


@dataclass(frozen=True, slots=True)
class LaneDepth:
    """Ready sessions of one lane and class."""

    lane: Lane
    ready_class: ReadyClass
    sessions: int
    capped: int = 0
    """Of these, those that a cap or a pause keeps out now: more slots would not help them."""
    oldest: timedelta | None = None
    """Age of the oldest that nothing keeps out."""


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """Ready sessions by lane and class, the age of the oldest, leases and entries waiting for a time. Its cost is that
    of the lanes and of the workspaces that wait in them, whatever the backlog."""

    ready: tuple[LaneDepth, ...]
    oldest_ready: timedelta | None
    leased: int
    due: int
    held: int
