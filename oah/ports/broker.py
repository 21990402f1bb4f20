"""What dispatch asks of the broker (Redis): hand out sessions, keep leases, wake workers.

The broker holds no truth. Every protocol call names the epoch the caller believes in; another one raises
``EpochMismatch`` and nothing is written. All calls are batched: one round trip a call, whatever the number of
items, answers in the order of the items. An adapter never repeats a call by itself. Connection trouble raises
``Unavailable``; growth refused over maxmemory raises ``Backpressure`` (``enqueue`` and ``claim`` only).
Times cross this port as durations (invariant I7).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

from oah.core.model.epoch import EpochView
from oah.core.model.ids import ClaimToken, EpochId, RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.core.model.session import HoldReason, Place
from oah.core.model.worker import WorkerReport


@dataclass(frozen=True, slots=True)
class Hear:
    """``enqueue``: an eligible (or delayed) run exists."""

    session_id: SessionId
    run_id: RunId
    lane: Lane
    workspace_id: WorkspaceId
    ready_class: ReadyClass
    due_in: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Ensure:
    """``ensure``: SQL says that this session has an eligible run. ``runs`` rewrites the hint list when given."""

    session_id: SessionId
    lane: Lane
    workspace_id: WorkspaceId
    ready_class: ReadyClass
    score: float | None = None
    """Where in the ready set; None: at the end. Rehydrate passes an order of age."""


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
    """``states`` in the order of the table; ``returned`` were owned, unlisted and older: ready again, counted."""

    states: tuple[Renewal, ...]
    returned: tuple[SessionId, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Freed:
    """Resulting place; None = ``other``: somebody else's token, nothing was done. ``owner`` as in Placed."""

    place: Place | None
    owner: WorkerId | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """``release`` with the token: back to ready at the old score, in the class given."""

    session_id: SessionId
    token: ClaimToken
    ready_class: ReadyClass


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


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """Ready sessions by lane and class, the age of the oldest, leases and entries waiting for a time."""

    ready: tuple[LaneDepth, ...]
    oldest_ready: timedelta | None
    leased: int
    due: int
    held: int


class Dispatch(Protocol):
    """The scripts of the protocol."""

    def enqueue(self, epoch: EpochId, hears: Sequence[Hear]) -> list[Placed]: ...
    def ensure(self, epoch: EpochId, sessions: Sequence[Ensure]) -> list[Placed]: ...
    def hold(self, epoch: EpochId, holds: Sequence[Hold]) -> list[Place]: ...
    def claim(self, epoch: EpochId, request: ClaimRequest) -> ClaimReply: ...
    def renew(
        self,
        epoch: EpochId,
        worker_id: WorkerId,
        table: Sequence[Held],
        *,
        lease: timedelta,
        counter: int,
        pending: Sequence[ClaimToken] = (),
    ) -> RenewReply:
        """Extend what the worker's own table lists. A session it owns in Redis, neither listed nor of a pending
        request, claimed under a lower ``counter``, goes back to ready and is reported."""
        ...

    def restore(self, epoch: EpochId, sessions: Sequence[Restore]) -> list[bool]: ...
    def free(self, epoch: EpochId, sessions: Sequence[Free]) -> list[Freed]: ...
    def release(self, epoch: EpochId, sessions: Sequence[Release]) -> list[Freed]: ...
    def expire(self, epoch: EpochId, *, limit: int) -> list[Expired]: ...
    def recover(self, epoch: EpochId, sessions: Sequence[Recover]) -> list[Freed]: ...
    def cancel(self, epoch: EpochId, sessions: Sequence[SessionId]) -> list[Place]: ...
    def undue(self, epoch: EpochId, runs: Sequence[RunId]) -> None:
        """Drop entries of ``due`` whose run SQL no longer defers (cancelled, promoted by somebody else)."""
        ...

    def tick(self, epoch: EpochId, *, limit: int) -> TickReply: ...
    def popped(self, epoch: EpochId, heads: Sequence[SessionId]) -> None:
        """A start took a run of each: pop one head of each session's hint list. May be folded into others."""
        ...

    def leases(self, epoch: EpochId, sessions: Sequence[SessionId]) -> list[LeaseView]:
        """The broker's view of the sessions given, in order; ``place`` idle when absent."""
        ...


class Epochs(Protocol):
    """The epoch key."""

    def view(self) -> EpochView: ...
    def mint(self, new: EpochId, *, seen: EpochId | None) -> bool:
        """Write a new epoch in state ``rebuilding`` over the one that was seen; False when it is another by now."""
        ...

    def open(self, epoch: EpochId) -> bool:
        """``rebuilding`` → ``open``, only under this id."""
        ...


class Signals(Protocol):
    """Waking workers. Tokens are hints: losing one costs time, never a run."""

    def wait(self, worker_id: WorkerId, lanes: Sequence[Lane], *, timeout: timedelta) -> WakeKind | None:
        """Block until a control entry (``look``) or, for the lanes given, a wake token comes; None on time-out.

        Uses a connection of its own, and may be called by one thread at a time."""
        ...

    def look(self, workers: Iterable[WorkerId]) -> None:
        """Push ``look`` on the control lists."""
        ...

    def wake(self, lanes: Iterable[Lane]) -> None:
        """Push one wake token per lane (bounded)."""
        ...

    def publish(self, hints: Sequence[tuple[SessionId, int]]) -> None:
        """Tell event tailers of (session, last event number). Best effort."""
        ...

    def hints(self, *, timeout: timedelta) -> list[tuple[SessionId, int]]:
        """Block for hints of other processes; empty on time-out. One thread at a time."""
        ...


class Registry(Protocol):
    """Who is alive, by their own report."""

    def report(self, worker: WorkerReport, *, ttl: timedelta) -> None: ...
    def workers(self) -> list[WorkerReport]: ...
    def forget(self, worker_id: WorkerId) -> None: ...
    def lead(self, holder: str, *, lease: timedelta) -> bool:
        """Take or keep the leader lease; True while ``holder`` has it."""
        ...

    def resign(self, holder: str) -> None: ...
    def leader(self) -> str | None: ...


class Broker(Dispatch, Epochs, Signals, Registry, Protocol):
    """Everything the broker offers; one object per process, safe to use from many threads."""

    def figures(self) -> QueueFigures: ...
    def now(self) -> float:
        """The broker's clock in seconds since the epoch; for comparing clocks, never for deciding (I7)."""
        ...

    def facts(self) -> dict[str, str]:
        """Version, eviction policy, persistence, memory: what ``oah doctor`` and ``/readyz`` look at."""
        ...

    def poison(self, *, limit: int = 100) -> list[tuple[str, bytes]]:
        """Values that could not be decoded, set aside with their key and bytes."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """How to connect: timeouts are explicit, the client library's own retries are off."""

    connect_timeout: timedelta = timedelta(seconds=2)
    answer_timeout: timedelta = timedelta(seconds=5)
    submit_timeout: timedelta = timedelta(milliseconds=50)
    extra: dict[str, str] = field(default_factory=dict)
