"""Start: SQL picks the run of each claimed session, or says why there is none.

The answers that are no start are put right in Redis at once: an owner that SQL names gets its lease back, a held
session is held, what is paused is ready again and Redis told of the pause, a suspect without a place waits in its
class, one whose home is elsewhere waits for that host, a session with nothing eligible becomes idle (unless a run was
heard of meanwhile). If Redis does not answer, the sessions stay leased and unlisted: the next renewal returns them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.ids import ClaimToken, SessionId, WorkerId
from oah.core.model.run import ReadyClass
from oah.errors import LeaseError, Unavailable
from oah.ports.broker import Broker, Claimed, Free, Release, Restore, Target
from oah.ports.epochs import EpochSource
from oah.ports.pauses import IsPaused
from oah.ports.store import (
    AlreadyActive,
    IsElsewhere,
    IsHeld,
    IsSuspect,
    NothingEligible,
    StartClaim,
    Started,
    StartReply,
    Store,
)
from oah.ports.telemetry import Telemetry
from oah.services import caps
from oah.services.host_bound import HostBound

_ANSWERS: dict[type, str] = {
    Started: "started",
    AlreadyActive: "active",
    IsHeld: "held",
    IsPaused: "paused",
    IsSuspect: "suspect",
    IsElsewhere: "elsewhere",
    NothingEligible: "none",
}


def _back(claim: Claimed) -> Free | Release:
    """To where it was: a parked one is called again."""
    if claim.parked:
        return Free(claim.session_id, claim.token, Target.PARKED, claim.ready_class)
    return Release(claim.session_id, claim.token, claim.ready_class)


def _move(claim: Claimed, reply: StartReply, *, in_doubt: bool) -> Free | Release | None:
    """Where a claimed session goes that SQL did not start; None: it started, or its owner gets it back."""
    session_id, token = claim.session_id, claim.token
    match reply:
        case IsHeld(reasons=reasons, until_in=until_in):
            target = Target.PARKED if claim.parked else Target.HELD  # its agent waits for the end of the hold
            return Free(session_id, token, target, None, until_in, reasons)
        case IsPaused():
            return _back(claim)
        case IsSuspect():
            return Release(session_id, token, ReadyClass.SUSPECT)
        case NothingEligible():
            if in_doubt:  # never started, so its run still waits
                return _back(claim)
            return Free(session_id, token, Target.PARKED if claim.parked else Target.IDLE)  # its agent lives on
        case Started() | AlreadyActive() | IsElsewhere():
            return None


@dataclass(frozen=True, slots=True)
class StartRuns:
    """One batch: ``choose`` commits in SQL, ``place`` tells Redis about the sessions that were not started."""

    store: Store
    broker: Broker
    epochs: EpochSource
    telemetry: Telemetry
    lease: timedelta
    bound: HostBound

    def choose(self, worker_id: WorkerId, claims: Sequence[StartClaim]) -> list[StartReply]:
        """One transaction. Raises InDoubt (ask ``outcome``) and Unavailable (release the claims)."""
        replies = self.store.start(worker_id, self.epochs.current(), claims)
        self._count(replies)
        return replies

    def outcome(self, worker_id: WorkerId, claims: Sequence[StartClaim]) -> list[StartReply]:
        """What an ``InDoubt`` start did, read under the lock. Raises Unavailable: ask again, release nothing."""
        self.telemetry.count("oah_starts_total", len(claims), answer="in_doubt")
        return self.store.start_outcome(worker_id, claims)

    def place(self, claimed: Sequence[Claimed], replies: Sequence[StartReply], *, in_doubt: bool = False) -> bool:
        """Put right in Redis what was not started. False: Redis did not answer."""
        moves = [_move(c, r, in_doubt=in_doubt) for c, r in zip(claimed, replies, strict=True)]
        frees = [move for move in moves if isinstance(move, Free)]
        releases = [move for move in moves if isinstance(move, Release)]
        active = [
            (c.session_id, c.token) for c, r in zip(claimed, replies, strict=True) if isinstance(r, AlreadyActive)
        ]
        try:
            self._restore(active)
            epoch = self.epochs.current()
            if any(isinstance(reply, IsPaused) for reply in replies):  # else it would be claimed again at once
                caps.tell(self.store, self.broker, epoch)
            self.bound.hand_over(
                epoch, [(c, r.lane) for c, r in zip(claimed, replies, strict=True) if isinstance(r, IsElsewhere)]
            )
            if frees:
                self.broker.free(epoch, frees)
            if releases:
                self.broker.release(epoch, releases)
        except (Unavailable, LeaseError):
            self.telemetry.count("oah_redis_errors_total", kind="other")
            return False
        return True

    def give_back(self, claimed: Sequence[Claimed]) -> bool:
        """Release claims that will not be started (too late, draining, SQL away). False: Redis did not answer.

        A parked one stays parked, and called: its run still waits.
        """
        releases = [Release(c.session_id, c.token, c.ready_class) for c in claimed if not c.parked]
        parked = [Free(c.session_id, c.token, Target.PARKED, c.ready_class) for c in claimed if c.parked]
        try:
            epoch = self.epochs.current()
            if releases:
                self.broker.release(epoch, releases)
            if parked:
                self.broker.free(epoch, parked)
        except (Unavailable, LeaseError):
            self.telemetry.count("oah_redis_errors_total", kind="other")
            return False
        return True

    def _restore(self, claims: Sequence[tuple[SessionId, ClaimToken]]) -> None:
        if not claims:
            return
        over = dict(claims)
        owners = {row.session_id: row for row in self.store.owners_of(list(over))}
        restores = [
            Restore(
                session_id=row.session_id,
                worker_id=row.worker_id,
                token=row.token,
                parked=row.parked,
                lane=row.lane,
                workspace_id=row.workspace_id,
                ready_class=row.ready_class or ReadyClass.INTERACTIVE,
                life=max(self.lease - row.age, timedelta(0)),
                over=over[row.session_id],
            )
            for row in owners.values()
        ]
        epoch = self.epochs.current()
        if restores:
            self.broker.restore(epoch, restores)
        # The owner settled between the start and this look: hand the session back, a run may wait in it.
        gone = [Release(s, t, ReadyClass.INTERACTIVE) for s, t in claims if s not in owners]
        if gone:
            self.broker.release(epoch, gone)

    def _count(self, replies: Sequence[StartReply]) -> None:
        for reply in replies:
            self.telemetry.count("oah_starts_total", answer=_ANSWERS[type(reply)])
