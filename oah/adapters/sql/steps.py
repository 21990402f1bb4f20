"""Rows of steps inside a run and its waits, written behind the fence of its attempt."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import func, insert, select, update

from oah.adapters.sql.aggregate import Aggregate, Transaction, picked
from oah.adapters.sql.children import awaiting
from oah.adapters.sql.columns import MICROSECOND, age_us, later, now
from oah.adapters.sql.rows import STEP_COLUMNS, run_of, step_of
from oah.adapters.sql.tables import run_steps, runs, session_owners, worker_commands
from oah.adapters.sql.text import require_sound
from oah.core.model.event import EventType
from oah.core.model.ids import ClaimToken, RunId, SessionId, WorkerId
from oah.core.model.run import Run, RunStatus, Step
from oah.errors import Conflict, LimitReached, NotFound
from oah.ports.commands import CommandKind, Delivery
from oah.ports.steps import MOST_STEPS, PROGRESS_PAUSE, Inside, NewStep, StepKind, StepOutcome, Told
from oah.ports.store import RunFence

ACTIVE = ("running", "waiting_tool")


class Steps(Aggregate):
    """See ports.steps.StepStore."""

    def active_fence(self, run_id: RunId) -> RunFence | None:
        """By the key of the run."""
        return self.active_fences([run_id]).get(run_id)

    def active_fences(self, runs_: Collection[RunId]) -> Mapping[RunId, RunFence]:
        """By the keys of the runs."""
        if not runs_:
            return {}
        c = runs.c
        statement = select(c.id, c.session_id, c.attempt, c.claim_token)
        with self._database.read() as connection:
            active = statement.where(c.id.in_(runs_), c.status.in_(ACTIVE), c.claim_token.is_not(None))
            return {
                RunId(row.id): RunFence(
                    SessionId(row.session_id), RunId(row.id), row.attempt, ClaimToken(row.claim_token)
                )
                for row in connection.execute(active)
            }

    def begin_step(self, inside: Inside, step: NewStep) -> Step:
        """Numbers go on through all attempts, system steps among them."""
        require_sound(name=step.name)
        with self._inside(inside) as (transaction, run):
            heard(transaction, run)
            return begin(transaction, run, step, step.timeout or run.step_timeout)

    def end_step(self, inside: Inside, number: int, outcome: StepOutcome, data: Mapping[str, Any]) -> Step:
        """The first end stays."""
        with self._inside(inside) as (transaction, run):
            heard(transaction, run)
            step = _step(transaction, run.id, number)
            if step.kind not in set(StepKind) or step.attempt != run.attempt:
                raise Conflict(f"step {number} is none of this attempt", code="step_not_open")
            if step.ended_at is None:
                values = {"ended_at": now(), "outcome": outcome.value, "data": {**step.data, **data}}
                change_step(transaction, run.id, number, values)
            return _step(transaction, run.id, number)

    def note_progress(self, inside: Inside, data: Mapping[str, Any]) -> Told:
        """The owner row keeps when the run was heard from last."""
        with self._inside(inside) as (transaction, run):
            last = select(age_us(session_owners.c.heard_at)).where(session_owners.c.session_id == run.session_id)
            age = transaction.connection.execute(last).scalar()
            if age is not None and 0 <= age < PROGRESS_PAUSE // MICROSECOND:
                return Told(run)
            heard(transaction, run)
            return Told(run, tell(transaction, run, EventType.RUN_PROGRESS, data))

    def wait_run(self, inside: Inside, reason: str, *, timeout: timedelta | None, children: bool = False) -> Told:
        """The wait is a step, too: its row says since when and why."""
        require_sound(reason=reason)
        with self._inside(inside, write="wait") as (transaction, run):
            if run.status is RunStatus.WAITING_TOOL:
                return Told(run)
            if children and not awaiting(transaction.connection, [run.id]):
                return Told(run)
            data = {"children": True} if children else {}
            step = begin(transaction, run, NewStep(StepKind.WAIT, reason, data=data), timeout)
            turn_to(transaction, run, RunStatus.WAITING_TOOL)
            if children:
                _lend(transaction, run, step, by=inside.by)
            number = tell(transaction, run, EventType.RUN_WAITING_TOOL, {"reason": reason, **data})
            return Told(read_run(transaction, run.id), number)

    def resume_run(self, inside: Inside) -> Told:
        """What it waited for is over."""
        with self._inside(inside, write="resume") as (transaction, run):
            if _waits_on(transaction, run, by=inside.by):
                return Told(run)
            _require_unparked(transaction, run)
            return _resume(transaction, run, {"by": inside.by} if inside.by else {})

    def waits_for(self, runs: Sequence[RunId]) -> Mapping[RunId, Step]:
        """By the key of the steps; an earlier attempt's wait stands before the later one's."""
        if not runs:
            return {}
        c = run_steps.c
        open_waits = (c.run_id.in_(runs), c.kind == StepKind.WAIT.value, c.ended_at.is_(None))
        statement = select(*picked(run_steps, STEP_COLUMNS)).where(*open_waits).order_by(c.run_id, c.number)
        with self._database.read() as connection:
            return {step.run_id: step for step in map(step_of, connection.execute(statement))}

    def ask_input(self, inside: Inside, text: str, *, request_id: RunId) -> WorkerId | None:
        """Under the session's lock, so that it names the attempt that waits."""
        with self._inside(inside, active=False) as (transaction, run):
            if run.status is not RunStatus.WAITING_TOOL:
                raise Conflict(f"the run is {run.status}, it does not wait for input", code="run_not_waiting")
            _require_unparked(transaction, run)
            transaction.connection.execute(
                insert(worker_commands).values(
                    worker_id=run.worker_id,
                    kind=CommandKind.INPUT.value,
                    given_by=inside.by,
                    at=now(),
                    run_id=run.id,
                    attempt=run.attempt,
                    data={"text": text},
                    request_id=request_id,
                )
            )
            return run.worker_id

    def input_given(self, inside: Inside, command_id: int, delivery: Delivery, *, resumed: bool) -> Told:
        """What was not typed leaves the run waiting, as before; one that somebody else's input has resumed goes on."""
        with self._inside(inside, active=False) as (transaction, run):
            answered = (
                update(worker_commands)
                .where(worker_commands.c.id == command_id, worker_commands.c.answered_at.is_(None))
                .values(answer={"delivery": delivery.value}, answered_at=now())
            )
            first = transaction.connection.execute(answered).rowcount
            typed = delivery in (Delivery.DELIVERED, Delivery.UNVERIFIED)
            mine = run.status is RunStatus.RUNNING and ours(run, inside.fence)
            return _wait_again(transaction, run) if first and resumed and not typed and mine else Told(run)

    def notice(self, session_id: SessionId, run_id: RunId, attempt: int, data: Mapping[str, Any]) -> int:
        """Under the session's lock."""
        with self._transaction([session_id]) as transaction:
            if session_id not in transaction.sessions:
                return 0  # retention took it
            kind = EventType.HOOK_NOTICE
            return transaction.append_event(session_id, kind, run_id=run_id, attempt=attempt, data=data)

    @contextmanager
    def _inside(self, inside: Inside, *, active: bool = True, write: str = "step") -> Iterator[tuple[Transaction, Run]]:
        """The run that may be written to, its session locked and read after the lock."""
        where = (runs.c.id == inside.run_id,)
        with self._database.read() as connection:
            row = connection.execute(select(runs.c.session_id, runs.c.workspace_id).where(*where)).first()
        if row is None or (inside.workspace_id is not None and row.workspace_id != inside.workspace_id):
            raise NotFound(f"no run {inside.run_id}")
        with self._transaction([SessionId(row.session_id)]) as transaction:
            run = read_run(transaction, inside.run_id)
            if active and not ours(run, inside.fence):
                self._telemetry.count("oah_writes_refused_total", write=write)
                if run.status.active:
                    raise Conflict("that attempt of the run is over", code="attempt_over")
                raise Conflict(f"the run is {run.status}", code="run_not_active")
            yield transaction, run


