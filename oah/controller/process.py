"""The controller: a leader lease, a leader's rota, promotion and relay, and a probe.

Several may run; one leads, the others wait. Everything a leader does is safe when two do it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from oah.controller.duties import Acting, Duty, KeepEpoch, Rota
from oah.controller.rules import ControllerRules
from oah.errors import OahError
from oah.ports.blobs import Blobs
from oah.ports.broker import Broker
from oah.ports.clock import Clock, Ids
from oah.ports.election import Election
from oah.ports.store import Store
from oah.ports.telemetry import Telemetry
from oah.runtime.component import Component
from oah.runtime.leadership import Leadership
from oah.runtime.loop import Loop
from oah.runtime.probe import Exposition, Probe
from oah.services.audit import AuditOwners
from oah.services.bury import BuryPoison, EvictLetters
from oah.services.cancel import CancelChildren
from oah.services.caps import KeepGoverned, RecomputeCaps
from oah.services.clocks import WatchClocks
from oah.services.decisions import Decisions
from oah.services.epoch import EpochKeeper
from oah.services.expire import ExpireRuns
from oah.services.fire import FireSchedules
from oah.services.forget import ForgetWorkers
from oah.services.host_bound import HostBound
from oah.services.jobs import MeasureJobs
from oah.services.mail_sweep import SweepMail
from oah.services.measure import MeasureQueues
from oah.services.measure_pools import MeasurePools
from oah.services.orphans import JudgeOwners
from oah.services.place import Places
from oah.services.promote import PromoteRuns
from oah.services.prune import Prune
from oah.services.reconcile import Reconcile
from oah.services.recover import RecoverOwners
from oah.services.rehydrate import Rehydrate
from oah.services.relay import RelayRuns
from oah.services.rollouts import DriveRollouts
from oah.services.scale import ScaleFleet
from oah.services.signals import PoolSignals
from oah.services.sweep import SweepLeases
from oah.services.tend_ready import TendReady
from oah.services.wake import TellAgents, TendMessages


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the probe listens, and the figures that it shows."""

    host: str
    port: int
    metrics: Exposition


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """What a controller is made of; bootstrap fills it. ``endpoint`` None: the process has an API that shows it all."""

    store: Store
    broker: Broker
    clock: Clock
    ids: Ids
    telemetry: Telemetry
    epochs: EpochKeeper
    rules: ControllerRules
    holder: str
    decisions: Decisions
    endpoint: Endpoint | None = None
    election: Election | None = None
    """None: the broker's."""
    tell_jobs: Callable[[], object] = field(default=lambda: None)
    """Lets the queue of maintenance jobs hear again of what it may have lost."""
    blobs: Blobs | None = None
    """Where recordings and long results lie; None: nothing is pruned here."""
    schedules: FireSchedules | None = None
    """None: nobody fires here."""
    weigh: Callable[[str], int] = lambda profile: 1
    """Slots that a run of a profile takes."""
    scaling: Sequence[ScaleFleet] = ()
    """Pools whose size is decided about, one each."""
    tidy: Callable[[], object] | None = None
    """Takes away what closed sessions have left in directories that all hosts have."""


