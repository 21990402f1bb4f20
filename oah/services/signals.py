"""Signals: what scaling is decided by, of one pool or of all. Reads only.

What waits is the broker's figure, what runs SQL's, what could run more the registry's. Their cost is that of lanes,
active runs and workers, whatever the backlog. The load (ready + running) does not come from the registry: workers that
stop reporting make a pool no smaller. A session counts once, however many runs wait in it: it can use one slot, or as
many as its profile weighs; and not at all where more workers would change nothing (caps, pauses, a profile that those
who are here do not serve, a home on a host that is full).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from oah.core.model.epoch import EpochState
from oah.core.model.ids import WorkerId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.core.model.worker import WorkerReport, WorkerState
from oah.core.policy.quantiles import merged, quantile
from oah.core.policy.scaling import Signals
from oah.errors import Unavailable
from oah.ports.broker import Broker
from oah.ports.clock import Clock
from oah.ports.dispatch import LaneDepth, QueueFigures
from oah.ports.figures import LaneRuns
from oah.ports.store import Store

MANY = 3
"""One part in so many of the workers of a pool that vanish at once is a blip of the registry until it has lasted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """One pool at one moment. ``workers``: those that report and do not stop, by id."""

    pool: str
    signals: Signals
    workers: tuple[WorkerReport, ...] = ()
    capped: int = 0
    """Ready sessions that more slots would not help: a cap or a pause keeps them out. Not part of
    the signals."""
    unserved: int = 0
    """The same of a profile that none of the workers serves: another one like them would not, either."""
    bound: Mapping[str, int] = field(default_factory=dict)
    """Slots that sessions at home on a host need beyond what its workers have free, by host: workers elsewhere would
    not help."""
    doubts: tuple[str, ...] = ()
    """Why the signals are not sure."""

    @property
    def load(self) -> int:
        """Runs that need a slot, now: ready and running; at least 1 while an agent waits. What an autoscaler that
        knows nothing else divides by the slots of a replica: zero means that nothing would be interrupted."""
        signals = self.signals
        return max(signals.ready + signals.running, 1 if signals.waiting else 0)


@dataclass(frozen=True, slots=True)
class Said:
    """What the broker said: figures, then the registry."""

    figures: QueueFigures
    workers: Sequence[WorkerReport]


@dataclass(frozen=True, slots=True)
class _Look:
    """Everything, read once."""

    ready: Sequence[LaneDepth]
    runs: Mapping[Lane, LaneRuns]
    workers: Sequence[WorkerReport]
    doubts: tuple[str, ...]

    def pools(self) -> set[str]:
        waiting = {depth.lane.pool for depth in self.ready if depth.sessions}
        return waiting | {lane.pool for lane in self.runs} | {worker.pool for worker in self.workers}


@dataclass(slots=True)
class _Members:
    """Who reported in a pool, and since when somebody does not any more, by this process's clock."""

    known: dict[WorkerId, WorkerReport] = field(default_factory=dict)
    missing: dict[WorkerId, float] = field(default_factory=dict)


