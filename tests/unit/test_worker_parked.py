"""Warm agents: bounded, oldest first, and never two trees of one session."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from oah.core.model.ids import ClaimToken, SessionId
from oah.errors import AgentError
from oah.ports.agent import TurnControl, TurnRequest, TurnResult
from oah.worker.parked import Parked, Warm
from tests.support import eventually
from tests.support.clock import StillClock

T = ClaimToken("a" * 32)


class WarmAgent:
    """An idle agent whose ending can be held up."""

    def __init__(self) -> None:
        self.agent_id = "agent"
        self.warm = True
        self.closed = threading.Event()
        self.may_close = threading.Event()
        self.may_close.set()

    def bind(self, *, run_id: str, attempt: int) -> None: ...

    def turn(self, request: TurnRequest, control: TurnControl) -> TurnResult:
        raise AssertionError("not in these tests")

    def alive(self) -> bool:
        return self.warm

    def close(self, grace: timedelta) -> bool:
        self.closed.set()
        return self.may_close.wait(60)


class Stubborn(WarmAgent):
    """Its tree cannot be emptied."""

    def close(self, grace: timedelta) -> bool:
        return False


class Told:
    """Remembers what the keeper was told."""

    def __init__(self) -> None:
        self.ended: list[tuple[SessionId, bool]] = []

    def __call__(self, warm: Warm, *, empty: bool) -> None:
        self.ended.append((warm.session_id, empty))


def parked(told: Told, clock: StillClock, *, capacity: int = 2) -> Parked:
    """A small one."""
    return Parked(capacity=capacity, idle=timedelta(seconds=60), clock=clock, ended=told)


def test_taken_once() -> None:
    clock, agent = StillClock(), WarmAgent()
    store = parked(Told(), clock)
    store.put(SessionId("s"), T, agent)
    assert store.take(SessionId("s")) is agent
    assert store.take(SessionId("s")) is None


def test_over_capacity_the_oldest_goes_first() -> None:
    clock = StillClock()
    store = parked(Told(), clock)
    for name in ("a", "b", "c"):
        store.put(SessionId(name), T, WarmAgent())
    assert store.expired() == ["a"]


def test_idle_for_too_long_or_dead() -> None:
    clock = StillClock()
    store = parked(Told(), clock)
    dead = WarmAgent()
    store.put(SessionId("old"), T, WarmAgent())
    clock.seconds += 61
    store.put(SessionId("dead"), T, dead)
    assert store.expired() == ["old"]
    dead.warm = False
    assert store.expired() == ["old", "dead"]


def test_a_dead_agent_is_never_handed_out() -> None:
    clock, agent = StillClock(), WarmAgent()
    store = parked(Told(), clock)
    store.put(SessionId("s"), T, agent)
    agent.warm = False
    assert store.take(SessionId("s")) is None
    assert agent.closed.is_set()


def test_a_dead_agent_whose_tree_stays_is_an_error_of_who_wants_the_session() -> None:
    clock, agent = StillClock(), Stubborn()
    store = parked(Told(), clock)
    store.put(SessionId("s"), T, agent)
    agent.warm = False
    with pytest.raises(AgentError) as caught:
        store.take(SessionId("s"))
    assert caught.value.code == "agent_unkillable"


def test_whoever_wants_the_session_waits_until_its_old_tree_is_gone() -> None:
    clock, agent, told = StillClock(), WarmAgent(), Told()
    agent.may_close.clear()
    store = parked(told, clock)
    store.put(SessionId("s"), T, agent)
    keeper = threading.Thread(target=store.end, args=([SessionId("s")],))
    keeper.start()
    assert agent.closed.wait(60)
    taken: list[object] = []
    slot = threading.Thread(target=lambda: taken.append(store.take(SessionId("s"))))
    slot.start()
    assert taken == [] and slot.is_alive()
    agent.may_close.set()
    keeper.join(60)
    slot.join(60)
    eventually(lambda: taken == [None])
    assert told.ended == [(SessionId("s"), True)]
