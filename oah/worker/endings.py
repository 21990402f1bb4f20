"""Endings of attempts that are no turn: no agent could be opened, the run came too late, a tree stays."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from oah.core.model.drain import AtDeadline
from oah.core.model.ids import SessionId
from oah.core.model.run import Outcome, RunError, RunStatus
from oah.core.model.session import HoldReason
from oah.core.model.timeout import TimeoutReason
from oah.errors import AgentError, OahError, Unavailable
from oah.ports.agent import Agent
from oah.ports.store import Settlement
from oah.worker.context import WorkerContext
from oah.worker.parked import Parked
from oah.worker.work import Assignment, Ending, Finished, Orphaned, Returned

CLOSE_GRACE = timedelta(seconds=2)
"""How politely an agent is ended that is not kept: its turn is over."""

NOT_STARTED = ("deadline_passed", "host_away")
"""Nothing ran, because it was too late or because there was no PTY host: the run is released, nothing is counted."""


class Endings:
    """``cordon``: this worker takes no more, and why."""

    def __init__(self, context: WorkerContext, parked: Parked, cordon: Callable[[str], None]) -> None:
        self._context = context
        self._parked = parked
        self._cordon = cordon

    def end_warm(self, session_id: SessionId) -> bool:
        """End the session's warm agent, if it has one. False: its tree could not be emptied."""
        try:
            warm = self._parked.take(session_id)
        except AgentError:
            return False
        return warm is None or warm.close(CLOSE_GRACE)

    def not_opened(self, assignment: Assignment, begun: float, error: OahError) -> Ending:
        """There is no agent."""
        if error.code in NOT_STARTED:
            return Returned(assignment.fence, assignment.ready_class)
        if isinstance(error, Unavailable):
            return Orphaned(assignment.fence, "host_lost")
        if error.code == "agent_unkillable":
            return self.unkillable(assignment, begun, "fresh")
        outcome = Outcome(RunStatus.FAILED, error=RunError(error.code, error.message), agent="fresh")
        return Finished(Settlement(assignment.fence, outcome), assignment.ready_class, self.since(begun))

    def not_begun(self, assignment: Assignment, begun: float, reason: TimeoutReason) -> Ending:
        """No agent is opened for it; a warm one goes, for parking it again would be a turn of its own."""
        if not self.end_warm(assignment.fence.session_id):
            return self.unkillable(assignment, begun, "")
        outcome = Outcome(RunStatus.TIMED_OUT, error=reason.error, agent="")
        return Finished(Settlement(assignment.fence, outcome), assignment.ready_class, self.since(begun))

    def failed(self, assignment: Assignment, agent: Agent, kind: str, begun: float, error: AgentError) -> Ending:
        """There is an agent, and nothing for it to do."""
        if not agent.close(CLOSE_GRACE):
            return self.unkillable(assignment, begun, kind)
        outcome = Outcome(RunStatus.FAILED, error=RunError(error.code, error.message), agent=kind)
        return Finished(Settlement(assignment.fence, outcome), assignment.ready_class, self.since(begun))

    def drained(self, assignment: Assignment, begun: float, kind: str, *, asked: bool) -> Ending:
        """Its turn was ended by a drain. ``asked``: in the middle of a question, with which a conversation cannot
        move: the recovery policy decides, unless whoever drains has said it."""
        self.killed("drain")
        if assignment.drained is AtDeadline.FAIL:
            error = RunError("worker_drained", "its worker was drained, and the time given to its runs was over")
            outcome = Outcome(RunStatus.FAILED, error=error, agent=kind or "fresh")
            return Finished(Settlement(assignment.fence, outcome), assignment.ready_class, self.since(begun))
        if asked and assignment.drained is None:
            return Orphaned(assignment.fence, "worker_drained")
        return Returned(assignment.fence, assignment.ready_class)

    def unkillable(self, assignment: Assignment, begun: float, kind: str) -> Ending:
        """A tree that cannot be emptied: the run ends, the session is held, this worker takes no more."""
        self.killed("unkillable")
        self._cordon(f"the agent of session {assignment.fence.session_id} cannot be killed")
        error = RunError("agent_unkillable", "the agent's process tree could not be killed; the session is held")
        outcome = Outcome(RunStatus.FAILED, error=error, agent=kind or "fresh")
        settlement = Settlement(assignment.fence, outcome, keep_owner=False, hold=HoldReason.UNKILLABLE)
        return Finished(settlement, assignment.ready_class, self.since(begun))

    def killed(self, reason: str) -> None:
        """Count it."""
        self._context.telemetry.count("oah_agents_killed_total", reason=reason)

    def since(self, begun: float) -> float:
        """Seconds from a monotonic moment on."""
        return max(self._context.clock.monotonic() - begun, 0.0)
