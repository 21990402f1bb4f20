"""Questions of programs: the run waits without a slot until somebody has answered, once.

A question lies in its wait's row: ``data.question`` with ``data.key`` of its asking, later ``data.answer``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select, update

from oah.adapters.sql.aggregate import Transaction, after, picked
from oah.adapters.sql.children import awaiting
from oah.adapters.sql.columns import now
from oah.adapters.sql.executions import GONE
from oah.adapters.sql.rows import STEP_COLUMNS, step_of
from oah.adapters.sql.steps import Steps, begin, change_step, heard, ours, park, read_run, tell, turn_to
from oah.adapters.sql.tables import run_steps
from oah.adapters.sql.text import cleaned, require_sound
from oah.core.model.event import EventType
from oah.core.model.ids import WorkerId
from oah.core.model.run import Run, RunStatus, Step
from oah.errors import Conflict, NotFound
from oah.ports.questions import TERMINAL, Asked, AskReply, Resumed
from oah.ports.rows import RunFence
from oah.ports.steps import Inside, NewStep, StepKind, StepOutcome


class Questions(Steps):
    """See ports.questions.QuestionStore."""

    def ask(self, asked: Sequence[Asked]) -> list[AskReply]:
        """One transaction; what an earlier call has written is found by its key."""
        if not asked:
            return []
        with self._transaction(each.fence.session_id for each in asked) as transaction:
            return [self._ask(transaction, each) for each in asked]

    def _ask(self, transaction: Transaction, asked: Asked) -> AskReply:
        fence = asked.fence
        run = _fenced(transaction, fence)
        if run is None:
            self._telemetry.count("oah_writes_refused_total", write="wait")
            look = transaction.hot.look([fence.session_id]).get(fence.session_id, GONE)
            return AskReply(after(look, applied=False))
        number, event = _asked(transaction, run, asked)
        look = transaction.look(fence.session_id)
        return AskReply(after(look, applied=True, status=RunStatus.WAITING_TOOL, number=event), number)

    def question_of(self, inside: Inside) -> Step | None:
        """The latest open wait, if it is a question."""
        with self._inside(inside, active=False):
            pass
        step = self.waits_for([inside.run_id]).get(inside.run_id)
        return step if step is not None and "question" in step.data else None

    def answer_question(self, inside: Inside, number: int, answer: str) -> WorkerId | None:
        """The question stands no longer than to its answer, whenever the run goes on."""
        require_sound(answer=answer)
        with self._inside(inside, active=False) as (transaction, run):
            step = _question(transaction, run)
            if run.status is not RunStatus.WAITING_TOOL or step is None:
                raise Conflict(f"the run is {run.status}, it does not wait for an answer", code="run_not_waiting")
            if step.number != number:
                raise Conflict(f"question {number} is over; the run asks question {step.number}", code="question_over")
            if "answer" in step.data:
                raise Conflict(_why_answered(number, step.data["answer"]), code="already_answered")
            given = {"text": answer, "by": inside.by, "at": transaction.stamp()}
            change_step(transaction, run.id, number, {"data": {**step.data, "answer": given}, "deadline_at": None})
            return run.worker_id

    def resume_answered(self, worker_id: WorkerId, waits: Sequence[tuple[RunFence, int]]) -> list[Resumed | None]:
        """One transaction."""
        if not waits:
            return []
        with self._transaction(fence.session_id for fence, _ in waits) as transaction:
            return [self._resume_answered(transaction, worker_id, *each) for each in waits]

    def _resume_answered(
        self, transaction: Transaction, worker_id: WorkerId, fence: RunFence, number: int
    ) -> Resumed | None:
        run = _fenced(transaction, fence)
        if run is None or run.worker_id != worker_id:
            self._telemetry.count("oah_writes_refused_total", write="resume")
            return None
        step = _step(transaction, run, number)
        given = None if step is None else _given(transaction, run, step)
        if step is None or given is None:
            return None
        if step.ended_at is not None:
            return Resumed(given["text"], given["by"]) if run.status is RunStatus.RUNNING else None
        _end_waits(transaction, run)
        heard(transaction, run)
        turn_to(transaction, run, RunStatus.RUNNING)
        park(transaction, fence, parked=False)
        data = {"by": given["by"], "question": number, **_said(step, given["text"])}
        return Resumed(given["text"], given["by"], tell(transaction, run, EventType.RUN_RESUMED, data))

    def note_answer(self, fence: RunFence, data: Mapping[str, Any]) -> int:
        """Under the lock."""
        with self._transaction([fence.session_id]) as transaction:
            run = _fenced(transaction, fence)
            return 0 if run is None else tell(transaction, run, EventType.RUN_ANSWERED, data)


def _fenced(transaction: Transaction, fence: RunFence) -> Run | None:
    """The run, if that attempt of it is under way."""
    if fence.session_id not in transaction.sessions:
        return None
    try:
        run = read_run(transaction, fence.run_id)
    except NotFound:
        return None
    return run if run.session_id == fence.session_id and ours(run, fence) else None


def _asked(transaction: Transaction, run: Run, asked: Asked) -> tuple[int, int]:
    """The question's number and that of its event; 0 for one that was told before."""
    before = _question(transaction, run)
    if before is not None and before.data.get("key") == asked.key:
        return before.number, 0
    question = dict(asked.question)
    reason = cleaned(asked.reason)
    wait = NewStep(StepKind.WAIT, reason, data={"question": question, "key": asked.key})
    # Without a limit: the steps before it may be the run's own doing, and those who ask are a worker's whole batch.
    step = begin(transaction, run, wait, asked.timeout, bounded=False)
    turn_to(transaction, run, RunStatus.WAITING_TOOL)
    park(transaction, asked.fence, parked=True)
    deadline = None if step.deadline_at is None else step.deadline_at.isoformat()
    data = {"reason": reason, "question": {**question, "number": step.number, "deadline": deadline}}
    return step.number, tell(transaction, run, EventType.RUN_WAITING_TOOL, data)


