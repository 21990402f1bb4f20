"""What was claimed becomes assignments, or goes back: the starts of a claim, in one batch.

A start in doubt is looked up until an answer came, and nothing is released meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from oah.core.model.ids import SessionId
from oah.core.model.run import ReadyClass
from oah.errors import EpochMismatch, InDoubt, Unavailable
from oah.ports.broker import Claimed, Free, Target
from oah.ports.store import StartClaim, Started, StartReply
from oah.services.host_bound import HostBound
from oah.services.start import StartRuns
from oah.worker.context import WorkerContext
from oah.worker.recent import RecentWaits
from oah.worker.resuming import Resuming
from oah.worker.slots import Slots
from oah.worker.table import Table
from oah.worker.waiting import Waiting
from oah.worker.work import Assignment

log = logging.getLogger(__name__)


class Starting:
    """Called in the claimer's thread. ``stopped``: nothing is started any more."""

    def __init__(
        self,
        context: WorkerContext,
        table: Table,
        slots: Slots,
        waiting: Waiting,
        *,
        stopped: Callable[[], bool],
    ) -> None:
        self._context = context
        self._table = table
        self._slots = slots
        self._stopped = stopped
        bound, lease = HostBound(context.store, context.broker, context.rules.home_wait), context.rules.lease
        self._start = StartRuns(context.store, context.broker, context.epochs, context.telemetry, lease, bound)
        self._resuming = Resuming(context, table, slots, waiting)
        self._store_down = False
        self._untold: dict[SessionId, Free] = {}
        """Parked sessions that were claimed and not started, which Redis may still have as leased: nobody would be
        called for them any more."""
        self.waits = RecentWaits(context.clock)
        self.goes_on: Callable[[], None] = lambda: None
        """Told again and again while it waits to hear what became of a start."""
        self.started: Callable[[Sequence[tuple[SessionId, int]]], None] = lambda hints: None
        """Told of the sessions of which a run was started, each with the number of that event."""

    @property
    def owing(self) -> bool:
        """Whether the broker is still to hear of something that went back."""
        return bool(self._untold)

    def check(self) -> None:
        """While SQL did not answer the last start nothing is claimed. Raises Unavailable."""
        if self._store_down:
            self._context.store.check()
            self._store_down = False

    def tell_again(self) -> None:
        """Before the next claim, so that no session that is claimed again meanwhile can be parked by it. Raises
        Unavailable, LeaseError."""
        if not self._untold:
            return
        frees = list(self._untold.values())
        try:
            self._context.broker.free(self._context.epochs.current(), frees)
        except EpochMismatch:
            self._context.epochs.refresh()
            raise
        for free in frees:
            self._table.untaken(free.session_id, free.token)
        self._untold.clear()

    def __call__(self, claimed: Sequence[Claimed], sent_at: float) -> None:
        """``sent_at`` (boottime): what its leases are counted from. Raises Unavailable: it has been given back."""
        rules = self._context.rules
        begun_at = self._context.clock.boottime()
        deadline = sent_at + (rules.lease - rules.margin).total_seconds()
        if self._stopped() or begun_at + rules.margin.total_seconds() >= deadline:
            self._context.telemetry.count("oah_starts_total", len(claimed), answer="late")
            self._give_back(claimed)
            return
        waiting = [claim for claim in claimed if self._table.resuming(claim.session_id, claim.token) is not None]
        if waiting:
            self._resume(waiting)
            claimed = [claim for claim in claimed if claim not in waiting]
        if claimed:
            self._start_runs(claimed, begun_at)

    def _resume(self, claimed: Sequence[Claimed]) -> None:
        """Runs that waited go on, if somebody has answered."""
        frees, sure = self._resuming(claimed, self.started)
        self._untold.update({free.session_id: free for free in frees})
        self._store_down = self._store_down or not sure

    def _start_runs(self, claimed: Sequence[Claimed], begun_at: float) -> None:
        claims = self._claims(claimed)
        in_doubt = False
        try:
            replies = self._start.choose(self._context.worker_id, claims)
        except InDoubt as error:
            log.warning("start in doubt: %s", error)
            in_doubt, replies = True, self._look(claims)
        except Unavailable:
            self._store_down = True
            self._give_back(claimed)
            raise
        self._assign(claimed, replies, begun_at)
        told = self._start.place(claimed, replies, in_doubt=in_doubt)
        self._let_go([c for c, r in zip(claimed, replies, strict=True) if not isinstance(r, Started)], told=told)

    def _assign(self, claimed: Sequence[Claimed], replies: Sequence[StartReply], begun_at: float) -> None:
        started: list[tuple[Claimed, Started]] = []
        for claim, reply in zip(claimed, replies, strict=True):
            if isinstance(reply, Started):
                started.append((claim, reply))
                entry = self._table.started(reply, claim.token, begun_at=begun_at)
                assert entry.fence is not None
                self._count(claim, reply)
                self._slots.assign(Assignment(reply, entry.fence, claim.ready_class, begun_at=begun_at))
        if started:
            self.started([(claim.session_id, reply.event_number) for claim, reply in started])

    def _claims(self, claimed: Sequence[Claimed]) -> list[StartClaim]:
        """At most one of them may start a suspect, and only while the worker holds none: the one claimed as such."""
        place = self._table.suspects == 0
        chosen = next((c for c in claimed if c.ready_class is ReadyClass.SUSPECT), claimed[0])
        here = self._context.place
        return [
            StartClaim(c.session_id, c.token, suspect_place=place and c is chosen, place=None if c.parked else here)
            for c in claimed
        ]

    def _look(self, claims: Sequence[StartClaim]) -> list[StartReply]:
        pause = threading.Event()
        wait = 0.1
        while True:
            self.goes_on()
            try:
                return self._start.outcome(self._context.worker_id, claims)
            except Unavailable as error:
                log.warning("start still in doubt: %s", error)
                pause.wait(wait)
                wait = min(wait * 2, 2.0)

    def _give_back(self, claimed: Sequence[Claimed]) -> None:
        self._let_go(claimed, told=self._start.give_back(claimed))

    def _let_go(self, claimed: Sequence[Claimed], *, told: bool) -> None:
        """Not started. What Redis was not told of a new session the next renewal tells it, or the lease's end."""
        for claim in claimed:
            if not claim.parked:
                self._table.drop(claim.session_id, claim.token)
            elif told:
                self._table.untaken(claim.session_id, claim.token)
            else:
                self._untold[claim.session_id] = Free(claim.session_id, claim.token, Target.PARKED, claim.ready_class)

    def _count(self, claim: Claimed, started: Started) -> None:
        run = started.run
        self._context.telemetry.count(
            "oah_runs_started_total", class_=str(claim.ready_class), reason=str(started.reason)
        )
        if run.started_at is not None:
            waited = max((run.started_at - run.queued_at).total_seconds(), 0.0)
            self._context.telemetry.observe("oah_run_wait_seconds", waited, class_=str(claim.ready_class))
            self.waits.add(str(run.run_class), waited)