def ours(run: Run, fence: RunFence | None) -> bool:
    """Whether the attempt that the fence names is under way; an ordinary key names none."""
    return run.status.active and (fence is None or (run.attempt, run.claim_token) == (fence.attempt, fence.token))


def _lend(transaction: Transaction, run: Run, step: Step, *, by: str) -> None:
    """Parked, and its worker told."""
    assert run.claim_token is not None  # it is active
    park(transaction, RunFence(run.session_id, run.id, run.attempt, run.claim_token), parked=True)
    command = {"worker_id": run.worker_id, "kind": CommandKind.LEND.value, "given_by": by, "at": now()}
    about = {"run_id": run.id, "attempt": run.attempt, "data": {"number": step.number}}
    transaction.connection.execute(insert(worker_commands).values(**command, **about))


def _waits_on(transaction: Transaction, run: Run, *, by: str) -> bool:
    """Whether it waits for its children: then it goes on when its worker has a slot for it, whatever they do."""
    c = run_steps.c
    open_waits = (c.run_id == run.id, c.attempt == run.attempt, c.kind == StepKind.WAIT.value, c.ended_at.is_(None))
    statement = select(*picked(run_steps, STEP_COLUMNS)).where(*open_waits).order_by(c.number.desc()).limit(1)
    row = transaction.connection.execute(statement).first() if run.status is RunStatus.WAITING_TOOL else None
    step = None if row is None else step_of(row)
    if step is None or "children" not in step.data:
        return False
    answer = {"text": "", "by": by, "at": transaction.stamp()}
    change_step(transaction, run.id, step.number, {"data": {**step.data, "answer": answer}})
    return True


