"""The elastic pool of one worker: slots between a minimum and a maximum, and what stops it from taking more.

Every second: what the machine uses (under pressure nothing is opened and nothing is claimed), and how many slots are to
be open, by the policy that the fleet is scaled by, a slot being its unit. A slot is only a thread, so slots open at the
first sign, and close when they have not been used for a while. Work is never interrupted for it. The fleet counts the
maximum: what opens and closes here is no capacity that comes and goes.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from oah.core.model.lane import Lane
from oah.core.policy.pressure import Pressure, Resource, Usage, judge
from oah.core.policy.scaling import Decision, History, Rules, Signals, decide
from oah.errors import LeaseError, Unavailable
from oah.worker.context import WorkerContext
from oah.worker.shares import Shares
from oah.worker.slots import Slots
from oah.worker.work import Assignment

log = logging.getLogger(__name__)

EVERY = timedelta(seconds=1)
"""How often it looks."""
CALLED_EVERY = 0.25
"""Seconds between two questions to SQL about warm agents: a pass may follow another at once."""
RECENT = 8
"""Changes that are remembered."""


class Pressed(Protocol):
    """Told whether the machine is under pressure."""

    def __call__(self, *, under: bool) -> None: ...


class Elastic:
    """``__call__`` is one pass, in a thread of its own; others read ``pressure``, ``usage`` and ``view``."""

    def __init__(
        self,
        context: WorkerContext,
        *,
        execute: Callable[[Assignment], None],
        freed: Callable[[], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self._context = context
        rules = context.rules
        self._shares = self.shares = Shares(context.all_lanes, context.slot_weight, slots=rules.slots)
        self._slots = self.slots = Slots(
            rules.least,
            execute=execute,
            freed=freed,
            crashed=crashed,
            weigh=lambda assignment: self._shares.weight(assignment.started.session.lane.profile),
        )
        self._reserve = context.claim_rules.subagent_reserve
        """Idle slots that are no one's but the subagents': what else is ready needs others."""
        self._last_used = [-rules.slot_idle.total_seconds()] * rules.slots
        self._asked_at = -CALLED_EVERY
        self._history = History()
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.usage = Usage()
        self.pressure = Pressure()
        self.pressed: Pressed = lambda *, under: None
        """Told when it begins and when it ends."""
        self.taking: Callable[[], bool] = lambda: True
        """Whether new runs are taken at all: no slot is opened for a cordoned worker."""
        self.resumes: Callable[[], Sequence[str]] = list
        """The profiles of runs that waited and may go on: they are no figure of the queue. They get slots from a worker
        that takes nothing, too, for nobody else has their agents."""
        self.called: Callable[[], Sequence[str]] = list
        """The profiles of warm agents that have something to run, likewise. Raises Unavailable."""
        self.opened: Callable[[], None] = lambda: None
        """Told when there are more slots."""

    def __call__(self) -> None:
        """Raises nothing: without a broker slots stay as they are."""
        now = self._context.clock.monotonic()
        self._press(now)
        self._size(now)

    @property
    def may_open(self) -> bool:
        """Whether it would open more slots."""
        return self._slots.size < self._context.rules.slots and not self.pressure and self.taking()

    @property
    def short_of_memory(self) -> bool:
        """Whether warm agents that nobody needs now should give up theirs."""
        return Resource.MEMORY in self.pressure.since

    def view(self) -> dict[str, Any]:
        """For people: the ``/pool`` page of the worker."""
        slots, rules = self._slots, self._context.rules
        return {
            "slots": slots.size,
            "slots_min": rules.least,
            "slots_max": rules.slots,
            "busy": slots.busy,
            "weight": slots.used,
            "idle": slots.idle,
            "saved_for": [str(lane) for lane in self._shares.saved_for],
            "pressure": list(self.pressure.names),
            "usage": {str(resource): self.usage.of(resource) for resource in Resource},
            "recent": list(self._recent),
        }

    # --- pressure ---

    def _press(self, now: float) -> None:
        before, telemetry = self.pressure, self._context.telemetry
        self.usage = self._context.machine()
        self.pressure = judge(self.usage, self._context.pressure, before, now=now)
        for resource in Resource:
            telemetry.gauge("oah_worker_pressure", int(resource in self.pressure.since), resource=str(resource))
            telemetry.gauge("oah_worker_usage", self.usage.of(resource) or 0.0, resource=str(resource))
        if self.pressure.names == before.names:
            return
        if self.pressure:
            log.warning("under pressure (%s): no new runs; %s", ", ".join(self.pressure.names), self.usage)
        else:
            log.info("no pressure any more; %s", self.usage)
        self.pressed(under=bool(self.pressure))

    # --- size ---

    def _size(self, now: float) -> None:
        rules, slots = self._context.rules, self._slots
        elastic = rules.least < rules.slots
        if not elastic and not self._shares.mixed:
            return
        short = slots.idle - self._reserve < self._shares.heaviest
        asks = (self.may_open and short) or (self._shares.mixed and slots.used)
        ready, sure = self._ready() if asks else ({}, True)
        if sure:
            self._shares.seen(ready, now=now)
        if elastic:
            resumes, others = self._own() if short else ((), ())
            waiting = sum(count * self._shares.weight(lane.profile) for lane, count in ready.items())
            self._decide(waiting + self._weigh(others), self._weigh(resumes), now, sure=sure)

    def _own(self) -> tuple[Sequence[str], Sequence[str]]:
        """The profiles of what only this worker can go on with; the second are those that it does while it takes."""
        resumes, now = self.resumes(), self._context.clock.monotonic()
        if not self.may_open or now < self._asked_at + CALLED_EVERY:
            return resumes, ()
        self._asked_at = now
        try:
            return resumes, self.called()
        except (Unavailable, LeaseError) as error:
            log.debug("what is called is not known: %s", error)
            return resumes, ()

    def _weigh(self, profiles: Sequence[str]) -> int:
        return sum(map(self._shares.weight, profiles))

    def _decide(self, ready: int, resumes: int, now: float, *, sure: bool) -> None:
        slots, size = self._slots, self._slots.size
        signals = Signals(
            ready=ready + resumes,
            running=slots.used + (self._reserve if ready else 0),
            slots=size,
            idle_slots=slots.idle,
            sure=sure,
        )
        decision = decide(
            signals, self._rules(now, size, slots.used + resumes), current=size, history=self._history, now=now
        )
        self._history = decision.history
        if decision.desired != size:
            self._change(size, decision, signals, now)

    def _rules(self, now: float, size: int, needed: int) -> Rules:
        """Never fewer than were used lately; under pressure never more than there are, and cordoned no more than what
        runs here already needs. What is used lately is all the damping there is, and the counts all the pressure: a
        slot carries one run, and waiting opens no other."""
        rules, idle = self._context.rules, self._context.rules.slot_idle.total_seconds()
        used = self._slots.peak()
        for slot in range(min(used, rules.slots)):
            self._last_used[slot] = now
        lately = sum(1 for moment in self._last_used if now - moment < idle)
        more = 0 if self.pressure else rules.slots if self.taking() else needed
        most = min(max(size, more), rules.slots)
        least = min(max(rules.least, lately), most)
        return Rules(
            minimum=least,
            maximum=most,
            up_window=1,
            down_window=1,
            up_cooldown=timedelta(0),
            down_cooldown=timedelta(0),
        )

    def _change(self, size: int, decision: Decision, signals: Signals, now: float) -> None:
        grows = decision.desired > size
        for slot in range(size, decision.desired):
            self._last_used[slot] = now  # it is about to be
        self._slots.resize(decision.desired)
        self._context.telemetry.count("oah_worker_slots_changes_total", direction="up" if grows else "down")
        log.info("slots %d → %d (%s)", size, decision.desired, decision.reason)
        self._recent.append(
            {
                "at": self._context.clock.now().isoformat(),
                "from": size,
                "to": decision.desired,
                "reason": str(decision.reason),
                "ready": signals.ready,
                "weight": self._slots.used,
            }
        )
        if grows:
            self.opened()

    def _ready(self) -> tuple[Mapping[Lane, int], bool]:
        """Sessions that could be started, by lane; whether that is known."""
        lanes = set(self._context.all_lanes)
        ready: Counter[Lane] = Counter()
        try:
            figures = self._context.broker.figures()
        except (Unavailable, LeaseError) as error:
            log.debug("what is ready is not known: %s", error)
            return ready, False
        for depth in figures.ready:
            if depth.lane in lanes:
                ready[depth.lane] += depth.sessions - depth.capped
        return ready, True
