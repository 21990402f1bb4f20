"""What SQL tells a worker about its sessions: those that are lost, and runs that somebody wants stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from oah.ports.store import Stop
from oah.worker.attempt import end_soon
from oah.worker.context import WorkerContext
from oah.worker.hooks import Hooks
from oah.worker.keeper import Keeper
from oah.worker.slots import Slots
from oah.worker.table import Entry, Table
from oah.worker.waiting import Waiting

log = logging.getLogger(__name__)


class Losses:
    """Called in the thread of a witness. ``look``: runs that wait are to be looked at."""

    def __init__(
        self,
        context: WorkerContext,
        table: Table,
        slots: Slots,
        waiting: Waiting,
        keeper: Keeper,
        hooks: Hooks,
        *,
        look: Callable[[], None],
    ) -> None:
        self._context = context
        self._table = table
        self._slots = slots
        self._waiting = waiting
        self._keeper = keeper
        self._hooks = hooks
        self._look = look

    def lost(self, entries: list[Entry]) -> None:
        """SQL no longer knows these as ours: end their agents, write nothing."""
        ids = {(entry.session_id, entry.token) for entry in entries}
        log.warning("sessions lost: %s", ", ".join(sorted(session for session, _ in ids)))
        self._context.telemetry.count("oah_leases_lost_total", len(ids), how="told")
        for assignment in self._slots.working:
            if (assignment.fence.session_id, assignment.fence.token) in ids:
                assignment.lost = True
                end_soon(assignment.agent)
        for assignment in self._waiting.all():
            if (assignment.fence.session_id, assignment.fence.token) in ids:
                assignment.lost = True
                self._waiting.end(assignment)
        warm = [entry.session_id for entry in entries if entry.phase == "parked"]
        if warm:
            threading.Thread(target=self._keeper.end, args=(warm,), daemon=True).start()

    def stop_runs(self, stops: tuple[Stop, ...]) -> None:
        """Somebody wants these runs stopped; their slots see it within a quarter of a second."""
        news = {stop.fence: stop for stop in stops if self._table.stop(stop)}
        for assignment in [*self._slots.working, *self._waiting.all()] if news else ():
            stop = news.get(assignment.fence)
            if stop is not None:
                self._hooks.asked_to_stop(assignment, by=stop.by, reason=stop.reason.value)
        if news:
            self._look()