def park(transaction: Transaction, fence: RunFence, *, parked: bool) -> None:
    """Whether its owner keeps it without a slot."""
    owner = (session_owners.c.session_id == fence.session_id, session_owners.c.claim_token == fence.token)
    transaction.connection.execute(update(session_owners).where(*owner).values(parked=parked))


def _require_unparked(transaction: Transaction, run: Run) -> None:
    """What waits without a slot goes on by the answer to its question, and nothing else."""
    c = session_owners.c
    statement = select(c.parked).where(c.session_id == run.session_id, c.claim_token == run.claim_token)
    if run.status is RunStatus.WAITING_TOOL and transaction.connection.execute(statement).scalar():
        raise Conflict("the program of the run asks a question; it goes on by its answer", code="question_open")


def _resume(transaction: Transaction, run: Run, data: Mapping[str, Any]) -> Told:
    if run.status is RunStatus.RUNNING:
        return Told(run)
    heard(transaction, run)
    transaction.connection.execute(
        update(run_steps)
        .where(
            run_steps.c.run_id == run.id,
            run_steps.c.attempt == run.attempt,
            run_steps.c.kind == StepKind.WAIT.value,
            run_steps.c.ended_at.is_(None),
        )
        .values(ended_at=now(), outcome=StepOutcome.COMPLETED.value)
    )
    turn_to(transaction, run, RunStatus.RUNNING)
    number = tell(transaction, run, EventType.RUN_RESUMED, data)
    return Told(read_run(transaction, run.id), number)


def _wait_again(transaction: Transaction, run: Run) -> Told:
    """The wait that an input has ended goes on: nothing was said after all."""
    waits = (
        run_steps.c.run_id == run.id,
        run_steps.c.attempt == run.attempt,
        run_steps.c.kind == StepKind.WAIT.value,
    )
    last = select(run_steps.c.number, run_steps.c.name).where(*waits).order_by(run_steps.c.number.desc()).limit(1)
    step = transaction.connection.execute(last).first()
    if step is None:
        return Told(run)
    change_step(transaction, run.id, step.number, {"ended_at": None, "outcome": None})
    turn_to(transaction, run, RunStatus.WAITING_TOOL)
    number = tell(transaction, run, EventType.RUN_WAITING_TOOL, {"reason": step.name})
    return Told(read_run(transaction, run.id), number)


def read_run(transaction: Transaction, run_id: RunId) -> Run:
    """As this transaction has made it. Raises NotFound."""
    found = transaction.hot.read_runs([run_id])
    if run_id not in found:
        raise NotFound(f"no run {run_id}")
    return run_of(found[run_id])


def begin(
    transaction: Transaction, run: Run, step: NewStep, timeout: timedelta | None, *, bounded: bool = True
) -> Step:
    """Under the next number. Raises LimitReached, when `bounded`."""
    last = select(func.coalesce(func.max(run_steps.c.number), 0)).where(run_steps.c.run_id == run.id)
    number = int(transaction.connection.execute(last).scalar_one()) + 1
    if bounded and number > MOST_STEPS:
        raise LimitReached(f"a run has at most {MOST_STEPS} steps", code="too_many_steps")
    transaction.connection.execute(
        insert(run_steps).values(
            run_id=run.id,
            number=number,
            attempt=run.attempt,
            kind=step.kind.value,
            name=step.name,
            data=dict(step.data),
            at=now(),
            deadline_at=None if timeout is None else later(timeout // MICROSECOND),
        )
    )
    return _step(transaction, run.id, number)


def _step(transaction: Transaction, run_id: RunId, number: int) -> Step:
    statement = select(*picked(run_steps, STEP_COLUMNS)).where(
        run_steps.c.run_id == run_id, run_steps.c.number == number
    )
    row = transaction.connection.execute(statement).first()
    if row is None:
        raise NotFound(f"run {run_id} has no step {number}")
    return step_of(row)


def change_step(transaction: Transaction, run_id: RunId, number: int, values: dict[str, Any]) -> None:
    """Some of its columns."""
    which = (run_steps.c.run_id == run_id, run_steps.c.number == number)
    transaction.connection.execute(update(run_steps).where(*which).values(**values))


def turn_to(transaction: Transaction, run: Run, status: RunStatus) -> None:
    """The status alone; owner and fence stay."""
    transaction.connection.execute(update(runs).where(runs.c.id == run.id).values(status=status))


def heard(transaction: Transaction, run: Run) -> None:
    """The run has said something of itself, for its idle time-out."""
    owner = (session_owners.c.session_id == run.session_id, session_owners.c.claim_token == run.claim_token)
    transaction.connection.execute(update(session_owners).where(*owner).values(heard_at=now()))


def tell(transaction: Transaction, run: Run, kind: EventType, data: Mapping[str, Any]) -> int:
    """An event of the attempt; its number."""
    return transaction.append_event(run.session_id, kind, run_id=run.id, attempt=run.attempt, data=data)