class PoolSignals:
    """One object per leader, asked by one thread at a time: it remembers who was there. ``trust``: for how long what
    has vanished (a worker, the filled queues of a new epoch) is not believed to be gone. ``weigh``: slots that a run of
    a profile takes."""

    def __init__(
        self,
        store: Store,
        broker: Broker,
        clock: Clock,
        *,
        trust: timedelta,
        weigh: Callable[[str], int] = lambda profile: 1,
    ) -> None:
        self._store = store
        self._broker = broker
        self._clock = clock
        self._trust = trust
        self._weigh = weigh
        self._members: dict[str, _Members] = {}
        self._last: dict[str, PoolView] = {}

    def __call__(self, pool: str, *, starting: int = 0) -> Signals:
        """Of a pool; unsure instead of raising Unavailable. ``starting``: what the caller knows to be on its way."""
        return replace(self.view(pool).signals, starting=starting)

    def view(self, pool: str) -> PoolView:
        """The same with the workers. When a store is away: what was seen last, and unsure."""
        try:
            look = self._look()
        except Unavailable as error:
            seen = self._last.get(pool, PoolView(pool=pool, signals=Signals()))
            return replace(seen, signals=replace(seen.signals, sure=False), doubts=(error.message,))
        return self._judged(pool, look)

    def views(self, also: Iterable[str] = (), *, seen: Said | None = None) -> list[PoolView]:
        """All pools in which anything waits, runs or serves, and those named, by name. ``seen``: what the broker has
        just said. Raises Unavailable."""
        look = self._look(seen)
        return [self._judged(pool, look) for pool in sorted(look.pools() | set(also))]

    def _look(self, said: Said | None = None) -> _Look:
        """SQL between two looks at the queues: what starts, or ends and is ready again, meanwhile counts twice rather
        than never."""
        before = said.figures if said is not None else self._broker.figures()
        runs = self._store.lane_runs()
        epoch = self._store.current_epoch()
        after = said.figures if said is not None else self._broker.figures()
        workers = said.workers if said is not None else self._broker.workers()
        seen = self._broker.view()
        doubts = []
        if seen.id != epoch or seen.state is not EpochState.OPEN:
            doubts.append("the queues are being rebuilt")
        elif seen.open_for is None or seen.open_for < self._trust:
            doubts.append("the queues were rebuilt a moment ago")
        return _Look(_larger(before.ready, after.ready), runs, workers, tuple(doubts))

    def _judged(self, pool: str, look: _Look) -> PoolView:
        workers = sorted((worker for worker in look.workers if worker.pool == pool), key=lambda worker: worker.id)
        doubts = (*look.doubts, *self._vanished(pool, workers))
        view = pool_view(
            pool,
            ready=[depth for depth in look.ready if depth.lane.pool == pool],
            runs={lane: runs for lane, runs in look.runs.items() if lane.pool == pool},
            workers=[worker for worker in workers if worker.state is not WorkerState.STOPPING],
            doubts=doubts,
            weigh=self._weigh,
        )
        self._last[pool] = view
        return view

    def _vanished(self, pool: str, workers: Sequence[WorkerReport]) -> tuple[str, ...]:
        """Who went without a word, lately. One that comes back under its name has only been restarted."""
        members, now = self._members.setdefault(pool, _Members()), self._clock.monotonic()
        here = {worker.id: worker for worker in workers}
        names = {(worker.host, worker.name) for worker in workers}
        for worker_id, last in members.known.items():
            if worker_id not in here and not last.draining and last.state is not WorkerState.STOPPING:
                members.missing.setdefault(worker_id, now)
        gone = [
            worker_id
            for worker_id, since in members.missing.items()
            if worker_id in here
            or now - since >= self._trust.total_seconds()
            or _place(members.known[worker_id]) in names
        ]
        for worker_id in gone:
            del members.missing[worker_id]
        members.known = {**{each: members.known[each] for each in members.missing}, **here}
        if len(members.missing) * MANY > len(members.known):
            return (f"{len(members.missing)} of {len(members.known)} workers have stopped reporting",)
        return ()


def _larger(before: Sequence[LaneDepth], after: Sequence[LaneDepth]) -> list[LaneDepth]:
    """Of each lane and class, where more could be taken."""
    depths: dict[tuple[Lane, ReadyClass], LaneDepth] = {}
    for depth in (*before, *after):
        where = (depth.lane, depth.ready_class)
        known = depths.get(where)
        if known is None or depth.sessions - depth.capped >= known.sessions - known.capped:
            depths[where] = depth
    return list(depths.values())


def _place(worker: WorkerReport) -> tuple[str, str]:
    return worker.host, worker.name


