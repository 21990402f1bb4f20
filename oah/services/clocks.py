"""Clocks: compare Redis's and the database's clock with CLOCK_BOOTTIME, and hold recovery when one jumps (I7)."""

from __future__ import annotations

from collections.abc import Callable

from oah.core.policy import clocks
from oah.ports.broker import Broker
from oah.ports.clock import Clock
from oah.ports.store import Store
from oah.ports.telemetry import Telemetry
from oah.services.decisions import Decisions


class WatchClocks:
    """What one leader remembers. ``begin`` at every beginning of leadership, ``look`` before every decision."""

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
        self.begin()

    def begin(self) -> None:
        """A new leader knows no baseline: recovery is on hold for one lease."""
        now = self._clock.boottime()
        self._watches = {name: clocks.begin(now, self._rules) for name in self._sources}

    def look(self) -> bool:
        """Read both clocks; True while recovery is on hold. Raises Unavailable: then nothing may be decided."""
        for name, read in self._sources.items():
            before = self._clock.boottime()
            moment = read()
            reading = clocks.Reading(before, moment, self._clock.boottime())
            seen = self._watches[name]
            now = clocks.watch(seen, reading, self._rules)
            if now.last_step != seen.last_step:
                self._telemetry.gauge("oah_clock_step_seconds", now.last_step, clock=name)
                self._decisions.note("clock", name, "recovery_on_hold", f"stepped by {now.last_step:.3f} s")
            self._watches[name] = now
        return self.on_hold()

    def on_hold(self) -> bool:
        """Whether recovery must not decide, as of the last look."""
        boottime = self._clock.boottime()
        held = any(watch.on_hold(boottime) for watch in self._watches.values())
        self._telemetry.gauge("oah_recovery_on_hold", int(held))
        return held