@dataclass(frozen=True, slots=True)
class Services:
    """The services of a leader, wired. One thread at a time."""

    keep_epoch: KeepEpoch
    clocks: WatchClocks
    sweep: SweepLeases
    audit: AuditOwners
    reconcile: Reconcile
    caps: RecomputeCaps
    governed: KeepGoverned
    forget: ForgetWorkers
    children: CancelChildren
    measure: MeasureQueues
    pools: MeasurePools
    ready: TendReady
    jobs: MeasureJobs
    promote: PromoteRuns
    relay: RelayRuns
    recover: RecoverOwners
    expire: ExpireRuns
    letters: EvictLetters
    poison: BuryPoison
    messages: TendMessages
    mail: SweepMail
    prune: Prune | None
    rollouts: DriveRollouts
    going_on: Callable[[], bool] = field(default=lambda: True)

    def rota(self, context: ControllerContext) -> Rota:
        """Which is called how often, most important first."""
        epoch = context.epochs.current
        rules = context.rules
        duties = (
            # First, and the database's clock before Redis's: an absence of Redis must not look like the database's.
            Duty("clocks", timedelta(0), self.clocks.keep_watch),
            Duty("epoch", timedelta(0), self.keep_epoch),
            Duty("sweep", timedelta(0), lambda: self.sweep(epoch())),
            Duty("expire", timedelta(0), lambda: self.expire(epoch())),
            Duty("look_again", rules.look_again_every, lambda: self.reconcile.look_again(epoch())),
            Duty("audit", rules.audit_every, lambda: self.audit(epoch(), self.going_on)),
            Duty("reconcile", rules.reconcile_every, lambda: self.reconcile.look(epoch(), self.going_on)),
            Duty("ready_again", rules.look_again_every, self.ready.look_again),
            Duty("ready", rules.reconcile_every, self.ready.look),
            Duty("governed", rules.look_again_every, lambda: self.governed(epoch())),
            Duty("caps", rules.reconcile_every, lambda: self.caps(epoch())),
            Duty("children", rules.look_again_every, lambda: self.children(epoch(), self.going_on)),
            Duty("messages", rules.mail_every, lambda: self.messages(epoch())),
            Duty("rollouts", rules.tick_every, self.rollouts),
            Duty("measure", rules.measure_every, self.measure),
            Duty("measure_pools", rules.measure_every, self.pools),
            Duty("measure_mail", rules.measure_every, self.mail.measure),
            Duty("overdue", rules.measure_every, self.messages.watch),
            Duty("forget", rules.audit_every, self.forget),
            Duty("poison", rules.audit_every, self.poison),
            Duty("letters", rules.measure_every, self.letters),
            Duty("measure_jobs", rules.measure_every, self.jobs),
        )
        return Rota(duties, context.clock, context.epochs, going_on=self.going_on)


def create_services(context: ControllerContext, *, going_on: Callable[[], bool] = lambda: True) -> Services:
    """Wire the services. ``going_on``: asked between the pages of a long pass."""
    store, broker, telemetry, rules = context.store, context.broker, context.telemetry, context.rules
    decisions = context.decisions
    places = Places(store, broker)
    recover = RecoverOwners(store, places, context.epochs, telemetry, rules.recovery, decisions, rules.profiles)
    clocks = WatchClocks(store, broker, context.clock, telemetry, rules.clocks, decisions)
    judge = JudgeOwners(broker, places, recover, clocks, rules.orphan, decisions, context.holder)
    rehydrate = Rehydrate(store, places, rules.lease, decisions)
    return Services(
        keep_epoch=KeepEpoch(context.epochs, rehydrate, telemetry, decisions, going_on=going_on),
        clocks=clocks,
        sweep=SweepLeases(store, broker, places, judge, decisions),
        audit=AuditOwners(store, judge, rules.lease),
        reconcile=Reconcile(store, broker, places, context.clock, telemetry, decisions, rules.placement),
        caps=RecomputeCaps(store, broker, telemetry),
        governed=KeepGoverned(store, broker),
        forget=ForgetWorkers(store, broker, telemetry),
        children=CancelChildren(store, broker),
        measure=MeasureQueues(store, broker, telemetry, rules.lease, context.clock),
        ready=TendReady(store, broker, context.clock, telemetry, decisions, rules.lease),
        pools=MeasurePools(
            telemetry, PoolSignals(store, broker, context.clock, trust=rules.lease, weigh=context.weigh)
        ),
        jobs=MeasureJobs(store, telemetry),
        promote=PromoteRuns(store, places, HostBound(store, broker, rules.home_wait)),
        relay=RelayRuns(store, places, telemetry, rules.relay_older_than),
        recover=recover,
        expire=ExpireRuns(store, broker, places, telemetry, decisions),
        letters=EvictLetters(store, broker, telemetry, rules.dead_letters),
        poison=BuryPoison(store, broker),
        messages=TendMessages(store, broker, telemetry, decisions, rules.wake, rules.overdue),
        mail=SweepMail(store, broker, telemetry, TellAgents(store, broker, context.epochs.current)),
        prune=None if context.blobs is None else Prune(store, context.blobs, broker, telemetry, *rules.pruning),
        rollouts=DriveRollouts(store, broker, telemetry, decisions),
        going_on=going_on,
    )


