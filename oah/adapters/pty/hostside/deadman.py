"""The deadman's judgement: which trees must die now, which are frozen, when to look again. No I/O, no clock of its own.

Moments are CLOCK_BOOTTIME seconds. Two rules:

* a tree dies at its deadline, unless it was extended before;
* a reading of the clock that comes more than half a margin late (beyond the time we meant to sleep and the processor
time we used
  ourselves) means that we were stopped: all trees are frozen first, and only a mark in SQL *begun after the freeze*
  and heard within one margin lets them go on. A mark that lay in the socket meanwhile proves nothing.
"""

from __future__ import annotations

TICK = 0.25
"""Longest sleep in seconds; source: dispatch.md, Ownership."""


class Deadman:
    """Deadlines, lateness and the freeze. `enabled=False` disarms all of it: only for the test that must see the
    violation."""

    def __init__(self, *, margin: float, now: float, used: float, enabled: bool = True) -> None:
        self.margin = margin
        self.enabled = enabled
        self.deadlines: dict[str, float] = {}
        self.frozen_since: float | None = None
        self._thaw_after = 0.0
        self._last, self._used, self._sleep = now, used, 0.0

    def add(self, agent_id: str, deadline: float) -> None:
        """A new tree."""
        self.deadlines[agent_id] = deadline

    def forget(self, agent_id: str) -> None:
        """A tree that is being killed, or is gone."""
        self.deadlines.pop(agent_id, None)

    def extend(self, agent_id: str, deadline: float) -> None:
        """The later of the two holds; an unknown id means nothing."""
        if agent_id in self.deadlines:
            self.deadlines[agent_id] = max(self.deadlines[agent_id], deadline)

    def sleeping(self, now: float) -> float:
        """How long to sleep now, in seconds: to the next decision, at most a tick."""
        due = [self.frozen_since + self.margin] if self.frozen_since is not None else []
        if self.enabled:
            due.extend(self.deadlines.values())
        self._sleep = max(0.0, min([TICK, *(moment - now for moment in due)]))
        return self._sleep

    def late(self, now: float, used: float) -> float:
        """Seconds by which this reading is too late, 0 when in time. Called before each decision. `used`: own
        processor time."""
        gap = now - self._last - self._sleep - (used - self._used)
        self._last, self._used, self._sleep = now, used, 0.0
        return gap if self.enabled and gap > self.margin / 2 else 0.0

    def freeze(self, now: float) -> None:
        """We were stopped. A second time does not lengthen the wait, but asks for a newer mark."""
        self._thaw_after = now
        if self.frozen_since is None:
            self.frozen_since = now

    def marked(self, begun: float, now: float) -> bool:
        """A mark begun then was heard now: whether the frozen trees may go on."""
        if self.frozen_since is None or begun <= self._thaw_after or now > self.frozen_since + self.margin:
            return False
        self.frozen_since = None
        return True

    def overdue(self, now: float) -> list[tuple[str, str]]:
        """(agent id, cause) of every tree that must die now."""
        if not self.enabled:
            return []
        if self.frozen_since is not None and now >= self.frozen_since + self.margin:
            self.frozen_since = None
            return [(agent_id, "late") for agent_id in self.deadlines]
        return [(agent_id, "deadline") for agent_id, deadline in self.deadlines.items() if now >= deadline]
