"""The book of a pool's scaling: its decisions as rows, and its figures. What is the same as before is told once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from oah.core.policy.scaling import Decision
from oah.errors import OahError
from oah.ports.clock import Ids
from oah.ports.scaling import DecisionFilter, NewDecision, Outcome, ScaleDecision
from oah.ports.store import Store
from oah.ports.telemetry import Telemetry
from oah.services.scale_look import Look
from oah.services.scale_story import OUTSIDE, why

log = logging.getLogger(__name__)

_SHOWN = ("size", "desired", "going", "reporting")


class ScaleBook:
    """Of one pool and one leader; for one thread."""

    def __init__(self, store: Store, ids: Ids, telemetry: Telemetry, *, pool: str, target: str, holder: str) -> None:
        self._store = store
        self._ids = ids
        self._telemetry = telemetry
        self._pool = pool
        self._target = target
        self._holder = holder
        self.forget()

    def forget(self) -> None:
        """A new leadership."""
        self.failure: str | None = None
        """What the target says as long as it fails."""
        self.told_size: int | None = None
        """The size that the rows are known to agree with."""
        self._size = 0

    def clear(self) -> None:
        """The figures are another's now."""
        for what in _SHOWN:
            self._telemetry.forget("oah_scale_units", pool=self._pool, what=what)

    def row(self, current: int, desired: int, reason: str, outcome: Outcome) -> NewDecision:
        """To be added."""
        return NewDecision(
            id=self._ids.new("dec"),
            pool=self._pool,
            target=self._target,
            holder=self._holder,
            current=current,
            desired=desired,
            reason=str(reason),
            outcome=outcome,
        )

    def end(self, row: ScaleDecision, outcome: Outcome, detail: Mapping[str, Any]) -> None:
        """What came of it."""
        self._store.change_decision(row, outcome=outcome, detail=detail, going=row.going, by=self._holder)
        self._telemetry.count("oah_scale_decisions_total", pool=self._pool, reason=row.reason, outcome=str(outcome))

    def note(self, look: Look, decision: Decision, story: Mapping[str, Any]) -> None:
        """Nobody to act on it: written down when it is another than the last."""
        rows = self._store.scale_decisions(DecisionFilter(pool=self._pool, limit=1)).items
        if decision.desired == (rows[0].desired if rows else look.state.size):
            return
        row = self.row(look.state.size, decision.desired, decision.reason, Outcome.HELD)
        self._store.add_decision(replace(row, inputs=story, detail={"why": "there is no target"}))
        self._telemetry.count("oah_scale_decisions_total", pool=self._pool, reason=row.reason, outcome=str(row.outcome))

    def tell_size(self, size: int) -> None:
        """Somebody else has changed it, which is all that the last decision does not say."""
        rows = self._store.scale_decisions(DecisionFilter(pool=self._pool, limit=1)).items
        if rows and rows[0].outcome is Outcome.SCALED and rows[0].desired != size:
            self._store.add_decision(self.row(rows[0].desired, size, OUTSIDE, Outcome.SCALED))
        self.told_size = size

    def failed(self, error: OahError) -> None:
        """The target has. Once, until it says something else or works again."""
        self._telemetry.count("oah_scale_target_failures_total", pool=self._pool, target=self._target)
        if error.message == self.failure:
            return
        self.failure = error.message
        log.error("target %s of pool %s: %s", self._target, self._pool, error.message)
        row = self.row(self._size, self._size, "target", Outcome.FAILED)
        self._store.add_decision(replace(row, detail=why(error)))

    def show(self, look: Look, decision: Decision) -> None:
        """As gauges."""
        self._size = look.state.size
        reporting = sum(1 for each in look.members if each.report is not None)
        seen = (look.state.size, decision.desired, len(look.going), reporting)
        for what, count in zip(_SHOWN, seen, strict=True):
            self._telemetry.gauge("oah_scale_units", count, pool=self._pool, what=what)
