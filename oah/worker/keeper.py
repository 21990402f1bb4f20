"""The keeper: ends warm agents that nobody needs, or that keep a run waiting while every slot is taken."""

from __future__ import annotations

from collections.abc import Callable

from oah.core.model.ids import SessionId
from oah.ports.clock import Clock
from oah.worker.context import WorkerContext
from oah.worker.elastic import Elastic
from oah.worker.parked import Parked, Warm
from oah.worker.settler import Settler
from oah.worker.slots import Slots
from oah.worker.table import Table
from oah.worker.work import Unparked


class Keeper:
    """One pass a second."""

    def __init__(self, context: WorkerContext, table: Table, slots: Slots, settler: Settler) -> None:
        self._context = context
        self._table = table
        self._slots = slots
        self._settler = settler
        self._full_since: float | None = None
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
        if (self._slots.idle > 0 and self.taking()) or not len(self.parked):
            self._full_since = None
            return
        now = self._clock.monotonic()
        if self._full_since is None:
            self._full_since = now
        elif now - self._full_since >= self._context.rules.affinity.total_seconds():
            self._full_since = now
            self._hand_on()

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

    def _hand_on(self) -> None:
        waiting = self._context.store.queued_sessions_of(self.parked.sessions(), self._context.epochs.current())
        self.end([queued.session_id for queued in waiting if queued.ready_class is not None and not queued.holds])
