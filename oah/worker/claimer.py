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

from oah.core.model.ids import ClaimToken
from oah.core.model.lane import Lane
from oah.core.policy.claim_order import Rules, View, order
from oah.errors import LeaseError, Unavailable
from oah.ports.broker import Claimed, ClaimReply, ClaimRequest
from oah.services.claim import ClaimSessions
from oah.worker.context import WorkerContext
from oah.worker.shares import Share, Shares
from oah.worker.slots import Slots
from oah.worker.starting import Starting
from oah.worker.table import Table
from oah.worker.waiting import Waiting

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
        self.starting = Starting(context, table, slots, self._waiting, stopped=lambda: self.stopped)
        self._hint = threading.Event()
        self._flight: _InFlight | None = None
        self._retry_at = self._backoff = 0.0
        self._more = False
        self._stepping = False
        self._turn = 0
        """Counts claims, for the order of lanes and classes: the table's number also grows by what is given up."""
        self.stopped = False
        """Nothing is claimed any more."""
        self.draining = False
        self.cordoned = False
        """Like a drain it ends new runs, and not those that waited and may go on."""
        self.pressed = False
        """The machine is under pressure: the same."""
        self.full: Callable[[], None] = lambda: None
        """Told when more may be ready than fits."""
        self.may_open: Callable[[], bool] = lambda: False
        """Whether more slots could be opened for it."""
        self.tick_stale = False
        self.next_due: timedelta | None = None
        self.unsettled: Callable[[], int] = lambda: 0

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
        return self._stepping or self._flight is not None or self.starting.owing

    @property
    def away(self) -> bool:
        """Whether a store did not answer it the last time: what it has claimed ends with its lease."""
        return self._backoff > 0

    # --- the duty ---

    def pending(self) -> float | None:
        """Seconds until ``step`` has something to do; None: nothing."""
        owing = self._flight is not None or self.starting.owing
        if not owing and (not self._hint.is_set() or self.room() <= 0):
            return None
        return max(self._retry_at - self._context.clock.monotonic(), 0.0)

    def step(self) -> None:
        """One claim and the start of what it took."""
        self._stepping = True
        self._hint.clear()
        try:
            self.starting.tell_again()
            self.starting.check()
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
            self.starting(ours, flight.first_sent)
        self._go_round(reply, self.room())

    def _go_round(self, reply: ClaimReply, room: int) -> None:
        if reply.more_left and room > 0:
            self.hint()  # the script has left a token for whoever else has room
        elif self._shares.left and self.wanted() > 0:
            self._hint.set()  # lanes of another weight
        elif reply.more_left:
            self.full()

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