def pool_view(
    pool: str,
    *,
    ready: Sequence[LaneDepth],
    runs: Mapping[Lane, LaneRuns],
    workers: Sequence[WorkerReport],
    doubts: tuple[str, ...] = (),
    weigh: Callable[[str], int] = lambda profile: 1,
) -> PoolView:
    """Add up. What waits and runs counts as many slots as it takes; slots are those of workers that take new runs."""
    weights = _Weights(workers, weigh)
    unserved = [depth for depth in ready if workers and not _served(depth.lane, workers)]
    bound: dict[str, int] = {}
    waiting = dict.fromkeys(ReadyClass, 0)
    for depth in ready:
        slots = (depth.sessions - depth.capped) * weights.asked(depth.lane.profile)
        if depth not in unserved:
            beyond = _beyond(depth.lane, slots, workers)
            waiting[depth.ready_class] += slots - beyond
            if beyond:
                bound[depth.lane.host] = bound.get(depth.lane.host, 0) + beyond
    running = sum(each.running * weights.taken(lane.profile) for lane, each in runs.items())
    kept = sum(depth.sessions - depth.capped for depth in unserved)
    if (kept or bound) and not running and not any(waiting.values()):
        waiting[ReadyClass.INTERACTIVE] = 1  # somebody stays to say so: of an empty pool it would not be known
    waits = merged(buckets for worker in workers for buckets in worker.waits_now.values())
    helped = [depth for depth in ready if depth not in unserved and depth.lane.host not in bound]
    signals = Signals(
        ready=sum(waiting.values()),
        subagent_ready=waiting[ReadyClass.SUBAGENT],
        running=running,
        waiting=sum(each.waiting for each in runs.values()),
        slots=sum(usable(worker) for worker in workers),
        idle_slots=sum(worker.free for worker in workers),
        oldest_wait=max((depth.oldest for depth in helped if depth.oldest is not None), default=timedelta(0)),
        wait_p95=quantile(waits, 0.95),
        sure=not doubts,
    )
    return PoolView(
        pool=pool,
        signals=signals,
        workers=tuple(workers),
        capped=sum(depth.capped for depth in ready),
        unserved=kept,
        bound=bound,
        doubts=doubts,
    )


class _Weights:
    """Slots by profile: as the workers say, whose profiles may be others than ours; no more than one of them has."""

    def __init__(self, workers: Sequence[WorkerReport], weigh: Callable[[str], int]) -> None:
        self._weigh = weigh
        self._told: dict[str, int] = {}
        for worker in workers:
            for profile in worker.profiles if worker.slots_max else ():  # an older one does not say
                self._told[profile] = max(worker.weights.get(profile, 1), self._told.get(profile, 1))
        self._most = max((worker.capacity for worker in workers), default=0)

    def taken(self, profile: str) -> int:
        """By a run."""
        weight = max(self._told.get(profile) or self._weigh(profile), 1)
        return min(weight, self._most) if self._most else weight

    def asked(self, profile: str) -> int:
        """For a run that waits. What is left of a worker when no further one fits is of no use to it: of weight 5 each
        asks for the 8 slots of a whole worker."""
        weight = self.taken(profile)
        return -(-self._most // (self._most // weight)) if self._most else weight


def _served(lane: Lane, workers: Sequence[WorkerReport]) -> bool:
    """By any of these. A host that nobody reports from may come back; if not, its sessions are soon bound no more."""
    return any(lane.profile in worker.profiles for worker in workers)


def _beyond(lane: Lane, slots: int, workers: Sequence[WorkerReport]) -> int:
    """Of so many slots that sessions of one host wait for, those that its workers do not have free."""
    there = [worker for worker in workers if worker.host == lane.host]
    return max(0, slots - sum(worker.free for worker in there)) if there else 0


def usable(worker: WorkerReport) -> int:
    """Slots of a worker that takes runs; of one under pressure those that it uses."""
    if worker.cordoned or worker.draining:
        return 0
    return worker.capacity if worker.takes else worker.taken
