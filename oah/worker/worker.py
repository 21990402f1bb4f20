"""The worker: composes table, slots, claimer, settler, ear and witnesses, and walks through its states.

``starting`` → ``idle`` ⇄ ``busy`` → ``stopping``. Before the first claim everything that earlier incarnations left on
this host is killed, their outcomes are delivered and their runs recovered. A stop is a drain: no more claims, what runs
may finish within the grace, the rest is released with nothing counted against it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from oah.core.model.drain import AtDeadline
from oah.core.model.ids import WorkerId
from oah.core.model.worker import WorkerState
from oah.errors import OahError, Unavailable
from oah.ports.terminal import HostLost
from oah.runtime.component import Component, ThreadComponent
from oah.runtime.loop import Backoff, Loop
from oah.worker.alive import Alive
from oah.worker.attempt import Attempts
from oah.worker.claimer import Claimer
from oah.worker.context import WorkerContext
from oah.worker.draining import Draining, give_back
from oah.worker.ear import Ear
from oah.worker.elastic import EVERY, Elastic
from oah.worker.engine import Engine
from oah.worker.errands import Errands
from oah.worker.heartbeat import beat
from oah.worker.hooks import Hooks
from oah.worker.intake import Intake
from oah.worker.keeper import Keeper
from oah.worker.lending import Lending
from oah.worker.losses import Losses
from oah.worker.orders import Orders
from oah.worker.parked import Parked, Warm
from oah.worker.prepare import prepare
from oah.worker.settler import Settler
from oah.worker.table import Table
from oah.worker.teller import Teller
from oah.worker.waiting import Waiting
from oah.worker.witnesses import Mark, Renew, Vigil
from oah.worker.work import Assignment

log = logging.getLogger(__name__)

BEAT = 0.25
"""Seconds between two answers of the main loop to the watchdog."""

CLAIMS_END = 5.0
"""Seconds that a drain waits for a claim or a start that is under way; later ones are left to their lease."""

FLUSH_ENDS = 10.0
"""Seconds that a drain waits for outcomes to be recorded."""


HOOKS_END = 5.0
"""Seconds that a drain waits for hooks of runs that have ended."""

PARTS_END = 3.0
"""Seconds that a drain waits for its threads: one that hangs in a store is left behind, it starts nothing any more."""


class Worker(ThreadComponent):
    """A worker as a component; its thread is the main loop."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__("worker")
        self._context = context
        rules = context.rules
        self._started_at: datetime = context.clock.now()
        self._phase = WorkerState.STARTING
        self._crash: BaseException | None = None
        self.table = Table(lease=rules.lease, margin=rules.margin)
        self._engines = [Engine("engine")] if context.one_engine else [Engine("settler"), Engine("claimer")]
        self.elastic = Elastic(context, execute=self._execute, freed=self._freed, crashed=self._crashed)
        self._slots = self.elastic.slots
        self._parked = Parked(
            capacity=rules.parked,
            idle=rules.warm_idle,
            clock=context.clock,
            ended=self._agent_ended,
            may_end=self.table.unpark,
        )
        self._waiting = waiting = Waiting(context, self.table)
        self._settler = Settler(context, self.table, self._parked, wake=self._engines[0].wake, waiting=waiting)
        self._claimer = Claimer(
            context, self.table, self._slots, wake=self._engines[-1].wake, waiting=waiting, shares=self.elastic.shares
        )
        self._claimer.unsettled = lambda: self._settler.unsettled
        self._teller = Teller(context)
        self._claimer.started, self._settler.happened = self._teller.begun, self._teller.happened
        self._settler.called = waiting.called = self._claimer.hint
        self._settler.settled = self._settled
        self._hooks = Hooks(context)
        self._settler.over = self._hooks.over
        self._keeper = Keeper(context, self.table, self._slots, self._settler)
        self._keeper.parked, self._keeper.cordon = self._parked, self._cordon_self
        self._keeper.taking, self._keeper.elastic = lambda: self._intake.taking, self.elastic
        self.elastic.resumes, self.elastic.called = waiting.answered_profiles, self._keeper.called_profiles
        self._errands = Errands(context, self.table, self._slots, self._keeper)
        self._hooks.happened = self._errands.speaker.happened = self._teller.happened
        self._settler.parked = self._errands.parked
        self._attempts = Attempts(
            context,
            self.table,
            self._parked,
            self._settler,
            cordon=self._cordon_self,
            draining=lambda: self._draining,
            mark_now=self._mark_now,
            hooks=self._hooks,
        )
        self._attempts.mail.happened = self._teller.happened
        self._drains = Draining(
            context,
            working=lambda: self._slots.working,
            empty=lambda: self._is_empty,
            stop_claims=self._stop_claims,
            end_parked=self._end_parked,
            end_waiting=self._end_waiting,
        )
        waiting.finish, self._errands.waiting = self._attempts, waiting.all
        self._listen()
        self._vigil = Vigil(context)
        self._renew = Renew(context, self.table, self._vigil, mark_now=self._mark_now)
        self._waiting_loop = self._loop(
            "waiting",
            Lending(context, self.table, self._slots, waiting, self._errands, freed=self._freed),
            timedelta(seconds=1),
        )
        losses = Losses(
            context, self.table, self._slots, waiting, self._keeper, self._hooks, look=self._waiting_loop.wake
        )
        self._mark = Mark(context, self.table, self._vigil, self._renew, losses)
        self._loops = self._timed()
        self._load_engines()

    def _listen(self) -> None:
        self._ear = Ear(self._context, self._claimer, look=self._look)
        self._intake = Intake(self._claimer, self._ear, self.elastic, changed=self._changed)
        self._orders = Orders(
            self._context,
            self._claimer,
            self._intake,
            self._drains,
            self._errands,
            stopping=lambda: self._phase is WorkerState.STOPPING,
        )

    def _timed(self) -> list[Loop]:
        rules, second = self._context.rules, timedelta(seconds=1)
        self._mark_loop = self._loop("mark", self._mark, rules.period)
        self._heartbeat_loop = self._loop("heartbeat", self._heartbeat, rules.heartbeat)
        elastic = self._loop("elastic", self.elastic, EVERY)
        self._claimer.full, self._claimer.may_open = elastic.wake, lambda: self.elastic.may_open
        return [
            self._loop("renew", self._renew, rules.period),
            self._mark_loop,
            self._heartbeat_loop,
            self._waiting_loop,
            elastic,
            self._loop("keeper", self._keeper, second),
            self._loop("tidy", self._tidy, rules.tidy),
        ]

    def _load_engines(self) -> None:
        self.alive = Alive(self._context.clock, self._engines, limit=self._context.rules.stuck)
        self._claimer.goes_on = self._engines[-1].goes_on
        if self._context.one_engine:
            self._engines[0].carry(self._settler, self._claimer)
        else:
            self._engines[0].carry(self._settler)
            self._engines[1].carry(self._claimer)

    # --- what others see ---

    @property
    def id(self) -> WorkerId:
        """This incarnation."""
        return self._context.worker_id

    @property
    def state(self) -> WorkerState:
        """Busy while a slot works."""
        if self._phase is WorkerState.IDLE and self._slots.working:
            return WorkerState.BUSY
        return self._phase

    @property
    def _draining(self) -> bool:
        return self._drains.on or self._phase is WorkerState.STOPPING

    @property
    def _is_empty(self) -> bool:
        """Nothing runs, waits or is kept, and what has ended is recorded, or a store is away."""
        done = self._settler.idle or self._settler.stuck
        claims = self._claimer.busy and not self._claimer.away
        return not (claims or self._slots.working or len(self._waiting) or len(self._parked)) and done

    def ready(self) -> bool:
        """Whether it takes runs: not while starting, draining or without its stores."""
        return self._phase is WorkerState.IDLE and not self._draining and all(not loop.failures for loop in self._loops)

    def report(self) -> None:
        """The heartbeat: tell the registry. Raises Unavailable."""
        beat(
            self._context,
            self.state,
            self.elastic,
            parked=len(self._parked) + len(self._waiting),
            cordoned=self._intake.cordoned,
            draining=self._draining,
            started_at=self._started_at,
            waits=self._claimer.waits,
        )

    # --- life ---

    def run(self) -> None:
        """Prepare, serve until ``stop``, drain."""
        self.serving()
        self._prepare()
        if self.stopping.is_set():
            self._context.agent_host.stop()
            return
        self._slots.start()
        parts: list[Component] = [self._teller, *self._engines, *self._loops, self._ear]
        for part in parts:
            part.watch(self._part_ended)
            part.start()
        self._phase = WorkerState.IDLE
        self._heartbeat_loop.wake()
        log.info("worker %s serves %s", self.id, ", ".join(map(str, self._context.lanes)))
        while not self.stopping.wait(BEAT) and self._crash is None:
            self._vigil.beat()
            self._drains()
        self._drain()
        if self._crash is not None:
            raise self._crash

    def _prepare(self) -> None:
        prepare(self._context, self._settler, self.stopping, host_lost=self._host_lost, mark_now=self._mark_now)
        with contextlib.suppress(Unavailable):
            self.report()

    def _drain(self) -> None:
        """No more claims; finish within the grace; release the rest; leave nothing behind."""
        self._phase = WorkerState.STOPPING
        self._claimer.draining = True
        log.info("worker %s drains", self.id)
        self._heartbeat_loop.wake()
        # A start under way may still bring an assignment.
        self._wait_until(lambda: not self._claimer.busy, CLAIMS_END)
        self._end_parked()
        self._wait_idle(None)
        self._stop_claims()
        self._wait_until(lambda: not self._claimer.busy, CLAIMS_END)
        said = self._drains.said
        give_back(self._slots.working, said)
        self._end_waiting(said)
        self._wait_idle(30.0)
        self._flush()
        self._end_waiting(said)  # also of those whose last turn was recorded just now
        self._end_parked()
        self._wait_idle(30.0)
        self._flush()
        self._wait_until(lambda: self._hooks.idle, HOOKS_END)
        for part in (self._ear, *self._loops, *reversed(self._engines), self._teller):
            part.stop(timedelta(0))
        begun = self._context.clock.monotonic()
        for part in (self._ear, *self._loops, *self._engines, self._teller):
            left = PARTS_END - (self._context.clock.monotonic() - begun)
            part.join(timedelta(seconds=max(left, 0.0)))
        self._context.agent_host.stop()
        with contextlib.suppress(OahError):
            self._context.witness_broker.forget(self.id)

    def _wait_idle(self, limit: float | None) -> bool:
        """Wait for the slots so many seconds; None: the grace, which a second signal or a drain makes shorter."""
        begun = self._context.clock.monotonic()
        while not self._slots.wait_idle(BEAT) or len(self._waiting):
            self._vigil.beat()
            if not self._slots.working:  # people may answer until the grace is over
                threading.Event().wait(BEAT)
            longest = limit if limit is not None else 0.0 if self._drains.over else self.grace.total_seconds()
            if self._context.clock.monotonic() - begun >= longest or self._crash is not None:
                return False
        return True

    def _stop_claims(self) -> None:
        self._claimer.stopped = True

    def _end_waiting(self, said: AtDeadline | None) -> None:
        """A conversation cannot move in the middle of a turn: unless somebody has said what becomes of the run, it is
        the recovery policy's."""
        for assignment in self._waiting.all():
            assignment.drained = said
            assignment.give_back = True
            self._waiting.end(assignment)

    def _end_parked(self) -> None:
        """All at once, and without keeping the main loop from answering: an agent that ends slowly takes its grace."""
        ends = [threading.Thread(target=self._keeper.end, args=([s],), daemon=True) for s in self._parked.sessions()]
        for end in ends:
            end.start()
        for end in ends:
            while end.is_alive():
                self._vigil.beat()
                end.join(BEAT)

    def _flush(self) -> None:
        """What has ended is recorded: in SQL, or on this machine's disk for the next incarnation. A store that is away
        is not waited for: SQL hears of it then, and a lease in Redis ends by itself."""
        self._wait_until(lambda: self._settler.idle or self._settler.stuck, FLUSH_ENDS)
        if not self._settler.idle:
            log.warning("a store is away: what has ended is kept here")
            self._settler.secure()

    def _wait_until(self, done: Callable[[], bool], seconds: float) -> None:
        """At most so long, answering the watchdog."""
        begun = self._context.clock.monotonic()
        while not done() and self._context.clock.monotonic() - begun < seconds:
            self._vigil.beat()
            threading.Event().wait(0.02)

    # --- told by the parts ---

    def _look(self) -> None:
        """Control said "look": commands and cancels are rows in SQL."""
        self._mark_loop.wake()
        if len(self._waiting):
            self._waiting_loop.wake()
        with contextlib.suppress(Unavailable):
            self._orders()

    def _tidy(self) -> None:
        self._context.tidy()

    def _heartbeat(self) -> None:
        """Commands are also read here, should a ``look`` have been lost, or the broker be away. Each store is told and
        asked, whatever became of the other."""
        try:
            self.report()
        finally:
            self._orders()

    def _cordon_self(self, reason: str) -> None:
        log.error("cordoned: %s", reason)
        self._intake.cordon(cordoned=True)

    def _host_lost(self, lost: HostLost) -> None:
        log.error("PTY host lost: %s (%d agents)", lost.reason, len(lost.agent_ids))
        self._context.telemetry.count("oah_agent_host_restarts_total")
        if lost.unkilled:
            self._cordon_self(f"agents outlived their host: {', '.join(lost.unkilled)}")

    def _execute(self, assignment: Assignment) -> None:
        self._attempts(assignment)
        self._waiting.forget(assignment)

    def _agent_ended(self, warm: Warm, *, empty: bool) -> None:
        self._keeper.ended(warm, empty=empty)

    def _settled(self) -> None:
        self._engines[-1].wake()
        self._intake.settled()

    def _freed(self) -> None:
        self._intake.freed()

    def _changed(self) -> None:
        self._heartbeat_loop.wake()

    def _mark_now(self) -> None:
        self._mark_loop.wake()

    def _crashed(self, error: BaseException) -> None:
        log.critical("a slot crashed", exc_info=error)
        self._crash = self._crash or error

    def _part_ended(self, part: Component) -> None:
        if part.failure is not None:
            self._crash = self._crash or part.failure

    def _loop(self, name: str, work: Callable[[], None], interval: timedelta) -> Loop:
        context = self._context
        cap = min(timedelta(seconds=1), context.rules.period)
        return Loop(
            name,
            work,
            interval=interval,
            clock=context.clock,
            telemetry=context.telemetry,
            chance=context.ids.chance,
            backoff=Backoff(cap=cap),
        )
