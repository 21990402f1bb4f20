"""Commands about single runs and sessions: say something, hurry an end, let a closed session's agent go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

from oah.core.model.ids import SessionId
from oah.ports.commands import CommandKind, WorkerCommand
from oah.ports.store import AfterRun
from oah.worker.context import WorkerContext
from oah.worker.keeper import Keeper
from oah.worker.slots import Slots
from oah.worker.speaker import Speaker
from oah.worker.table import Table
from oah.worker.work import Assignment


class Errands:
    """``__call__`` does one, or begins it; ``parked`` is told of every agent that stays warm."""

    def __init__(self, context: WorkerContext, table: Table, slots: Slots, keeper: Keeper) -> None:
        self._table = table
        self._slots = slots
        self._keeper = keeper
        self.speaker = Speaker(context, table, slots)
        self.waiting: Callable[[], list[Assignment]] = list
        """Runs that wait in no slot."""
        self.lend: Callable[[WorkerCommand], None] = lambda command: None
        """A run of ours waits for its children."""
        self._closed: set[SessionId] = set()
        """Sessions of ours that nobody will give another run."""

    def __call__(self, command: WorkerCommand) -> None:
        """Does not block."""
        match command.kind:
            case CommandKind.KILL:
                self._hurry(command)
            case CommandKind.LEND:
                self.lend(command)
            case CommandKind.CLOSE:
                self._close(SessionId(command.data["session_id"]))
            case _:
                self.speaker.take(command)

    def parked(self, session_id: SessionId, after: AfterRun) -> None:
        """Its run is settled. The last agent of a closed session has nothing to wait for."""
        if session_id in self._closed and after.waiting is None:
            self._end(session_id)

    def _hurry(self, command: WorkerCommand) -> None:
        for assignment in [*self._slots.working, *self.waiting()]:
            if (assignment.fence.run_id, assignment.fence.attempt) == (command.run_id, command.attempt):
                self._table.hurry(assignment.fence, timedelta(milliseconds=int(command.data["after_ms"])))

    def _close(self, session_id: SessionId) -> None:
        self._closed = {each for each in self._closed if self._table.knows(each)}
        if self._table.knows(session_id):
            self._closed.add(session_id)
            self._end(session_id)

    def _end(self, session_id: SessionId) -> None:
        """Nothing, while it is not parked or has been claimed for another run."""
        threading.Thread(target=self._keeper.end, args=([session_id],), name="close", daemon=True).start()
