"""The claimer: the one thread of a worker that claims and starts, in batches without timers.

A worker has one claim in flight. A claim whose reply was lost is repeated under its request id; one that came too late
is given back; a start in doubt is looked up until an answer came, and nothing is released meanwhile. While the last
probe of SQL failed nothing is claimed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from oah.core.model.ids import ClaimToken, SessionId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.core.policy.claim_order import Rules, View, order
from oah.errors import EpochMismatch, InDoubt, LeaseError, Unavailable
from oah.ports.broker import Claimed, ClaimReply, ClaimRequest, Free, Target
from oah.ports.store import StartClaim, Started, StartReply
from oah.services.claim import ClaimSessions
from oah.services.host_bound import HostBound
from oah.services.start import StartRuns
from oah.worker.context import WorkerContext
from oah.worker.recent import RecentWaits
from oah.worker.resuming import Resuming
from oah.worker.shares import Share, Shares
from oah.worker.slots import Slots
from oah.worker.table import Table
from oah.worker.waiting import Waiting
from oah.worker.work import Assignment

log = logging.getLogger(__name__)

TICK_STALE = timedelta(seconds=2)
"""An ear runs promotion itself when nobody has for this long (source: dispatch.md, A run's life)."""


@dataclass(slots=True)
class _InFlight:
    """The claim in flight. ``first_sent`` (boottime) is what its leases are counted from, however often repeated."""

    request: ClaimRequest
    first_sent: float


class Claimer:
    """A duty of an engine."""

    def __init__(
        self,
        context: WorkerContext,
        table: Table,
        slots: Slots,
        *,
        wake: Callable[[], None],
        waiting: Waiting | None = None,
        shares: Shares | None = None,
    ) -> None:
        self._shares = shares or Shares(context.all_lanes, context.slot_weight, slots=context.rules.slots)
        self._waiting = Waiting(context, table) if waiting is None else waiting
        self._shares.reach = lambda: context.rules.slots - (0 if self._parents_wait else self._crowd)
        self._context = context
        self._table = table
        self._slots = slots
        self._wake = wake
        self._claim = ClaimSessions(context.broker, context.epochs, context.telemetry)
        bound, lease = HostBound(context.store, context.broker, context.rules.home_wait), context.rules.lease
        self._start = StartRuns(context.store, context.broker, context.epochs, context.telemetry, lease, bound)
        self._resuming = Resuming(context, table, slots, self._waiting)
        self._hint = threading.Event()
        self._flight: _InFlight | None = None
        self._retry_at = self._backoff = 0.0
        self._store_down = False
        self._more = False
        self._stepping = False
        self._turn = 0
        """Counts claims, for the order of lanes and classes: the table's number also grows by what is given up."""
        self._untold: dict[SessionId, Free] = {}
        """Parked sessions that were claimed and not started, which Redis may still have as leased: nobody would be
        called for them any more."""
        self.stopped = False
        """Nothing is claimed any more."""
        self.draining = False
        self.cordoned = False
        """Like a drain it ends new runs, and not those that waited and may go on."""
        self.pressed = False
        """The machine is under pressure: the same."""
        self.goes_on: Callable[[], None] = lambda: None
        """Told again and again while it waits to hear what became of a start."""
        self.full: Callable[[], None] = lambda: None
        """Told when more may be ready than fits."""
        self.may_open: Callable[[], bool] = lambda: False
        """Whether more slots could be opened for it."""
        self.tick_stale = False
        self.next_due: timedelta | None = None
        self.waits = RecentWaits(context.clock)
        self.unsettled: Callable[[], int] = lambda: 0
        self.started: Callable[[Sequence[tuple[SessionId, int]]], None] = lambda hints: None
        """Told of the sessions of which a run was started, each with the number of that event."""

    # --- from other threads ---

    def hint(self) -> None:
        """There may be something to claim."""
        self._shares.begin()
        self._hint.set()
        if self._would_open and self.wanted() <= self._context.claim_rules.subagent_reserve:
            self.full()
        self._wake()

    def slot_freed(self, *, deaf: bool) -> None:
        """A slot became idle; ``deaf``: the ear was not listening for work."""
        if self._more or deaf or self._shares.mixed:
            self.hint()

    def room(self) -> int:
        """Sessions for idle slots: new ones, else those whose run waited and is answered."""
        if self.stopped:
            return 0
        return self.wanted() or min(self._slots.idle, self._waiting.answered)

    @property
    def takes(self) -> bool:
        """Whether it takes new runs at all."""
        return not (self.stopped or self.cordoned or self.draining or self.pressed)

    def wanted(self) -> int:
        """Sessions to start a run of, as long as outcomes that are not settled stay bounded. Beyond their limit, runs
        that wait take the place of new ones."""
        if not self.takes:
            return 0
        idle = self._slots.idle if self._parents_wait else self._uncrowded
        # What runs now will be an outcome too: outcomes and runs together stay within twice the slots, so that the
        # settler commits one batch while the next one runs (bounding them by the slots halves the batches; measured).
        room = self._context.rules.slots + idle - self.unsettled()
        return max(min(idle, room), 0)

    @property
    def _uncrowded(self) -> int:
        """Idle slots, less those whose place is taken by runs that wait beyond their limit."""
        return self._slots.idle - self._crowd

    @property
    def _crowd(self) -> int:
        return max(len(self._waiting) - self._context.rules.waiting, 0)

    @property
    def _parents_wait(self) -> bool:
        """More wait than should, some of them for their children: those may have the places of the waiting, so that
        they end."""
        return self._crowd > 0 and self._waiting.lent > 0

    @property
    def _would_open(self) -> bool:
        """Whether further slots would help: not where runs that wait keep new ones from starting."""
        return self.takes and self.may_open() and not self._crowd

    def lanes(self) -> tuple[Lane, ...]:
        """Those of which it would start a run now, or open slots for one."""
        if self._would_open:
            return self._context.all_lanes
        wanted = self.wanted()
        return self._shares.fitting(wanted) if wanted > 0 else ()

    @property
    def busy(self) -> bool:
        """Whether a claim or a start is under way, of which an assignment may come."""
        return self._stepping or self._flight is not None or bool(self._untold)

    @property
    def away(self) -> bool:
        """Whether a store did not answer it the last time: what it has claimed ends with its lease."""
        return self._backoff > 0

    # --- the duty ---

    def pending(self) -> float | None:
        """Seconds until ``step`` has something to do; None: nothing."""
        owing = self._flight is not None or self._untold
        if not owing and (not self._hint.is_set() or self.room() <= 0):
            return None
        return max(self._retry_at - self._context.clock.monotonic(), 0.0)

    def step(self) -> None:
        """One claim and the start of what it took."""
        self._stepping = True
        self._hint.clear()
        try:
            self._tell_again()
            if self._store_down:
                self._context.store.check()
                self._store_down = False
            answered = self._claimed()
            if answered is not None:
                self._work(*answered)
        except LeaseError:
            self._give_up()
        except Unavailable as error:
            self._later(error)
        else:
            self._backoff = 0.0
        finally:
            self._stepping = False

    def _tell_again(self) -> None:
        """Before the next claim, so that no session that is claimed again meanwhile can be parked by it."""
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

    def _claimed(self) -> tuple[ClaimReply, list[Claimed]] | None:
        """The answer, and what of it may be started."""
        if self._flight is None:
            want = self.room()
            if want <= 0:
                return None
            token = ClaimToken(self._context.ids.nonce())
            counter = self._table.request(token)
            self._turn += 1
            place = self._table.suspects == 0
            resumes_only = self.wanted() <= 0
            share = Share((), want) if resumes_only else self._shares.next(want)
            sessions, idle, rules = self._terms(share, want)
            request = ClaimRequest(
                worker_id=self._context.worker_id,
                request=token,
                lease=self._context.rules.lease,
                counter=counter,
                want=sessions,
                order=order(View(share.lanes, idle, place), rules, counter=self._turn),
                suspect_place=place,
                resumes_only=resumes_only,
            )
            self._flight = _InFlight(request, self._context.clock.boottime())
        flight = self._flight
        reply = self._claim(flight.request)
        return reply, self._table.answered(flight.request.request, reply.sessions, sent_at=flight.first_sent)

    def _terms(self, share: Share, idle: int) -> tuple[int, int, Rules]:
        """How many sessions, of how many idle slots, by which rules. The reserve is no one's but the subagents': they
        get it by the next claim; an agent for which there is no other place takes it all the same."""
        rules = self._context.claim_rules
        if not share.lanes:
            return share.want, idle, rules
        weight, left = self._shares.weight(share.lanes[0].profile), self._uncrowded
        if self._parents_wait:
            if weight > left:
                return share.want, idle, replace(rules, subagent_reserve=idle)
            idle = min(idle, left)
        rest = idle - rules.subagent_reserve
        return (idle // weight if rest <= 0 else max(rest // weight, 1)), idle, rules

    def _work(self, reply: ClaimReply, ours: Sequence[Claimed]) -> None:
        assert self._flight is not None
        flight, self._flight = self._flight, None
        if flight.request.order:
            self._more = reply.more_left
        self.next_due = reply.next_due_in
        self.tick_stale = reply.ticked_ago is None or reply.ticked_ago > TICK_STALE
        if ours:
            self._begin(ours, flight.first_sent)
        self._go_round(reply, self.room())

    def _go_round(self, reply: ClaimReply, room: int) -> None:
        if reply.more_left and room > 0:
            self.hint()  # the script has left a token for whoever else has room
        elif self._shares.left and self.wanted() > 0:
            self._hint.set()  # lanes of another weight
        elif reply.more_left:
            self.full()

    def _begin(self, claimed: Sequence[Claimed], sent_at: float) -> None:
        rules = self._context.rules
        begun_at = self._context.clock.boottime()
        deadline = sent_at + (rules.lease - rules.margin).total_seconds()
        if self.stopped or begun_at + rules.margin.total_seconds() >= deadline:
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

    def _give_up(self) -> None:
        """Another epoch or a rebuild: what the request may have taken goes back with a later renewal."""
        if self._flight is not None:
            self._table.forget_request(self._flight.request.request)
            self._flight = None
        self._retry_at = self._context.clock.monotonic() + 0.25
        self._shares.begin()
        self._hint.set()

    def _later(self, error: Unavailable) -> None:
        self._backoff = min(max(self._backoff * 2, 0.1), 2.0)
        self._retry_at = self._context.clock.monotonic() + self._backoff
        self._shares.begin()
        self._hint.set()
        log.warning("claim again in %.1f s: %s", self._backoff, error)

    def _count(self, claim: Claimed, started: Started) -> None:
        run = started.run
        self._context.telemetry.count(
            "oah_runs_started_total", class_=str(claim.ready_class), reason=str(started.reason)
        )
        if run.started_at is not None:
            waited = max((run.started_at - run.queued_at).total_seconds(), 0.0)
            self._context.telemetry.observe("oah_run_wait_seconds", waited, class_=str(claim.ready_class))
            self.waits.add(str(run.run_class), waited)
