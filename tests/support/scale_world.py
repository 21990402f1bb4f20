"""A pool under a clock of the test: workers that take commands from SQL, a target that starts and ends them, leaders.

Decisions and commands are rows of a real store; what the registry and the figures say is made here. Whoever ends a
worker that works is found out: ``interrupted``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from oah.adapters.sql.store import open_store
from oah.core.model.ids import WorkerId
from oah.core.model.worker import WorkerReport, WorkerState
from oah.core.policy import scaling
from oah.core.policy.scaling import Signals
from oah.errors import OahError, Unavailable
from oah.ports.commands import CommandKind
from oah.ports.scaling import DecisionFilter, Outcome, ScaleDecision, TargetState
from oah.ports.telemetry import NullTelemetry
from oah.services.scale import ScaleFleet, ScaleRules
from oah.services.signals import PoolView
from tests.support.clock import StillClock

POOL = "default"
STARTS = timedelta(seconds=45)
QUICK = scaling.Rules(
    minimum=0, maximum=100, up_window=1, down_window=2, up_cooldown=timedelta(0), down_cooldown=timedelta(0)
)


@dataclass(slots=True)
class Unit:
    """A worker. ``silent``: it works on, and the registry knows nothing of it."""

    name: str
    begins: float
    born: float
    busy: int = 0
    parked: int = 0
    nonce: int = 1
    cordoned: bool = False
    draining: bool = False
    silent: bool = False
    deaf: bool = False
    """Takes no commands."""
    shown: int | None = None
    """Runs that its report tells of; None: as it is. The store always knows."""
    heard: list[str] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> WorkerId:
        return WorkerId(f"{self.name}.{self.nonce}")

    def report(self, *, slots: int) -> WorkerReport:
        started = datetime.fromtimestamp(self.born, UTC)
        busy = self.busy if self.shown is None else self.shown
        state = WorkerState.BUSY if busy else WorkerState.IDLE
        return WorkerReport(
            id=self.id, name=self.name, host="h", pid=1, pool=POOL, profiles=("shell",), state=state, slots=slots,
            busy=busy, parked=self.parked, cordoned=self.cordoned, draining=self.draining, version="1",
            started_at=started,
        )  # fmt: skip


class FakeTarget:
    """A Deployment that does as it is told. ``fails``: what it answers next. ``highest``: takes the last names."""

    name = "fake"

    def __init__(self, world: ScaleWorld) -> None:
        self._world = world
        self.size = 0
        self.writes: list[tuple[int, tuple[str, ...]]] = []
        self.fails: OahError | None = None
        self.highest = False
        self.quota = 1000
        """More units than this are asked for in vain."""
        self.before_resize: Callable[[], None] = lambda: None
        self._numbers = 0

    def read(self) -> TargetState:
        self._fail()
        return TargetState(self.size, {name: f"pod/{name}" for name in self._world.units})

    def choose(self, state: TargetState, idle: Sequence[str], count: int) -> Sequence[str]:
        members = list(state.members)
        count = max(0, count - (state.size - len(members)))
        if self.highest:
            return sorted(members, key=lambda name: int(name[1:]), reverse=True)[:count]
        wanted = [name for name in idle if name in state.members]
        return [*wanted, *(name for name in members if name not in wanted)][:count]

    def resize(self, state: TargetState, size: int, *, victims: Sequence[str] = ()) -> None:
        self._fail()
        self.before_resize()
        if state.size != self.size:
            raise Unavailable("changed meanwhile")
        self.writes.append((size, tuple(victims)))
        for name in victims:
            self._world.end(name)
        self.size = size
        self.come()

    def come(self) -> None:
        """Those that are asked for and can come do."""
        while len(self._world.units) < min(self.size, self.quota):
            self._numbers += 1
            self._world.start(f"w{self._numbers}", STARTS)

    def close(self) -> None:
        """Nothing."""

    def _fail(self) -> None:
        if self.fails is not None:
            raise self.fails


class Books:
    """A real store whose clock is the world's, and in which workers own what the world says."""

    def __init__(self, world: ScaleWorld, path: Path) -> None:
        self._world = world
        self.real = open_store(f"sqlite:///{path}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def now(self) -> float:
        return self._world.clock.seconds

    def owners_by_worker(self, ids: Sequence[WorkerId]) -> list[Any]:
        return [
            SimpleNamespace(worker_id=unit.id, run_id="run" if number < unit.busy else None)
            for unit in self._world.units.values()
            for number in range(unit.busy + unit.parked)
            if unit.id in ids
        ]

    def owning_names(self, names: Sequence[str], *, host: str | None = None) -> set[str]:
        return {unit.name for unit in self._world.units.values() if unit.name in names and unit.busy + unit.parked}


class ScaleWorld:
    """One pool of units with ``slots`` slots each. ``books``: a SQLite database that has its tables."""

    def __init__(self, books: Path, *, slots: int = 1) -> None:
        self.clock = StillClock()
        self.slots = slots
        self.units: dict[str, Unit] = {}
        self.ready = 0
        self.sure = True
        self.others: list[WorkerReport] = []
        """Workers of the pool that its target does not have."""
        self.bound: dict[str, int] = {}
        self.interrupted: list[str] = []
        self.ended: list[str] = []
        self.target = FakeTarget(self)
        self.store: Any = Books(self, books)
        self._ids = 0

    def close(self) -> None:
        self.store.real.close()

    def have(self, busy: int, idle: int = 0) -> None:
        """A pool that has been there for a while."""
        for number in range(1, busy + idle + 1):
            unit = self.start(f"w{number}", timedelta(0))
            unit.born -= 1000 - number
            unit.busy = 1 if number <= busy else 0
        self.target.size = self.target._numbers = busy + idle

    def start(self, name: str, after: timedelta) -> Unit:
        moment = self.clock.seconds + after.total_seconds()
        self.units[name] = Unit(name, begins=moment, born=moment)
        return self.units[name]

    def end(self, name: str) -> None:
        unit = self.units.pop(name)
        self.ended.append(name)
        if unit.busy:
            self.interrupted.append(name)

    def restart(self, name: str) -> None:
        """A new incarnation, which knows nothing of what its predecessor was told."""
        old = self.units[name]
        self.units[name] = Unit(name, begins=self.clock.seconds, born=self.clock.seconds, nonce=old.nonce + 1)

    def leader(self, rules: scaling.Rules = QUICK, holder: str = "one", **more: Any) -> ScaleFleet:
        signals = SimpleNamespace(view=lambda pool: self._view())
        return ScaleFleet(
            store=self.store,
            broker=SimpleNamespace(look=lambda *a, **k: None),  # type: ignore[arg-type]
            signals=signals,  # type: ignore[arg-type]
            target=more.pop("target", self.target),
            rules=ScaleRules(pool=POOL, scaling=rules, **more),
            clock=self.clock,
            ids=self,
            telemetry=NullTelemetry(),
            holder=holder,
        )

    def passes(self, leader: ScaleFleet, count: int = 1, *, seconds: float = 5) -> None:
        """So many passes of the leader, with the workers doing what they were told in between."""
        for _ in range(count):
            leader()
            self.tick(seconds)

    def tick(self, seconds: float) -> None:
        self.clock.seconds += seconds
        for unit in self.units.values():
            for command in [] if unit.deaf else self.store.take_commands(unit.id):
                unit.heard.append(command.kind.value)
                unit.told = dict(command.data)
                unit.cordoned = unit.draining = command.kind is not CommandKind.UNCORDON

    def decisions(self) -> list[ScaleDecision]:
        """The oldest first."""
        return list(self.store.scale_decisions(DecisionFilter(pool=POOL)).items)[::-1]

    def outcomes(self) -> list[tuple[int, int, Outcome]]:
        return [(each.current, each.desired, each.outcome) for each in self.decisions()]

    def going(self) -> set[str]:
        found = self.store.open_decision(POOL)
        return set() if found is None else set(found.going)

    def new(self, kind: str) -> str:
        self._ids += 1
        return f"{kind}_{self._ids:06d}"

    def _view(self) -> PoolView:
        here = [each for each in self.units.values() if each.begins <= self.clock.seconds and not each.silent]
        reports = (*(each.report(slots=self.slots) for each in here), *self.others)
        taking = [each for each in reports if each.takes]
        signals = Signals(
            ready=self.ready,
            running=sum(each.busy for each in (*self.units.values(), *self.others)),
            slots=sum(each.slots for each in taking),
            idle_slots=sum(each.slots - each.busy for each in taking),
            sure=self.sure,
        )
        return PoolView(pool=POOL, signals=signals, workers=reports, bound=self.bound)


def bounds(least: int, most: int) -> scaling.Rules:
    """Rules that only differ in these."""
    return replace(QUICK, minimum=least, maximum=most)
