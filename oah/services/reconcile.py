"""Reconcile: whatever happened, every session with queued runs gets its place again within one lap (I11).

A lap is a walk over the sessions with queued runs in id order, a sixth of them a pass. What is found without its place
is looked at again two seconds later: only the same run, misplaced twice, is a repair; the rest were races. Sessions
that no enqueue of this epoch is known for come first, at full speed, and count as nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.ids import EpochId, RunId, SessionId
from oah.core.policy import placement
from oah.core.policy.placement import InPlace, PutHeld, PutLeased, PutReady
from oah.ports.broker import Broker, Hear, LeaseView
from oah.ports.clock import Clock
from oah.ports.store import QueuedSession, Store
from oah.ports.telemetry import Telemetry
from oah.services.decisions import Decisions
from oah.services.place import Places

_COUNTED: dict[type[placement.Decision], str] = {PutReady: "ready", PutHeld: "held", PutLeased: "restored"}


@dataclass(frozen=True, slots=True)
class Doubt:
    """A session that had not its place on the first look."""

    run_id: RunId | None
    decision: type[placement.Decision]
    since: float


class Reconcile:
    """``look`` every few seconds, ``look_again`` every two. One thread at a time. Raises Unavailable, EpochMismatch."""

    def __init__(
        self,
        store: Store,
        broker: Broker,
        places: Places,
        clock: Clock,
        telemetry: Telemetry,
        decisions: Decisions,
        rules: placement.Rules,
        *,
        second_look: timedelta = timedelta(seconds=2),
        page: int = 1_000,
        parts: int = 6,
    ) -> None:
        self._store = store
        self._broker = broker
        self._places = places
        self._clock = clock
        self._telemetry = telemetry
        self._decisions = decisions
        self._rules = rules
        self._second_look = second_look.total_seconds()
        self._page = page
        self._parts = parts
        self._share = page
        self._after: SessionId | None = None
        self._deferred_after: RunId | None = None
        self._doubts: dict[SessionId, Doubt] = {}

    def look(self, epoch: EpochId, going_on: Callable[[], bool]) -> int:
        """The next part of the lap; how many sessions were looked at."""
        looked = self._unheard(epoch, going_on)
        if self._after is None:
            counts = self._store.counts(None, lease=self._rules.lease)
            self._share = max(self._page, -(-(counts.queued_eligible + counts.deferred) // self._parts))
        seen = 0
        while seen < self._share and going_on():
            sessions = self._store.queued_sessions(epoch, after=self._after, limit=self._page)
            self._first_look(epoch, sessions)
            seen += len(sessions)
            self._after = sessions[-1].session_id if len(sessions) == self._page else None
            if self._after is None:
                break
        self._hear_deferred(epoch)
        return looked + seen

    def look_again(self, epoch: EpochId) -> int:
        """Repair what has been without its place for two seconds and still is; how many."""
        now = self._clock.monotonic()
        ripe = {s: doubt for s, doubt in self._doubts.items() if now - doubt.since >= self._second_look}
        if not ripe:
            return 0
        sessions = self._store.queued_sessions_of(list(ripe), epoch)
        misplaced = self._misplaced(epoch, sessions)
        same = [
            (session, decision)
            for session, decision in misplaced
            if ripe[session.session_id].run_id == session.first_run_id
        ]
        self._repair(epoch, same)
        for session_id in ripe:
            del self._doubts[session_id]
        repaired = {session.session_id for session, _ in same}
        self._doubt([(s, d) for s, d in misplaced if s.session_id not in repaired])
        return len(same)

    def _unheard(self, epoch: EpochId, going_on: Callable[[], bool]) -> int:
        count = 0
        after: SessionId | None = None
        while going_on():
            sessions = self._store.queued_sessions(epoch, after=after, limit=self._page, wrong_epoch_only=True)
            self._places.put_unheard(epoch, [each for each in sessions if each.owner is None])
            count += len(sessions)
            if len(sessions) < self._page:
                break
            after = sessions[-1].session_id
        return count

    def _first_look(self, epoch: EpochId, sessions: Sequence[QueuedSession]) -> None:
        misplaced = self._misplaced(epoch, sessions)
        self._doubt(misplaced)
        doubtful = {session.session_id for session, _ in misplaced}
        # The others are told once more: a leased one has heard of it, the owner of a parked one is called, a hold has
        # its end. What only a stale owner has is recovery's.
        lease = self._rules.lease
        self._places.put(
            epoch,
            [
                each
                for each in sessions
                if each.session_id not in doubtful and (each.owner is None or each.owner.age < lease)
            ],
        )

    def _doubt(self, misplaced: Sequence[tuple[QueuedSession, placement.Decision]]) -> None:
        now = self._clock.monotonic()
        for session, decision in misplaced:
            self._doubts.setdefault(session.session_id, Doubt(session.first_run_id, type(decision), now))

    def _misplaced(
        self, epoch: EpochId, sessions: Sequence[QueuedSession]
    ) -> list[tuple[QueuedSession, placement.Decision]]:
        if not sessions:
            return []
        leases = self._broker.leases(epoch, [each.session_id for each in sessions])
        judged = [
            (session, placement.judge(_view(session, lease), self._rules))
            for session, lease in zip(sessions, leases, strict=True)
        ]
        return [(session, decision) for session, decision in judged if not isinstance(decision, InPlace)]

    def _repair(self, epoch: EpochId, misplaced: Sequence[tuple[QueuedSession, placement.Decision]]) -> None:
        lives = {s.session_id: d.life for s, d in misplaced if isinstance(d, PutLeased)}
        rows = [s.owner for s, d in misplaced if isinstance(d, PutLeased) and s.owner is not None]
        self._places.restore(epoch, rows, lives)
        self._places.put(epoch, [s for s, d in misplaced if not isinstance(d, PutLeased)])
        for session, decision in misplaced:
            repair = _COUNTED[type(decision)]
            self._telemetry.count("oah_reconcile_repairs_total", repair=repair)
            self._decisions.note(
                "repair", session.session_id, repair, "without its place on two looks", run_id=session.first_run_id
            )

    def _hear_deferred(self, epoch: EpochId) -> None:
        """Entries of ``due`` are idempotent: an entry that is there keeps its moment, a lost one comes back."""
        runs = self._store.deferred(after=self._deferred_after, limit=self._share)
        self._deferred_after = runs[-1].run_id if len(runs) == self._share else None
        self._places.hear(
            epoch,
            [Hear(r.hear_session, r.run_id, r.lane, r.workspace_id, r.ready_class, due_in=r.due_in) for r in runs],
        )


def _view(session: QueuedSession, lease: LeaseView) -> placement.View:
    return placement.View(
        eligible=session.ready_class,
        holds=session.holds,
        mark_age=session.owner.age if session.owner is not None else None,
        place=lease.place,
    )
