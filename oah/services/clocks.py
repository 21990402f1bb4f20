"""Clocks: compare Redis's and the database's clock with CLOCK_BOOTTIME, and hold recovery when one jumps (I7), or when
the database comes back after an absence: then the marks of the living are as old as those of the dead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from oah.core.policy import clocks
from oah.ports.broker import Broker
from oah.ports.clock import Clock
from oah.ports.store import Store
from oah.ports.telemetry import Telemetry
from oah.services.decisions import Decisions


class WatchClocks:
    """What one leader remembers. ``begin`` at every beginning of leadership, ``keep_watch`` in every pass, ``look``
    before every decision."""

    def __init__(
        self,
        store: Store,
        broker: Broker,
        clock: Clock,
        telemetry: Telemetry,
        rules: clocks.Rules,
        decisions: Decisions,
    ) -> None:
        self._sources: dict[str, Callable[[], float]] = {"redis": broker.now, "database": store.now}
        self._clock = clock
        self._telemetry = telemetry
        self._rules = rules
        self._decisions = decisions
        self._watches: dict[str, clocks.Watch] = {}
        self._marks_seen_at: float | None = None
        self.begin()

    def begin(self) -> None:
        """A new leader knows no baseline: recovery is on hold for one lease."""
        now = self._clock.boottime()
        self._watches = {name: clocks.begin(now, self._rules) for name in self._sources}
        self._marks_seen_at = None

    def keep_watch(self) -> bool:
        """One look of many at even distances. Raises Unavailable.

        A step shows only against an earlier reading, so there must be one however long nothing was to be judged. And a
        database that was away for half a lease makes every mark old: for one lease nobody is judged, so that its
        owners, or the next incarnations of those that died meanwhile, deliver what they kept.
        """
        self._read("database")
        seen_at, now = self._marks_seen_at, self._clock.boottime()
        self._marks_seen_at = now
        lease = self._rules.lease.total_seconds()
        if seen_at is not None and now - seen_at > lease / 2:
            watch = self._watches["database"]
            self._watches["database"] = replace(watch, hold_until=max(watch.hold_until, now + lease))
            self._decisions.note("clock", "database", "recovery_on_hold", f"was away for {now - seen_at:.3f} s")
        self._read("redis")
        return self.on_hold()

    def look(self) -> bool:
        """Read both clocks; True while recovery is on hold. Raises Unavailable: then nothing may be decided."""
        for name in self._sources:
            self._read(name)
        return self.on_hold()

    def _read(self, name: str) -> None:
        before = self._clock.boottime()
        moment = self._sources[name]()
        reading = clocks.Reading(before, moment, self._clock.boottime())
        seen = self._watches[name]
        now = clocks.watch(seen, reading, self._rules)
        if now.last_step != seen.last_step:
            self._telemetry.gauge("oah_clock_step_seconds", now.last_step, clock=name)
            self._decisions.note("clock", name, "recovery_on_hold", f"stepped by {now.last_step:.3f} s")
        self._watches[name] = now

    def on_hold(self) -> bool:
        """Whether recovery must not decide, as of the last look."""
        boottime = self._clock.boottime()
        held = any(watch.on_hold(boottime) for watch in self._watches.values())
        self._telemetry.gauge("oah_recovery_on_hold", int(held))
        return held
