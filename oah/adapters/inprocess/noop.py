"""The profile `noop`: answers at once, in memory. What remains of a run is the cost of everything else."""

from __future__ import annotations

from datetime import timedelta

from oah.core.dialogue.marker import input_fault
from oah.errors import Conflict, NotFound
from oah.ports.agent import (
    MAX_RESULT_BYTES,
    Agent,
    AgentFactory,
    AgentSpec,
    TurnControl,
    TurnRequest,
    TurnResult,
    TurnStatus,
)
from oah.ports.commands import Delivery
from oah.ports.opening import Opening

PROFILE = "noop"


class NoopAgent:
    """ports.agent.Agent. Says what it was told."""

    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id
        self._closed = False

    @property
    def agent_id(self) -> str:
        return self._agent_id

    @property
    def warm(self) -> bool:
        return not self._closed

    @property
    def opening(self) -> Opening:
        """It remembers nothing."""
        return Opening()

    def bind(self, *, run_id: str, attempt: int) -> None:
        """Nothing is recorded."""

    def turn(self, request: TurnRequest, control: TurnControl) -> TurnResult:
        """The input is the answer."""
        fault = input_fault(request.input, limit=MAX_RESULT_BYTES)
        if fault is not None:
            return TurnResult(status=TurnStatus.FAILED, error_code=fault[0], error_message=fault[1], keep_warm=True)
        if control.cancel_requested():
            return TurnResult(status=TurnStatus.CANCELLED, keep_warm=True)
        return TurnResult(status=TurnStatus.COMPLETED, output=request.input, exit_code=0, keep_warm=True)

    def finish(self) -> str | None:
        """Nothing is recorded."""
        return None

    def resume(self, request: TurnRequest, answer: str | None, control: TurnControl) -> TurnResult:
        """It never asks."""
        raise Conflict("no turn of this agent waits", code="not_waiting")

    def asks(self) -> bool:
        """See ports.agent.Agent."""
        return True

    def say(self, text: str, timeout: timedelta, *, asked_for: bool = False) -> Delivery:
        """It has answered before anybody can speak."""
        return Delivery.UNSUPPORTED

    def alive(self) -> bool:
        return not self._closed

    def close(self, grace: timedelta) -> bool:
        self._closed = True
        return True


class NoopAgents:
    """ports.agent.AgentFactory for `noop`."""

    def profiles(self) -> tuple[str, ...]:
        return (PROFILE,)

    def open(self, spec: AgentSpec) -> NoopAgent:
        if spec.profile != PROFILE:
            raise NotFound(f"no agent {spec.profile!r} here", code="unknown_agent")
        return NoopAgent(spec.agent_id)


class AgentsByProfile:
    """ports.agent.AgentFactory over several: the first that knows a profile opens it."""

    def __init__(self, *factories: AgentFactory) -> None:
        self._by_profile: dict[str, AgentFactory] = {}
        for factory in factories:
            for name in factory.profiles():
                self._by_profile.setdefault(name, factory)

    def profiles(self) -> tuple[str, ...]:
        return tuple(sorted(self._by_profile))

    def open(self, spec: AgentSpec) -> Agent:
        factory = self._by_profile.get(spec.profile)
        if factory is None:
            known = ", ".join(self.profiles())
            raise NotFound(f"no agent {spec.profile!r}", code="unknown_agent", hint=f"known agents: {known}")
        return factory.open(spec)
