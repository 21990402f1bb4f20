"""The worker: composes table, slots, claimer, settler, ear and witnesses, and walks through its states.

``starting`` → ``idle`` ⇄ ``busy`` → ``stopping``. Before the first claim everything that earlier incarnations left on
this host is killed, their outcomes are delivered and their runs recovered. A stop is a drain: no more claims, what runs
may finish within the grace, the rest is released with nothing counted against it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from oah.core.model.ids import WorkerId
from oah.core.model.worker import WorkerState
from oah.errors import Unavailable
from oah.ports.terminal import HostLost
from oah.runtime.component import Component, ThreadComponent
from oah.runtime.loop import Backoff, Loop
from oah.worker.alive import Alive
from oah.worker.attempt import Attempts
from oah.worker.claimer import Claimer
from oah.worker.context import WorkerContext
from oah.worker.cordons import Cordons
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
from oah.worker.stopping import BEAT, Stopping
from oah.worker.table import Table
from oah.worker.teller import Teller
from oah.worker.waiting import Waiting
from oah.worker.witnesses import Mark, Renew, Vigil
from oah.worker.work import Assignment

log = logging.getLogger(__name__)


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
        self._claimer.starting.started, self._settler.happened = self._teller.begun, self._teller.happened
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
        self._vigil = Vigil(context)
        self._stops = Stopping(
            context,
            self._vigil,
            self._claimer,
            self._settler,
            self._slots,
            waiting,
            self._parked,
            self._keeper,
            self._hooks,
            crashed=lambda: self._crash is not None,
            grace=lambda: self.grace,
        )
        waiting.finish, self._errands.waiting = self._attempts, waiting.all
        self._listen()
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
        self._cordons = Cordons(self._context, turned=self._intake.cordon)
        self._orders = Orders(
            self._context,
            self._claimer,
            self._cordons,
            self._stops.drains,
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
        self._claimer.starting.goes_on = self._engines[-1].goes_on
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
        return self._stops.drains.on or self._phase is WorkerState.STOPPING

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
            cordon=self._cordons.kept,
            draining=self._draining,
            started_at=self._started_at,
            waits=self._claimer.starting.waits,
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
            self._stops.drains()
        self._end()
        if self._crash is not None:
            raise self._crash

    def _end(self) -> None:
        self._phase = WorkerState.STOPPING
        self._heartbeat_loop.wake()
        self._stops((self._ear, *self._loops, *reversed(self._engines), self._teller))

    def _prepare(self) -> None:
        prepare(
            self._context,
            self._settler,
            self.stopping,
            host_lost=self._host_lost,
            mark_now=self._mark_now,
            cordons=self._cordons,
        )
        with contextlib.suppress(Unavailable):
            self.report()

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
            try:
                self._orders()
            finally:
                self._cordons()

    def _cordon_self(self, reason: str) -> None:
        log.error("cordoned: %s", reason)
        self._cordons.of_this_life()

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
