"""Prune: let go of what has aged out, in windows, children before parents.

A blob goes before the row that names it: a death in between leaves a reference to nothing, which readers take for "no
recording (any more)" and the next lap removes; the other way round a file would stay that nobody knows of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta

from oah.core.model.artifact import archives, prefixes
from oah.core.model.ids import RunId
from oah.core.policy.retention import Aged, Due, Rules, plan
from oah.ports.blobs import Blobs
from oah.ports.broker import Registry
from oah.ports.retention import Mark
from oah.ports.store import Store
from oah.ports.telemetry import Telemetry


@dataclass(slots=True)
class Prune:
    """``window`` rows at a time. ``registry``: who lives, so that nobody's own row goes; None: nobody says, they stay.

    Where a lap stands is remembered between the passes. Raises Unavailable: the next pass goes on there.
    """

    store: Store
    blobs: Blobs
    registry: Registry | None
    telemetry: Telemetry
    rules: Rules
    window: int = 500
    windows: int | None = 8
    """Of each kind in a pass; None: until the lap is over."""
    _marks: dict[Aged, Mark] = field(default_factory=dict)

    def __call__(self, going_on: Callable[[], bool] = lambda: True, *, dry_run: bool = False) -> dict[Aged, int]:
        """One pass: how much of each went (or would go)."""
        alive = {worker.id for worker in self.registry.workers()} if self.registry is not None else set()
        counts: dict[Aged, int] = {}
        for due in plan(self.rules):
            if due.what is Aged.WORKERS and self.registry is None:
                continue
            counts[due.what] = 0
            for _ in range(self.windows or 1_000_000_000):
                if not going_on():
                    return counts
                count, mark = self._window(due, self._marks.pop(due.what, None), alive, dry_run=dry_run)
                counts[due.what] += count
                if mark is None:
                    break
                self._marks[due.what] = mark
        return counts

    def _window(
        self, due: Due, after: Mark | None, alive: Collection[str], *, dry_run: bool
    ) -> tuple[int, Mark | None]:
        match due.what:
            case Aged.RECORDINGS:
                count, mark = self._recordings(due.age, after, dry_run=dry_run)
            case Aged.HOMES:
                count, mark = self._homes(due.age, after, dry_run=dry_run)
            case Aged.RUNS:
                count, mark = self._runs(due.age, after, dry_run=dry_run)
            case _:
                done = self.store.prune(due.what, due.age, after=after, limit=self.window, keep=alive, dry_run=dry_run)
                count, mark = done.count, done.mark
        if count and not dry_run:
            self.telemetry.count("oah_pruned_total", count, what=str(due.what))
        return count, mark

    def _recordings(self, age: timedelta, after: Mark | None, *, dry_run: bool) -> tuple[int, Mark | None]:
        found = self.store.aged_recordings(age, after=after, limit=self.window)
        if found.items and not dry_run:
            for each in found.items:
                self.blobs.delete(each.key)
            self.store.forget_recordings(found.items)
        return len(found.items), found.mark

    def _homes(self, age: timedelta, after: Mark | None, *, dry_run: bool) -> tuple[int, Mark | None]:
        """Archives. What is in directories goes with those that have them (services/tidy.py)."""
        found = self.store.aged_archives(age, after=after, limit=self.window)
        if found.ids and not dry_run:
            for session_id in found.ids:
                for key in list(self.blobs.keys(archives(session_id))):
                    self.blobs.delete(key)
            self.store.forget_archives(found.ids)
        return len(found.ids), found.mark

    def _runs(self, age: timedelta, after: Mark | None, *, dry_run: bool) -> tuple[int, Mark | None]:
        found = self.store.aged_runs(age, after=after, limit=self.window, with_events=dry_run)
        if dry_run:
            return len(found.ids), found.mark
        for key in found.blobs:
            self.blobs.delete(key)
        for run_id in found.ids:
            self._unnamed(run_id)
        return self.store.prune_runs(found.ids, age), found.mark

    def _unnamed(self, run_id: RunId) -> None:
        """Recordings of attempts that were lost, answers of those that were tried again: no row names them."""
        for prefix in prefixes(run_id):
            for key in list(self.blobs.keys(prefix)):
                self.blobs.delete(key)