class _Leading:
    """What begins and ends with leadership."""

    def __init__(self, context: ControllerContext) -> None:
        rules = context.rules
        self.leadership = Leadership(
            context.election or context.broker,
            context.holder,
            clock=context.clock,
            lease=rules.leader_lease,
            renew=rules.leader_renew,
            telemetry=context.telemetry,
            on_gain=self.gained,
            on_loss=self.lost,
        )
        self._acting = Acting(self.leadership)
        self.services = create_services(context, going_on=self._acting.going_on)
        self._context = context
        self._rota = self.services.rota(context)
        self._leader = self._loop("leader", self._acting.only(self._rota), rules.sweep_every)

    def components(self) -> list[Component]:
        """The loops, and the lease last: nothing is asked of them before."""
        rules = self._context.rules
        only = self.leadership.only
        promote = self._loop("promote", only(lambda: _promote(self._context, self.services)), rules.tick_every)
        relay = self._loop("relay", only(lambda: _relay(self._context, self.services)), rules.relay_every)
        # Apart from the rota: the Redis of jobs may be another one, and away.
        jobs = self._loop("tell_jobs", only(lambda: _tell_jobs(self._context)), rules.jobs_every)
        # Apart, too: a mailbox full of messages that ends is seconds of work.
        mail = self._loop("mail", only(self.services.mail), rules.mail_every)
        loops: list[Component] = [self._leader, promote, relay, jobs, mail]
        if self.services.prune is not None:  # apart: it deletes for seconds, and nobody's recovery may wait for it
            prune = self.services.prune
            loops.append(self._loop("prune", only(lambda: _prune(prune, self.leadership)), rules.prune_every))
        fire = self._context.schedules
        if fire is not None:
            loops.append(self._loop("schedules", only(lambda: _fire(fire, self.leadership)), rules.schedules_every))
        # Apart, each: a target is a program of others, and may take its time.
        scaled = self._context.scaling
        loops += [self._loop(f"scale-{each.pool}", only(each), each.every) for each in scaled]
        tidy = self._context.tidy
        if tidy is not None:  # apart from the rows: a volume may be away
            loops.append(self._loop("tidy", only(lambda: _done(tidy())), rules.prune_every))
        return [*loops, self.leadership]

    def gained(self) -> None:
        """A new leader knows no clock and owes every duty."""
        self.services.clocks.begin()
        self.services.letters.begin()
        self.services.ready.restart()
        for each in self._context.scaling:
            each.begin()
        self._rota.restart()
        self._leader.wake()

    def lost(self) -> None:
        """The figures are another's now."""
        self.services.measure.clear()
        self.services.pools.clear()
        self.services.jobs.clear()
        self.services.letters.clear()
        self.services.messages.clear()
        self.services.mail.clear()
        self.services.rollouts.clear()
        for each in self._context.scaling:
            each.clear()

    def _loop(self, name: str, work: Callable[[], timedelta | None], interval: timedelta) -> Loop:
        return Loop(
            name,
            work,
            interval=interval,
            clock=self._context.clock,
            telemetry=self._context.telemetry,
            chance=self._context.ids.chance,
        )


def create_controller(context: ControllerContext) -> list[Component]:
    """The components, in the order in which a group starts them."""
    leading = _Leading(context)
    components = leading.components()
    if context.endpoint is not None:
        components.append(_probe(context, context.endpoint, leading.leadership))
    return components


def _promote(context: ControllerContext, services: Services) -> timedelta | None:
    services.promote(context.epochs.current())
    return None


def _prune(prune: Prune, leadership: Leadership) -> timedelta | None:
    prune(leadership.leads)
    return None


def _fire(fire: FireSchedules, leadership: Leadership) -> timedelta | None:
    return timedelta(0) if fire(leadership.leads) else None


def _done(_: object) -> timedelta | None:
    return None


def _tell_jobs(context: ControllerContext) -> timedelta | None:
    context.tell_jobs()
    return None


def _relay(context: ControllerContext, services: Services) -> timedelta | None:
    if not services.keep_epoch.settled:
        return None
    full = services.relay(context.epochs.current()) >= services.relay.limit
    return timedelta(0) if full else None


def _probe(context: ControllerContext, endpoint: Endpoint, leadership: Leadership) -> Probe:
    election = context.election or context.broker
    checks: dict[str, Callable[[], object]] = {"database": context.store.check, "redis": context.broker.leader}
    if election is not context.broker:
        checks["election"] = election.leader

    def reasons() -> list[str]:
        found = []
        for name, check in checks.items():
            try:
                check()
            except OahError as error:
                found.append(f"{name}: {error.message}")
        return found

    def decisions() -> dict[str, Any]:
        return {"items": [asdict(each) for each in context.decisions.last()], "next_cursor": None}

    def controller() -> dict[str, Any]:
        election = context.election or context.broker
        return {"holder": context.holder, "leader": election.leader(), "leads": leadership.leads()}

    return Probe(
        host=endpoint.host,
        port=endpoint.port,
        reasons=reasons,
        metrics=endpoint.metrics,
        pages={"/decisions": decisions, "/controller": controller},
    )
