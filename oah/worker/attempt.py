"""One attempt of one run in a slot thread: get an agent, give it the input, say how it ended.

Whatever an agent does wrong is an outcome of its run; the slot goes on. What is not the run's fault is none: a lost
host or a passed deadline is a matter of the recovery policy, a drain a release. A session is only handed on when its
tree was verified empty.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from oah.core.model.question import Question
from oah.core.model.run import Outcome, Run, RunError, RunStatus
from oah.core.model.timeout import TimeoutReason
from oah.core.policy import answers
from oah.errors import AgentError, InvalidRequest, LeaseError, OahError, Unavailable
from oah.ports.agent import Agent, TurnRequest, TurnResult, TurnStatus
from oah.ports.store import Settlement
from oah.services.run_keys import run_key
from oah.worker.context import WorkerContext
from oah.worker.control import Control
from oah.worker.endings import CLOSE_GRACE, NOT_STARTED, Endings
from oah.worker.hooks import Hooks
from oah.worker.mail import After, Mail
from oah.worker.opening import Openings
from oah.worker.parked import Parked
from oah.worker.retries import PlanRetries
from oah.worker.settler import Settler
from oah.worker.table import Entry, Table
from oah.worker.waiting import deadline_in
from oah.worker.work import Asks, Assignment, Ending, Finished, Orphaned, Returned, Waited

log = logging.getLogger(__name__)


class Attempts:
    """``__call__`` runs in slot threads, one assignment each."""

    def __init__(
        self,
        context: WorkerContext,
        table: Table,
        parked: Parked,
        settler: Settler,
        *,
        cordon: Callable[[str], None],
        draining: Callable[[], bool],
        mark_now: Callable[[], None],
        hooks: Hooks,
    ) -> None:
        self._context = context
        self._table = table
        self._parked = parked
        self._openings = Openings(context, table, parked)
        self._settler = settler
        self._endings = Endings(context, parked, cordon)
        self._draining = draining
        self._retries = PlanRetries(context.retry_rules, context.ids.chance)
        self._mark_now = mark_now
        self._hooks = hooks
        self.mail = Mail(context)

    def __call__(self, assignment: Assignment) -> None:
        """Run it and hand the ending to the settler; nothing when the session was lost."""
        begun = self._context.clock.monotonic()
        ending = self._attempt(assignment, begun) if assignment.waited is None else self._resumed(assignment, begun)
        fence = assignment.fence
        if ending is None:
            self._table.drop(fence.session_id, fence.token)
            return
        if isinstance(ending, Finished):
            settlement = self._with_retry(assignment, ending.settlement)
            ending = replace(ending, settlement=settlement, assignment=assignment)
        kept = isinstance(ending, Asks) or (isinstance(ending, Finished) and ending.agent is not None)
        if not kept:
            self._table.agent(fence.session_id, fence.token, None)
        self._table.ending(fence.session_id, fence.token)
        self._settler.ended(ending)

    def _with_retry(self, assignment: Assignment, settlement: Settlement) -> Settlement:
        run, profile = assignment.started.run, assignment.started.session.lane.profile
        return self._retries(settlement, run, profile, left=deadline_in(self._context, assignment))

    # --- the attempt ---

    def _attempt(self, assignment: Assignment, begun: float) -> Ending | None:
        fence = assignment.fence
        entry = self._table.by_run(fence)
        if entry is None:
            return None
        refused = self._refused(assignment, entry, begun) or self._wakes_nobody(assignment, begun)
        if refused is not None:
            return refused
        opened = self._opened(assignment, entry, begun)
        if not isinstance(opened, tuple):
            return opened
        agent, kind = opened
        return self._turn(assignment, entry, agent, kind, begun)

    def _opened(self, assignment: Assignment, entry: Entry, begun: float) -> tuple[Agent, str] | Ending:
        """An agent and what it is, or why there is none."""
        try:
            return self._openings(assignment, entry)
        except LeaseError:
            self._endings.killed("deadman")
            return Orphaned(assignment.fence, "deadline_passed")
        except OahError as error:
            return self._endings.not_opened(assignment, begun, error)
        except Exception as error:
            log.exception("opening the agent of %s", assignment.fence.session_id)
            return self._endings.not_opened(assignment, begun, AgentError(repr(error), code="agent_error"))

    def _refused(self, assignment: Assignment, entry: Entry, begun: float) -> Ending | None:
        """The ending of an attempt for which no agent is to be opened; None: go on."""
        expired = self._expired(assignment.started.run)
        if expired is not None:
            return self._endings.not_begun(assignment, begun, expired)
        if not self._too_late(entry):
            self._hooks.before(assignment, stop=lambda: entry.cancel_requested or assignment.is_withdrawn())
        if self._too_late(entry) or assignment.give_back or self._draining():
            if not self._endings.end_warm(assignment.fence.session_id):
                return self._endings.unkillable(assignment, begun, "")
            return Returned(assignment.fence, assignment.ready_class)
        return None

    def _wakes_nobody(self, assignment: Assignment, begun: float) -> Ending | None:
        """The ending of a wake that needs no agent; a warm one stays."""
        session_id = assignment.fence.session_id
        if not self.mail.nothing_to_do(assignment, warm=session_id in self._parked.sessions()):
            return None
        try:
            agent = self._parked.take(session_id)
        except AgentError:
            return self._endings.unkillable(assignment, begun, "")
        settlement = Settlement(assignment.fence, Outcome(RunStatus.COMPLETED, agent=""), keep_owner=agent is not None)
        return Finished(settlement, assignment.ready_class, self._endings.since(begun), agent)

    def _turn(self, assignment: Assignment, entry: Entry, agent: Agent, kind: str, begun: float) -> Ending | None:
        if assignment.is_withdrawn():
            return self._withdrawn(assignment, agent, kind, begun)
        try:
            self.mail.begin(assignment, agent, kind)
        except AgentError as error:
            return self._endings.failed(assignment, agent, kind, begun, error)
        except Unavailable as error:
            log.warning("session %s: its messages wait: %s", assignment.fence.session_id, error)
            assignment.letters = False
        return self._drive(assignment, entry, agent, kind, begun)

    def _withdrawn(self, assignment: Assignment, agent: Agent, kind: str, begun: float) -> Ending | None:
        if not agent.close(CLOSE_GRACE):
            return self._endings.unkillable(assignment, begun, kind)
        return None if assignment.is_lost() else Returned(assignment.fence, assignment.ready_class)

    def _resumed(self, assignment: Assignment, begun: float) -> Ending | None:
        """The turn that asked goes on, or is ended: without an answer it is only looked at."""
        waited = assignment.waited
        assert waited is not None  # else it is an attempt that begins
        entry, agent = self._table.by_run(assignment.fence), waited.agent
        if entry is None or assignment.is_withdrawn():
            if not agent.close(CLOSE_GRACE):
                return self._endings.unkillable(assignment, begun, waited.kind)
            if entry is None or assignment.is_lost():
                return None
            return self._endings.drained(assignment, begun, waited.kind, asked=True)
        assignment.agent = agent
        return self._drive(assignment, entry, agent, waited.kind, begun)

    def _drive(self, assignment: Assignment, entry: Entry, agent: Agent, kind: str, begun: float) -> Ending | None:
        """Message after message, then the run's own text, which a wake has not."""
        if assignment.waited is None:
            self.mail.next(assignment)
        while True:
            result = self._step(assignment, entry, agent, kind, begun)
            if not isinstance(result, TurnResult):
                return result
            if assignment.letter is None or result.status is TurnStatus.WAITING:
                return self._over(assignment, result, agent, kind, begun)
            after = self.mail.over(assignment, assignment.letter, result)
            if after is After.END:
                return self._over(assignment, result, agent, kind, begun)
            if after is After.BACK or assignment.is_withdrawn():
                return self._withdrawn(assignment, agent, kind, begun)
            opened = (agent, kind) if agent.warm else self._reopened(assignment, entry, agent, result, begun)
            if not isinstance(opened, tuple):
                return opened
            agent, kind = opened
            self.mail.next(assignment)

    def _step(
        self, assignment: Assignment, entry: Entry, agent: Agent, kind: str, begun: float
    ) -> TurnResult | Ending | None:
        """The next turn; of a wake that has given everything, what came of it."""
        if assignment.waited is None and assignment.letter is None and assignment.is_wake:
            return self.mail.summary(assignment, agent)
        return self._once(assignment, entry, agent, kind, begun)

    def _reopened(
        self, assignment: Assignment, entry: Entry, agent: Agent, result: TurnResult, begun: float
    ) -> tuple[Agent, str] | Ending:
        """A program that runs for one text goes on with the conversation that this text began."""
        started = assignment.started
        ref = result.session_ref or agent.opening.session_ref or started.session.session_ref
        assignment.started = replace(started, session=replace(started.session, session_ref=ref))
        if not (result.tree_empty or agent.close(CLOSE_GRACE)):
            return self._endings.unkillable(assignment, begun, "")
        return self._opened(assignment, entry, begun)

    def _once(
        self, assignment: Assignment, entry: Entry, agent: Agent, kind: str, begun: float
    ) -> TurnResult | Ending | None:
        """One turn."""
        fence, driven = assignment.fence, self._context.clock.monotonic()
        try:
            result = self._result(assignment, entry, agent)
        except LeaseError:
            if not agent.close(CLOSE_GRACE):
                return self._endings.unkillable(assignment, begun, kind)
            self._endings.killed("deadman")
            return None if assignment.is_lost() else Orphaned(fence, "deadline_passed")
        except Exception as error:
            log.exception("run %s", fence.run_id)
            result = TurnResult(status=TurnStatus.FAILED, error_code="agent_error", error_message=repr(error))
        assignment.spent += timedelta(seconds=self._endings.since(driven))
        self._count_cuts(result)
        return result

    def _over(self, assignment: Assignment, result: TurnResult, agent: Agent, kind: str, begun: float) -> Ending | None:
        """The attempt is over, or waits for somebody."""
        fence = assignment.fence
        if not self._table.ending(fence.session_id, fence.token):
            agent.close(CLOSE_GRACE)
            return None
        if result.status is TurnStatus.WAITING and not assignment.is_withdrawn():
            assert result.question is not None  # see ports.agent.TurnResult
            return self._asks(assignment, agent, kind, result.question)
        keep = result.keep_warm and not self._draining() and not assignment.is_lost() and self._context.rules.parked > 0
        if not keep and not (result.tree_empty or agent.close(CLOSE_GRACE)):
            return self._endings.unkillable(assignment, begun, kind)
        return self._ending(assignment, result, agent if keep else None, kind, begun)

    def _result(self, assignment: Assignment, entry: Entry, agent: Agent) -> TurnResult:
        request, control = self._request(assignment), self._control(entry, assignment)
        waited, answer = assignment.waited, assignment.answer
        assignment.waited = assignment.answer = None
        if waited is None:
            return agent.turn(request, control)
        try:
            result = agent.resume(request, answer, control)
        except InvalidRequest as error:
            # The dialog is another one than was answered, or offers something else: nothing was typed.
            log.warning("run %s: the answer does not fit: %s", assignment.fence.run_id, error.message)
            return TurnResult(status=TurnStatus.WAITING, question=waited.question)
        to_end = answer is None and (control.cancel_requested() or control.overdue() is not None)
        return _ended(result, control, agent) if to_end and result.status is TurnStatus.WAITING else result

    def _request(self, assignment: Assignment) -> TurnRequest:
        """What is left of the run's limits: what it waited in no slot does not count, but for its deadline."""
        run, letter = assignment.started.run, assignment.letter
        more = {} if letter is None else self.mail.request(assignment, letter)
        return TurnRequest(
            run_id=run.id,
            attempt=run.attempt,
            input=run.input if letter is None else self.mail.text(letter),
            command=run.command and letter is None,
            timeout=None if run.timeout is None else max(run.timeout - assignment.spent, timedelta(0)),
            deadline_in=deadline_in(self._context, assignment),
            idle=run.idle_timeout,
            env=self._run_env(assignment),
            ladder=self._context.rules.ladder,
            **more,
        )

    def _asks(self, assignment: Assignment, agent: Agent, kind: str, question: Question) -> Asks:
        waited = Waited(agent, kind, question, self._context.ids.nonce(), since=self._context.clock.monotonic())
        assignment.waited, assignment.agent = waited, None
        return Asks(assignment, waited)

    def _count_cuts(self, result: TurnResult) -> None:
        if result.dropped_bytes:
            self._context.telemetry.count("oah_output_truncated_total", what="buffer")
        if result.output_blob is not None:
            self._context.telemetry.count("oah_output_truncated_total", what="result")
        if result.output_cut:
            self._context.telemetry.count("oah_output_truncated_total", what="screen")

    def _ending(
        self, assignment: Assignment, result: TurnResult, agent: Agent | None, kind: str, begun: float
    ) -> Ending | None:
        if assignment.is_lost():
            self._endings.killed("lost")
            return None
        if result.error_code == "host_lost":
            self._endings.killed("host_lost")
            return Orphaned(assignment.fence, "host_lost")
        if result.error_code in NOT_STARTED:
            return Returned(assignment.fence, assignment.ready_class)
        if assignment.give_back and result.status in (TurnStatus.FAILED, TurnStatus.WAITING):
            return self._endings.drained(assignment, begun, kind, asked=False)
        error = None
        if result.error_code is not None:
            error = RunError(result.error_code, result.error_message or result.error_code)
        outcome = Outcome(
            status=RunStatus(result.status),
            output=result.output,
            result_blob=result.output_blob,
            exit_code=result.exit_code,
            error=error,
            recording_blob=result.recording,
            output_cut=result.output_cut,
            **self._openings.facts(assignment, result, kind),
        )
        settlement = Settlement(assignment.fence, outcome, keep_owner=agent is not None)
        return Finished(settlement, assignment.ready_class, self._endings.since(begun), agent)

    # --- the agent ---

    def _control(self, entry: Entry, assignment: Assignment) -> Control:
        limit, boottime = self._context.rules.output_bytes, self._context.clock.boottime
        session = assignment.started.session
        policy = answers.Rules(
            self._context.workspace_answers(session.workspace_id), self._context.answers(session.lane.profile)
        )
        return Control(entry, assignment, self._settler, limit, boottime, self._mark_now, policy)

    def _run_env(self, assignment: Assignment) -> dict[str, str]:
        """How the agent speaks of its own run: who it is, and where to."""
        fence = assignment.fence
        env = {"OAH_RUN_ID": fence.run_id, "OAH_ATTEMPT": str(fence.attempt), "OAH_RUN_KEY": run_key(fence)}
        places = {"OAH_API_URL": self._context.api_url(), "OAH_NATS_URL": self._context.nats_url}
        return env | {name: url for name, url in places.items() if url is not None}

    def _expired(self, run: Run) -> TimeoutReason | None:
        """Whether it was started too late: both moments are the database's."""
        if run.started_at is None:
            return None
        if run.deadline_at is not None and run.started_at >= run.deadline_at:
            return TimeoutReason.DEADLINE
        late = run.attempt == 1 and run.start_by is not None and run.started_at >= run.start_by
        return TimeoutReason.START if late else None

    def _too_late(self, entry: Entry) -> bool:
        deadline = self._table.deadline(entry.session_id, entry.token)
        return deadline is None or self._context.clock.boottime() >= deadline


def _ended(result: TurnResult, control: Control, agent: Agent) -> TurnResult:
    """It still asks, though it was to end: then it goes without having been asked any further."""
    reason = control.overdue()
    empty = agent.close(CLOSE_GRACE)
    if reason is None:
        return replace(result, status=TurnStatus.CANCELLED, question=None, tree_empty=empty)
    code, message = reason.error.code, reason.error.message
    return replace(
        result,
        status=TurnStatus.TIMED_OUT,
        question=None,
        tree_empty=empty,
        error_code=code,
        error_message=message,
    )


def end_soon(agent: Agent | None) -> None:
    """End an agent from another thread than its slot's, without waiting for it."""
    if agent is not None:
        threading.Thread(target=agent.close, args=(timedelta(0),), daemon=True).start()
