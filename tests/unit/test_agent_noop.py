"""The agent in process, and the factory over factories."""

from datetime import timedelta

import pytest

from oah.adapters.inprocess.noop import AgentsByProfile, NoopAgents
from oah.errors import NotFound
from oah.ports.agent import AgentSpec, TurnRequest, TurnStatus
from oah.testing.turns import HeldTurn


def spec(profile: str = "noop") -> AgentSpec:
    return AgentSpec(
        agent_id="a",
        session_id="s",
        workspace_id="w",
        profile=profile,
        run_id="r",
        attempt=1,
        worker_id="w.1",
        cwd="/nonesuch",
        home="/nonesuch",
        deadline_boottime=0.0,
    )


def request(text: str) -> TurnRequest:
    return TurnRequest(run_id="r", attempt=1, input=text)


def test_noop_says_what_it_was_told_and_stays_warm_until_closed() -> None:
    agent = NoopAgents().open(spec())
    agent.bind(run_id="r", attempt=2)
    result = agent.turn(request("hello"), HeldTurn())
    assert (result.status, result.output, result.exit_code, result.keep_warm) == (
        TurnStatus.COMPLETED,
        "hello",
        0,
        True,
    )
    assert agent.warm
    assert agent.close(timedelta(0))
    assert not agent.warm
    assert not agent.alive()


def test_noop_refuses_and_cancels_like_the_others() -> None:
    agent = NoopAgents().open(spec())
    assert agent.turn(request("a\0"), HeldTurn()).error_code == "input_rejected"
    control = HeldTurn()
    control.cancel()
    assert agent.turn(request("x"), control).status is TurnStatus.CANCELLED


def test_the_first_factory_that_knows_a_profile_opens_it() -> None:
    agents = AgentsByProfile(NoopAgents(), NoopAgents())
    assert agents.profiles() == ("noop",)
    assert agents.open(spec()).agent_id == "a"
    with pytest.raises(NotFound) as caught:
        agents.open(spec("nonesuch"))
    assert caught.value.code == "unknown_agent"
    assert caught.value.hint == "known agents: noop"
    with pytest.raises(NotFound):
        NoopAgents().open(spec("shell"))
