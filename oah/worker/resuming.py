"""Runs that waited go on: those that were asked for in a slot of their own, those that had lent theirs in it again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from oah.core.model.ids import SessionId
from oah.core.model.run import ReadyClass
from oah.errors import InDoubt, Unavailable
from oah.ports.broker import Claimed, Free, Target
from oah.ports.questions import Resumed
from oah.ports.store import RunFence
from oah.worker.context import WorkerContext
from oah.worker.slots import Slots
from oah.worker.table import Table
from oah.worker.waiting import Waiting
from oah.worker.work import Assignment

log = logging.getLogger(__name__)

Started = Callable[[Sequence[tuple[SessionId, int]]], None]


class Resuming:
    """Called in the claimer's thread."""

    def __init__(
        self,
        context: WorkerContext,
        table: Table,
        slots: Slots,
        waiting: Waiting,
    ) -> None:
        self._context = context
        self._table = table
        self._slots = slots
        self._waiting = waiting

    def __call__(self, claimed: Sequence[Claimed], started: Started) -> tuple[list[Free], bool]:
        """What is to be parked again, and whether the store has answered. In doubt they are called again: it is found
        out then. ``started`` is told of the events that say who goes on."""
        fences = [self._table.resuming(claim.session_id, claim.token) for claim in claimed]
        asked = [(fence, self._waiting.question(fence.session_id)) for fence in fences if fence is not None]
        try:
            replies = self._context.store.resume_answered(self._context.worker_id, asked)
        except (InDoubt, Unavailable) as error:
            log.warning("go on again: %s", error)
            return [Free(each.session_id, each.token, Target.PARKED, ReadyClass.RESUME) for each in claimed], False
        return [
            Free(claim.session_id, claim.token, Target.PARKED)
            for claim, (fence, _), reply in zip(claimed, asked, replies, strict=True)
            if reply is None or not self._go_on(claim, fence, reply, started)
        ], True

    def _go_on(self, claim: Claimed, fence: RunFence, resumed: Resumed, started: Started) -> bool:
        """False: it waits on, without a word about it."""
        assignment = self._waiting.take(claim.session_id)
        if assignment is None or assignment.fence != fence:
            return True  # somebody is ending it, and says how
        suspect = assignment.started.run.recovery_attempts > 0
        if self._table.resumed(fence, suspect=suspect) is None:
            assignment.lost = True
        if assignment.lent is not None:  # its turn has never stopped: from now on it holds a slot again
            assignment.lent = None
            self._slots.take_back(assignment)
        else:
            assignment.answer = resumed.answer or None  # answered at the terminal
            self._context.telemetry.count("oah_questions_total", kind=_kind(assignment), outcome="answered")
            self._slots.assign(assignment)
        if resumed.event_number:
            started([(claim.session_id, resumed.event_number)])
        return True


def _kind(assignment: Assignment) -> str:
    assert assignment.waited is not None  # it asked
    return assignment.waited.question.kind.value
