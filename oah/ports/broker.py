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
from typing import Protocol

from oah.core.model.epoch import EpochView
from oah.core.model.group import Group
from oah.core.model.ids import ClaimToken, EpochId, MailboxId, RunId, SessionId, WorkerId
from oah.core.model.lane import Lane
from oah.core.model.session import Place
from oah.core.model.worker import WorkerReport
from oah.ports.dispatch import (
    Bind,
    Bound,
    Claimed,
    ClaimReply,
    ClaimRequest,
    Due,
    Ensure,
    Expired,
    Free,
    Freed,
    GroupCap,
    Hear,
    Held,
    Hold,
    LaneDepth,
    LeaseView,
    Placed,
    QueueFigures,
    Recover,
    Release,
    Renewal,
    RenewReply,
    Restore,
    Target,
    TickReply,
    Turn,
    Unbind,
    WakeKind,
    WorkspaceLimit,
)
from oah.ports.ready import ReadySets

__all__ = [
    "Broker",
    "BrokerOptions",
    "Dispatch",
    "Epochs",
    "Registry",
    "Signals",
    "Bind",
    "Bound",
    "ClaimReply",
    "ClaimRequest",
    "Claimed",
    "Due",
    "Ensure",
    "Expired",
    "Free",
    "Freed",
    "GroupCap",
    "Hear",
    "Held",
    "Hold",
    "LaneDepth",
    "LeaseView",
    "Placed",
    "PoisonValue",
    "QueueFigures",
    "Recover",
    "Release",
    "RenewReply",
    "Renewal",
    "Restore",
    "Target",
    "TickReply",
    "Turn",
    "Unbind",
    "WakeKind",
    "WorkspaceLimit",
]


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """How to connect: timeouts are explicit, the client library's own retries are off."""

    connect_timeout: timedelta = timedelta(seconds=2)
    answer_timeout: timedelta = timedelta(seconds=5)
    submit_timeout: timedelta = timedelta(milliseconds=50)
    longest_block: timedelta = timedelta(seconds=5)
    """One blocking read; longer waits are several, so that a peer that has fallen silent is noticed."""
    extra: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonValue:
    """A value that could not be read. ``data``: the first MiB of it; ``dumped``: it was no string, and this is what
    DUMP says. ``number``, ``turn`` and ``shared`` name its place, and until when it was its."""

    key: str
    """Where it lay."""
    data: bytes
    size: int
    dumped: bool
    place: str
    number: int
    turn: int
    shared: bool

    @property
    def complete(self) -> bool:
        """Whether ``data`` is all of it."""
        return len(self.data) == self.size


class Dispatch(Protocol):
    """The scripts of the protocol."""

    def enqueue(self, epoch: EpochId, hears: Sequence[Hear], *, quick: bool = False) -> list[Placed]:
        """``quick``: a user waits for the answer; give up after ``submit_timeout`` (the relay does the rest)."""
        ...

    def ensure(self, epoch: EpochId, sessions: Sequence[Ensure]) -> list[Placed]: ...
    def hold(self, epoch: EpochId, holds: Sequence[Hold]) -> list[Place]: ...
    def claim(self, epoch: EpochId, request: ClaimRequest) -> ClaimReply: ...
    def turn(
        self,
        epoch: EpochId,
        frees: Sequence[Free],
        request: ClaimRequest,
        *,
        heads: Sequence[SessionId] = (),
    ) -> Turn:
        """``popped`` (for ``heads``), ``free`` and ``claim`` in one round trip, in this order."""
        ...

    def renew(
        self,
        epoch: EpochId,
        worker_id: WorkerId,
        table: Sequence[Held],
        *,
        lease: timedelta,
        counter: int,
        pending: Sequence[ClaimToken] = (),
        agentless: Sequence[SessionId] = (),
    ) -> RenewReply:
        """Extend what the worker's own table lists. A session it owns in Redis, neither listed nor of a pending
        request, claimed under a lower ``counter``, goes back to ready and is reported."""
        ...

    def restore(self, epoch: EpochId, sessions: Sequence[Restore]) -> list[bool]: ...
    def free(self, epoch: EpochId, sessions: Sequence[Free]) -> list[Freed]: ...
    def release(self, epoch: EpochId, sessions: Sequence[Release]) -> list[Freed]: ...
    def bind(self, epoch: EpochId, sessions: Sequence[Bind]) -> list[Freed]: ...
    def unbind(self, epoch: EpochId, sessions: Sequence[Unbind]) -> list[Place]: ...
    def expire(self, epoch: EpochId, *, limit: int, lease: timedelta = timedelta(0)) -> list[Expired]:
        """Leases that have passed. ``lease``: what anybody is given at most; leases that end later than two of them
        were written under a clock that has jumped back since, and end in one. 0: they are let be."""
        ...

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

    def limits(self, epoch: EpochId, workspaces: Sequence[WorkspaceLimit]) -> None:
        """Weights and caps of workspaces (set at start, on change, and by reconcile)."""
        ...

    def caps(self, epoch: EpochId, caps: Sequence[GroupCap]) -> None:
        """All caps and pauses of profiles, of pools and of all together; what is not given has none any more."""
        ...

    def active(self, groups: Sequence[Group]) -> list[list[SessionId]]:
        """The sessions that count against the caps of these (reconcile), in order."""
        ...

    def drop_active(self, epoch: EpochId, group: Group, sessions: Sequence[SessionId]) -> int:
        """Reconcile: these run nowhere in SQL. Those that nobody leases here either stop counting; how many did."""
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

    def look(self, workers: Iterable[WorkerId], *, quick: bool = False) -> None:
        """Push ``look`` on the control lists. ``quick``: a user waits; give up after ``submit_timeout``."""
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

    def publish_mail(self, hints: Sequence[tuple[MailboxId, int]]) -> None:
        """Tell readers of (mailbox, last number); see ``runtime/mail_watch.py`` for 0 and less. Best effort."""
        ...

    def mail_hints(self, *, timeout: timedelta) -> list[tuple[MailboxId, int]]:
        """Block for those of other processes; empty on time-out. One thread at a time."""
        ...


class Registry(Protocol):
    """Who is alive, by their own report."""

    def report(self, worker: WorkerReport, *, ttl: timedelta, serves: Sequence[Lane] = ()) -> None:
        """``serves``: lanes of its host that it takes sessions of now."""
        ...

    def served(self, lanes: Sequence[Lane]) -> list[timedelta | None]:
        """How long ago a worker last said that it serves these; None: nobody has for days."""
        ...

    def workers(self) -> list[WorkerReport]: ...
    def departed(self) -> list[WorkerId]:
        """Incarnations whose report has expired and that nobody has forgotten yet."""
        ...

    def forget(self, worker_id: WorkerId) -> None:
        """Remove the report and the lists of an incarnation that is gone. What it still leases stays for recovery."""
        ...

    def lead(self, holder: str, *, lease: timedelta) -> bool:
        """Take or keep the leader lease; True while ``holder`` has it."""
        ...

    def resign(self, holder: str) -> None: ...
    def leader(self) -> str | None: ...


class Broker(Dispatch, Epochs, Signals, Registry, ReadySets, Protocol):
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

    def set_aside_values(self) -> list[PoisonValue]:
        """The same, to be carried away; one without data has expired."""
        ...

    def drop_set_aside(self, values: Sequence[PoisonValue]) -> int:
        """They are kept elsewhere now; how many were still there. The rest of one that is not ``complete`` stays
        under its ``place`` until it expires, unlisted."""
        ...

    def close(self) -> None: ...
