"""Runs that wait for their children lend their slots: their turns go on, in threads that hold none.

The wait is a row in SQL, the command only says that it is there. While it stands the session is parked in the broker,
as one that waits for a person: it counts against no cap, and is called (class ``resume``) when its last child has
ended. Then it gets a slot again before anything new does; only then does the run count as running, which is what its
program waits to see.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from oah.core.model.ids import SessionId
from oah.errors import LeaseError, Unavailable
from oah.ports.broker import Free, Target
from oah.ports.commands import WorkerCommand
from oah.worker.context import WorkerContext
from oah.worker.errands import Errands
from oah.worker.slots import Slots
from oah.worker.table import Table
from oah.worker.waiting import Waiting
from oah.worker.work import Assignment


class Lending:
    """Thread safe. ``__call__`` is one pass of the loop that looks after all that waits."""

    def __init__(
        self,
        context: WorkerContext,
        table: Table,
        slots: Slots,
        waiting: Waiting,
        errands: Errands,
        *,
        freed: Callable[[], None],
    ) -> None:
        self._context = context
        self._table = table
        self._slots = slots
        self._waiting = waiting
        self._freed = freed
        errands.lend = self.lend
        self._lock = threading.Lock()
        self._untold: dict[SessionId, Free] = {}
        """Parked here, and not in the broker yet."""

    def __call__(self) -> None:
        """Raises Unavailable: the loop tries again."""
        self._tell()
        self._waiting()

    def lend(self, command: WorkerCommand) -> None:
        """Nothing when its turn is over. Raises Unavailable: the broker is told later."""
        assignment = self._named(command)
        if assignment is None or not self._table.lends(assignment.fence):
            return
        fence = assignment.fence
        assignment.lent = int(command.data["number"])
        self._waiting.lend(assignment)
        if not self._slots.lend(assignment):  # it ends at this moment
            self._waiting.forget(assignment)
            return
        with self._lock:
            self._untold[fence.session_id] = Free(fence.session_id, fence.token, Target.PARKED)
        self._freed()
        self._tell()

    def _named(self, command: WorkerCommand) -> Assignment | None:
        for assignment in self._slots.working:
            if (assignment.fence.run_id, assignment.fence.attempt) == (command.run_id, command.attempt):
                return assignment
        return None

    def _tell(self) -> None:
        with self._lock:
            frees = [free for session_id, free in self._untold.items() if self._waiting.has_lent(session_id)]
            self._untold = {free.session_id: free for free in frees}
        if not frees:
            return
        epochs = self._context.epochs
        try:
            self._context.broker.free(epochs.current(), frees)
        except LeaseError as error:
            epochs.refresh()
            raise Unavailable(f"park again: {error.message}") from error
        with self._lock:
            for free in frees:
                self._untold.pop(free.session_id, None)