def _question(transaction: Transaction, run: Run) -> Step | None:
    """The latest open wait of the attempt, if it is a question."""
    c = run_steps.c
    waits = (c.run_id == run.id, c.attempt == run.attempt, c.kind == StepKind.WAIT.value, c.ended_at.is_(None))
    statement = select(*picked(run_steps, STEP_COLUMNS)).where(*waits).order_by(c.number.desc()).limit(1)
    row = transaction.connection.execute(statement).first()
    step = None if row is None else step_of(row)
    return step if step is not None and "question" in step.data else None


def _step(transaction: Transaction, run: Run, number: int) -> Step | None:
    c = run_steps.c
    which = (c.run_id == run.id, c.number == number, c.attempt == run.attempt)
    row = transaction.connection.execute(select(*picked(run_steps, STEP_COLUMNS)).where(*which)).first()
    return None if row is None else step_of(row)


def _given(transaction: Transaction, run: Run, step: Step) -> dict[str, Any] | None:
    """What lets it go on: its answer, or that its last child has ended."""
    found: dict[str, Any] | None = step.data.get("answer")
    if found is None and "children" in step.data and not awaiting(transaction.connection, [run.id]):
        return {"text": "", "by": "children"}
    return found


def _why_answered(number: int, given: Mapping[str, Any]) -> str:
    if given.get("by") != TERMINAL:
        return f"question {number} is answered already"
    return f"question {number} has left the program's screen: it was answered there, or the program answered it itself"


def _end_waits(transaction: Transaction, run: Run) -> None:
    c = run_steps.c
    waits = (c.run_id == run.id, c.attempt == run.attempt, c.kind == StepKind.WAIT.value, c.ended_at.is_(None))
    ended = {"ended_at": now(), "outcome": StepOutcome.COMPLETED.value}
    transaction.connection.execute(update(run_steps).where(*waits).values(**ended))


def _said(step: Step, answer: str) -> dict[str, Any]:
    """Which choice it was; what was typed freely is not repeated in the event."""
    keys = {str(each.get("key")) for each in step.data.get("question", {}).get("choices", ())}
    return {"choice": answer} if answer in keys else {}
