"""Places: tell the broker where sessions belong, as SQL says. Shared by promotion, rehydrate, reconcile and recovery.

Everything here is repeatable, and each write that rests on a look into SQL is followed by a second look where the
first may have become stale meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from oah.core.model.ids import ClaimToken, EpochId, RunId, SessionId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.core.model.session import Place
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.ports.broker import Broker, Ensure, Hear, Hold, Placed, Recover, Restore, Target
from oah.ports.store import OwnerRow, QueuedSession, Store

_NO_LANE = Lane("none", "none")
"""A session that becomes idle needs no lane; one that turns out to have been called keeps its own."""

HEARD_AT_ONCE = 100
"""Measured: the time of one statement that marks runs grows with the square of their number."""

NO_TOKEN = ClaimToken("")
"""Of a deadline that no session confirms."""


@dataclass(frozen=True, slots=True)
class DeadLease:
    """A lease of which SQL says that nobody owns it."""

    session_id: SessionId
    token: ClaimToken


@dataclass(frozen=True, slots=True)
class Places:
    """Raises Unavailable and EpochMismatch from everything; nothing is half done that a repetition would not finish."""

    store: Store
    broker: Broker

    def put(
        self, epoch: EpochId, sessions: Sequence[QueuedSession], scores: Mapping[SessionId, float] | None = None
    ) -> None:
        """Held sessions are held, those with an eligible run ensured, and parked owners told to look."""
        holds = [Hold(s.session_id, s.holds, s.until_in) for s in sessions if s.holds]
        if holds:
            self.broker.hold(epoch, holds)
        ensures = [
            Ensure(
                s.session_id,
                s.lane,
                s.workspace_id,
                s.ready_class,
                (scores or {}).get(s.session_id),
                priority=s.priority,
            )
            for s in sessions
            if s.ready_class is not None and not s.holds
        ]
        if ensures:
            self.call(self.broker.ensure(epoch, ensures))

    def put_unheard(
        self, epoch: EpochId, sessions: Sequence[QueuedSession], scores: Mapping[SessionId, float] | None = None
    ) -> None:
        """``put``, and their first eligible runs count as heard: the relay need not repeat them."""
        self.put(epoch, sessions, scores)
        self.heard(epoch, [each.first_run_id for each in sessions if each.first_run_id is not None and not each.holds])

    def heard(self, epoch: EpochId, runs: Sequence[RunId]) -> None:
        """Mark them, a statement per ``HEARD_AT_ONCE``."""
        for begin in range(0, len(runs), HEARD_AT_ONCE):
            self.store.heard(runs[begin : begin + HEARD_AT_ONCE], epoch)

    def hear(self, epoch: EpochId, hears: Sequence[Hear]) -> None:
        """``enqueue``, and the owners of parked sessions told. Raises Backpressure too."""
        if hears:
            self.call(self.broker.enqueue(epoch, hears))

    def call(self, placed: Iterable[Placed]) -> None:
        """Owners of parked sessions that were called look into SQL."""
        owners = {each.owner for each in placed if each.owner is not None}
        if owners:
            self.broker.look(owners)

    def restore(
        self,
        epoch: EpochId,
        rows: Sequence[OwnerRow],
        lives: Mapping[SessionId, timedelta],
        over: Mapping[SessionId, ClaimToken] | None = None,
    ) -> list[bool]:
        """Lease sessions again for the owners that SQL named. A row that went while we wrote is taken back."""
        if not rows:
            return []
        done = self.broker.restore(
            epoch,
            [
                Restore(
                    session_id=row.session_id,
                    worker_id=row.worker_id,
                    token=row.token,
                    parked=row.parked,
                    lane=row.lane,
                    workspace_id=row.workspace_id,
                    ready_class=row.ready_class or ReadyClass.INTERACTIVE,
                    life=lives[row.session_id],
                    over=(over or {}).get(row.session_id),
                )
                for row in rows
            ],
        )
        still = {row.session_id: row.token for row in self.store.owners_of([row.session_id for row in rows])}
        gone = [DeadLease(row.session_id, row.token) for row in rows if still.get(row.session_id) != row.token]
        self.hand_back(epoch, gone)
        return done

    def hand_back(self, epoch: EpochId, leases: Sequence[DeadLease]) -> int:
        """End leases that nobody owns: ready at the old score, held or idle, as SQL says. How many it found."""
        if not leases:
            return 0
        tokens = {lease.session_id: lease.token for lease in leases}
        queued = {s.session_id: s for s in self.store.queued_sessions_of(list(tokens), epoch)}
        freed = self.broker.recover(
            epoch, [_recover(session_id, token, queued.get(session_id)) for session_id, token in tokens.items()]
        )
        # A run may have been accepted after our look, and heard of before the lease ended.
        idle = [each for each, result in zip(tokens, freed, strict=True) if result.place is Place.IDLE]
        if idle:
            self.put(epoch, self.store.queued_sessions_of(idle, epoch))
        return sum(each.place is not None for each in freed)


def awake(session: QueuedSession) -> QueuedSession:
    """A session whose hold ended with nothing eligible is ready all the same: the claim finds nothing and frees it.

    In the broker it would stay held otherwise, and nothing that is heard of later would change that.
    """
    if session.holds or session.ready_class is not None:
        return session
    return replace(session, ready_class=ReadyClass.BACKGROUND)


def _recover(session_id: SessionId, token: ClaimToken, queued: QueuedSession | None) -> Recover:
    if queued is None:
        return Recover(session_id, token, Target.IDLE, _NO_LANE, DEFAULT_WORKSPACE)
    lane, workspace_id = queued.lane, queued.workspace_id
    if queued.holds:
        return Recover(
            session_id, token, Target.HELD, lane, workspace_id, until_in=queued.until_in, reasons=queued.holds
        )
    if queued.ready_class is None:
        return Recover(session_id, token, Target.IDLE, lane, workspace_id)
    return Recover(session_id, token, Target.READY, lane, workspace_id, queued.ready_class, priority=queued.priority)
