"""The keeper: ends warm agents that nobody needs, or that keep a run waiting.

A session sticks to the worker that has its agent warm, and no longer than that helps: while every slot is taken it is
handed on after the affinity window, by a cordoned worker at once, and one that a cap or a pause keeps from starting
after a few windows (the slot that comes free wakes somebody, not its owner).
"""

from __future__ import annotations

from collections.abc import Callable

from oah.core.model.ids import SessionId
from oah.ports.clock import Clock
from oah.ports.store import QueuedSession
from oah.worker.context import WorkerContext
from oah.worker.elastic import Elastic
from oah.worker.parked import Parked, Warm
from oah.worker.settler import Settler
from oah.worker.slots import Slots
from oah.worker.table import Table
from oah.worker.work import Unparked

BLOCKED = 5
"""Affinity windows that a warm agent is kept for a run which something else than slots keeps from starting."""


class Keeper:
    """One pass a second."""

    def __init__(self, context: WorkerContext, table: Table, slots: Slots, settler: Settler) -> None:
        self._context = context
        self._table = table
        self._slots = slots
        self._settler = settler
        self._full_since: float | None = None
        self._looked_at = 0.0
        self._blocked: dict[SessionId, float] = {}
        """Sessions that had something to run at an earlier look, although slots were idle → since when."""
        self.parked: Parked
        self.taking: Callable[[], bool] = lambda: True
        """Whether this worker claims at all: otherwise nobody else would come for the sessions that it keeps."""
        self.elastic: Elastic | None = None
        """When that is short of memory, agents that nobody needs now give up theirs: one in each pass, the longest idle
        first."""
        self.cordon: Callable[[str], None] = lambda reason: None

    @property
    def _clock(self) -> Clock:
        return self._context.clock

    def __call__(self) -> None:
        """End the idle, the superfluous and the dead; hand called sessions on when no slot comes free for them."""
        self._context.telemetry.gauge("oah_worker_parked", len(self.parked))
        self.end(self.parked.expired())
        if self.elastic is not None and self.elastic.short_of_memory:
            self.end(self.parked.sessions()[:1])
        taking, now = self.taking(), self._clock.monotonic()
        window = self._context.rules.affinity.total_seconds()
        if not len(self.parked) or (self._slots.idle > 0 and taking):
            self._full_since = None
            self._hand_on_blocked(now, window)
            return
        under_pressure = self.elastic is not None and self.elastic.pressure
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since >= (window if taking or under_pressure else 0.0):
            self._full_since = now
            self.end(self._called())

    def end(self, sessions: list[SessionId]) -> None:
        """End warm agents: their sessions are ours until the settler has dropped the owner rows."""
        for session_id in sessions:
            self.parked.end([session_id])

    def ended(self, warm: Warm, *, empty: bool) -> None:
        """Told by ``Parked``, in the thread that ended the agent."""
        if not self._table.ending(warm.session_id, warm.token):
            return
        self._table.agent(warm.session_id, warm.token, None)
        self._context.telemetry.count("oah_agents_killed_total", reason="close" if empty else "unkillable")
        if not empty:
            self.cordon(f"the warm agent of session {warm.session_id} cannot be killed")
        self._settler.ended(Unparked(warm.session_id, warm.token, empty))

    def called_profiles(self) -> list[str]:
        """Of each warm agent that could go on with something. Raises Unavailable."""
        return [queued.lane.profile for queued in self._waiting()] if len(self.parked) else []

    def _called(self) -> list[SessionId]:
        return [queued.session_id for queued in self._waiting()]

    def _waiting(self) -> list[QueuedSession]:
        """Those that have something to run."""
        sessions = self._context.store.queued_sessions_of(self.parked.sessions(), self._context.epochs.current())
        return [queued for queued in sessions if queued.ready_class is not None and not queued.holds]

    def _hand_on_blocked(self, now: float, window: float) -> None:
        """Slots are idle, so what is called is taken at once, unless something else stands in its way."""
        if not len(self.parked):
            self._blocked.clear()
            return
        if now - self._looked_at < window:
            return
        self._looked_at = now
        self._blocked = {session_id: self._blocked.get(session_id, now) for session_id in self._called()}
        self.end([session_id for session_id, since in self._blocked.items() if now - since >= BLOCKED * window])
