"""What programs ask, written down by the settler's thread: questions for people, and what a policy has answered."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta

from oah.core.model.ids import SessionId
from oah.ports.agent import Agent
from oah.ports.questions import Asked
from oah.ports.store import RunFence
from oah.services.settle import Ended, SettleRuns
from oah.worker.context import WorkerContext
from oah.worker.table import Table
from oah.worker.waiting import Waiting, numbered
from oah.worker.work import Answered, Asks


class Asking:
    """``ask`` and ``tell`` raise Unavailable: call them again."""

    def __init__(self, context: WorkerContext, table: Table, waiting: Waiting, service: SettleRuns) -> None:
        self._context = context
        self._table = table
        self._waiting = waiting
        self._service = service
        self._lock = threading.Lock()
        self._answers: deque[Answered] = deque()

    @property
    def pending(self) -> bool:
        """Whether something is to be told."""
        return bool(self._answers)

    def answered(self, answered: Answered) -> None:
        """Hand over what a policy has answered; from any thread."""
        with self._lock:
            self._answers.append(answered)

    def tell(self, happened: Callable[[Sequence[tuple[SessionId, int]]], None]) -> None:
        """Few, and each an event of its own; ``happened`` is told of committed ones."""
        while self._answers:
            each = self._answers[0]
            data = {"by": "policy", "rule": each.rule, "how": each.how, "choice": each.choice}
            question = {"name": each.question.name, "kind": each.question.kind.value, "text": each.question.text}
            number = self._context.store.note_answer(each.fence, {**data, "question": question})
            with self._lock:
                self._answers.popleft()
            self._context.telemetry.count("oah_questions_total", kind=each.question.kind.value, outcome=each.how)
            if number:
                happened([(each.fence.session_id, number)])

    def ask(self, items: Sequence[Asks], refused: Callable[[RunFence, Agent | None], None]) -> list[Ended]:
        """The runs wait from now on; their sessions, to be freed as parked: they are called when somebody answers."""
        replies = self._service.ask([self._asked(item) for item in items])
        ended: list[Ended] = []
        for item, reply in zip(items, replies, strict=True):
            if not reply.after.applied:
                refused(item.fence, item.waited.agent)
                continue
            kind = item.waited.question.kind.value
            self._context.telemetry.count("oah_questions_total", kind=kind, outcome="asked")
            self._waiting.put(numbered(item.assignment, reply.number))
            self._table.waits(item.fence)
            ended.append(Ended(item.fence.session_id, item.fence.token, reply.after, parked=True, waits=True))
        return ended

    def _asked(self, item: Asks) -> Asked:
        waited = item.waited
        return Asked(item.fence, waited.key, _reason(item), waited.question.document(), self._wait_timeout(item))

    def _wait_timeout(self, item: Asks) -> timedelta:
        return self._context.wait_timeout(item.assignment.started.session.lane.profile)


def _reason(item: Asks) -> str:
    """What is asked, in a line."""
    question = item.waited.question
    first = next((line.strip() for line in question.text.splitlines() if line.strip()), "")
    return f"{question.kind.value}: {first}"[:500]
