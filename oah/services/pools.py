"""Pools, for people and for other people's autoscalers: what a pool has, what it is asked for, and what was decided
about it lately."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.worker import WorkerReport
from oah.core.policy.quantiles import merged, quantile
from oah.errors import NotFound, Unavailable
from oah.ports.broker import Broker
from oah.ports.clock import Clock
from oah.ports.scaling import DecisionFilter, ScaleDecision
from oah.ports.store import Store
from oah.services.signals import PoolSignals, PoolView, Said

SHOWN = 8
"""Decisions of a pool that are shown with it; the list of decisions has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSnapshot:
    """A pool at one moment. ``wait_p50``, ``wait_p95``: of the runs started in the last five minutes."""

    view: PoolView
    decisions: tuple[ScaleDecision, ...]
    """The newest first."""
    wait_p50: timedelta | None
    wait_p95: timedelta | None

    @property
    def desired(self) -> int | None:
        """Units that its controller wants, as it said last; None: nobody has decided about this pool."""
        return self.decisions[0].desired if self.decisions else None

    @property
    def workers(self) -> tuple[WorkerReport, ...]:
        """Those that report and do not stop."""
        return self.view.workers


@dataclass(frozen=True, slots=True)
class Pools:
    """Reads only; any thread. ``trust``: for how long the queues of a new epoch are not believed to be filled."""

    store: Store
    broker: Broker
    clock: Clock
    trust: timedelta
    weigh: Callable[[str], int] = lambda profile: 1

    def all(self, seen: Said | None = None) -> list[PoolSnapshot]:
        """Those in which anything waits, runs or serves. ``seen``: what the broker has just said. Raises
        Unavailable."""
        return [self._snapshot(view) for view in self._signals().views(seen=seen)]

    def one(self, pool: str) -> PoolSnapshot:
        """Raises Unavailable; NotFound for one in which nothing is, and about which nothing was ever decided."""
        [view] = [each for each in self._signals().views([pool]) if each.pool == pool]
        found = self._snapshot(view)
        if not (view.workers or view.load or view.capped or found.decisions):
            raise NotFound(f"no pool '{pool}'")
        return found

    def measured(self, pool: str) -> PoolView:
        """For an autoscaler that believes what it is told. Raises Unavailable when that could be too little: an empty
        queue that is only being filled again is no reason to shrink."""
        view = self._signals().view(pool)
        if not view.signals.sure:
            raise Unavailable(f"the load of pool '{pool}' is not known for sure: {', '.join(view.doubts)}")
        return view

    def _signals(self) -> PoolSignals:
        return PoolSignals(self.store, self.broker, self.clock, trust=self.trust, weigh=self.weigh)

    def _snapshot(self, view: PoolView) -> PoolSnapshot:
        waits = merged(buckets for worker in view.workers for buckets in worker.waits.values())
        return PoolSnapshot(
            view=view,
            decisions=_decisions(self.store, view.pool),
            wait_p50=quantile(waits, 0.5),
            wait_p95=quantile(waits, 0.95),
        )


def _decisions(store: Store, pool: str) -> tuple[ScaleDecision, ...]:
    found: Sequence[ScaleDecision] = store.scale_decisions(DecisionFilter(pool=pool, limit=SHOWN)).items
    return tuple(found)
