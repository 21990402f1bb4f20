"""What one pass of scaling sees: the target, who reports of its members, and who is going by the open decision."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from oah.core.model.scaling import Going
from oah.core.model.worker import WorkerReport
from oah.core.policy.shrinking import Member
from oah.errors import Broken, Conflict, OahError, Unavailable
from oah.ports.clock import Clock
from oah.ports.scaling import NONE, ScaleDecision, ScaleTarget, TargetState
from oah.ports.store import Store
from oah.services.signals import PoolSignals, PoolView, usable

AGAIN = timedelta(seconds=15)
"""A worker that does not do what it was told is told again; a removal whose end nobody saw was none."""


ROLLING = "a rolling restart is under way"
"""Who is taken away while others come and go is not for two to say."""

NAMES = "workers report under other names than those of the target: none of its members is known"
"""Whoever does not report would be thought gone, with all that he works at."""

LACKS = timedelta(seconds=60)
"""What is not there for so long is not going to be."""


class TargetFailed(Exception):
    """The target did not do or say what it was asked; ``cause`` says why."""

    def __init__(self, cause: OahError) -> None:
        super().__init__(cause.message)
        self.cause = cause


@contextlib.contextmanager
def asking() -> Iterator[None]:
    """Around a call of the target. Raises TargetFailed."""
    try:
        yield
    except (Unavailable, Broken, Conflict) as error:
        raise TargetFailed(error) from error


@dataclass(frozen=True, slots=True)
class Look:
    """One pass: what was seen, and what it means. ``open``: the decision that is not done yet."""

    state: TargetState
    view: PoolView
    members: tuple[Member, ...]
    open: ScaleDecision | None
    lacking: timedelta = timedelta(0)
    """For how long units have been asked for that are not there at all."""
    foreign_for: timedelta | None = None
    """For how long the open decision has been that of another target; None: it is not."""

    @property
    def sure(self) -> bool:
        """What is seen may be acted on where that takes something away."""
        return self.view.signals.sure

    @property
    def whole(self) -> bool:
        """The members are those that there will be. Who is taken away while others are made is not for us to say."""
        return not self.unborn or self.lacking >= LACKS

    @property
    def going(self) -> dict[str, Going]:
        """Members that are going, by name."""
        return {each.name: each.going for each in self.members if each.going is not None}

    @property
    def staying(self) -> int:
        """The size when all that are going have gone."""
        return self.state.size - len(self.going)

    @property
    def unborn(self) -> int:
        """Units that were asked for and are not there at all."""
        return max(0, self.state.size - len(self.state.members))

    def starting(self, longest: timedelta) -> int:
        """Units that do not report yet, and may be going to: those silent for less than ``longest``."""
        silent = [each for each in self.members if each.report is None and each.going is None]
        return self.unborn + sum(1 for each in silent if each.silent < longest)

    def of(self, name: str) -> Member:
        """The member of this name."""
        return next((each for each in self.members if each.name == name), Member(name=name))


class Lookout:
    """Remembers since when something holds; for one thread."""

    def __init__(self, store: Store, signals: PoolSignals, target: ScaleTarget | None, clock: Clock, pool: str) -> None:
        self._store = store
        self._signals = signals
        self._target = target
        self._clock = clock
        self._pool = pool
        self._memories: dict[str, dict[str, float]] = {}

    def forget(self) -> None:
        """A new leadership."""
        self._memories.clear()

    def look(self) -> Look:
        """Raises TargetFailed, and Unavailable of SQL; with the broker away the view is not sure."""
        target = self._target
        with asking():
            state = None if target is None else target.read()
        view = self._signals.view(self._pool)
        if any(each.pool == self._pool for each in self._store.open_rollouts()):
            view = replace(view, signals=replace(view.signals, sure=False), doubts=(*view.doubts, ROLLING))
        if state is None:  # nobody says what is wanted: what there is
            state = TargetState(len(view.workers), {each.name: each.id for each in view.workers})
        row = self._store.open_decision(self._pool)
        today = None if row is None else self.today()
        reports = {
            each.name: each
            for each in sorted(view.workers, key=lambda each: each.started_at)
            if state.host in (None, each.host)
        }
        view = _own(view, state)
        for memory in self._memories.values():
            for name in [each for each in memory if each and each not in state.members]:
                del memory[name]
        members = tuple(self._member(name, reports.get(name), row, today) for name in state.members)
        look = Look(state, view, members, row)
        foreign = row is not None and row.target != (NONE if target is None else target.name)
        foreign_for = timedelta(seconds=self.since("foreign", "", holds=foreign))
        lacking = timedelta(seconds=self.since("lacking", "", holds=look.unborn > 0))
        return replace(look, lacking=lacking, foreign_for=foreign_for if foreign else None)

    def since(self, what: str, name: str, *, holds: bool) -> float:
        """For how many seconds it has held, as far as this leader has seen."""
        memory = self._memories.setdefault(what, {})
        if not holds:
            memory.pop(name, None)
            return 0.0
        now = self._clock.monotonic()
        return now - memory.setdefault(name, now)

    def today(self) -> datetime:
        """The database's clock."""
        return datetime.fromtimestamp(self._store.now(), UTC)

    def _member(
        self, name: str, report: WorkerReport | None, row: ScaleDecision | None, today: datetime | None
    ) -> Member:
        silent = self.since("silent", name, holds=report is None)
        going = None if row is None else row.going.get(name)
        removing = self.since("removing", name, holds=going is not None and going.removing)
        member = Member(name=name, report=report, silent=timedelta(seconds=silent))
        if going is None or today is None:
            return member
        if report is not None and not going.ours and not member.stays_out:
            return member  # whoever cordoned it has uncordoned it
        if removing >= AGAIN.total_seconds():
            going = replace(going, removing=False)
        return replace(member, going=going, chosen=today - going.since)


def _own(view: PoolView, state: TargetState) -> PoolView:
    """Of a pool that has other workers, too (another workload, machines that nobody scales), what is left for the
    target's: what those others carry needs nobody here. Whom the target does start would be on its own host."""
    # By name: the last incarnation of one that crashed may still be listed, and SQL still count its runs.
    others = [each for each in view.workers if each.name not in state.members or state.host not in (None, each.host)]
    if others and state.members and len(others) == len(view.workers):
        return replace(view, signals=replace(view.signals, sure=False), doubts=(*view.doubts, NAMES))
    signals = view.signals
    if state.host is not None:
        signals = replace(signals, ready=signals.ready + view.bound.get(state.host, 0))
    signals = replace(
        signals,
        running=max(0, signals.running - sum(each.taken for each in others)),
        slots=max(0, signals.slots - sum(usable(each) for each in others)),
        idle_slots=max(0, signals.idle_slots - sum(each.free for each in others)),
    )
    return replace(view, signals=signals)
