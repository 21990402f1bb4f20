"""How long a session sticks to the worker that has its agent warm."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from oah.core.model.ids import SessionId
from oah.core.model.run import ReadyClass
from oah.core.policy.pressure import Pressure
from oah.worker.keeper import BLOCKED, Keeper
from oah.worker.parked import Parked
from oah.worker.table import Table
from tests.support.clock import StillClock
from tests.support.worker_doubles import Scripted, WarmAgent, context, fence

CALLED, IDLE = fence(1), fence(2)
WINDOW = 2.0


class Desk:
    """Two warm agents; a run waits for the first."""

    def __init__(self) -> None:
        self.clock = StillClock()
        waits = SimpleNamespace(session_id=CALLED.session_id, ready_class=ReadyClass.INTERACTIVE, holds=())
        nothing = SimpleNamespace(session_id=IDLE.session_id, ready_class=None, holds=())
        self.store = Scripted(queued_sessions_of=[[waits, nothing]])
        self.context = context(self.store, Scripted(), clock=self.clock)
        slots: Any = SimpleNamespace(idle=0)
        settler: Any = Scripted(ended=[None])
        self.slots = slots
        self.keeper = Keeper(
            self.context, Table(lease=timedelta(seconds=30), margin=timedelta(seconds=5)), slots, settler
        )
        self.ended: list[SessionId] = []
        self.keeper.parked = Parked(
            capacity=9,
            idle=timedelta(hours=1),
            clock=self.clock,
            ended=lambda warm, empty: self.ended.append(warm.session_id),
        )
        for each in (CALLED, IDLE):
            self.keeper.parked.put(each.session_id, each.token, WarmAgent())  # type: ignore[arg-type]

    def after(self, seconds: float) -> list[SessionId]:
        """A pass then; who was handed on."""
        self.clock.seconds += seconds
        self.keeper()
        found, self.ended = self.ended, []
        return found


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_while_every_slot_is_taken_it_sticks_for_a_window(desk: Desk) -> None:
    assert desk.after(0) == desk.after(WINDOW - 0.1) == []
    assert desk.after(0.2) == [CALLED.session_id], "and what nobody waits for stays warm"


def test_a_slot_that_comes_free_begins_the_window_anew(desk: Desk) -> None:
    desk.after(0)
    desk.slots.idle = 1
    desk.after(WINDOW)
    desk.slots.idle = 0
    assert desk.after(0.1) == []


def test_a_cordoned_worker_hands_on_at_once(desk: Desk) -> None:
    desk.slots.idle, desk.keeper.taking = 2, lambda: False
    assert desk.after(0) == [CALLED.session_id]


def test_a_worker_under_pressure_keeps_it_for_the_window(desk: Desk) -> None:
    elastic: Any = SimpleNamespace(pressure=Pressure({"load": 1.0}), short_of_memory=False)  # type: ignore[dict-item]
    desk.slots.idle, desk.keeper.taking, desk.keeper.elastic = 2, lambda: False, elastic
    assert desk.after(0) == []
    assert desk.after(WINDOW) == [CALLED.session_id]


def test_what_a_cap_keeps_from_starting_does_not_stick_for_ever(desk: Desk) -> None:
    """Its owner would hear of a free slot last: whoever is woken first has taken it."""
    desk.slots.idle = 1
    assert [desk.after(WINDOW) for _ in range(BLOCKED)] == [[]] * BLOCKED
    assert desk.after(WINDOW) == [CALLED.session_id]


def test_what_was_started_meanwhile_is_not_blocked(desk: Desk) -> None:
    desk.slots.idle = 1
    desk.after(WINDOW)
    waiting = desk.store.answers["queued_sessions_of"][0]
    desk.store.answers["queued_sessions_of"] = [[]]
    desk.after(WINDOW)
    desk.store.answers["queued_sessions_of"] = [waiting]
    assert [desk.after(WINDOW) for _ in range(BLOCKED)] == [[]] * BLOCKED


def test_sql_is_asked_once_a_window_and_never_without_warm_agents(desk: Desk) -> None:
    desk.slots.idle = 1
    for _ in range(40):
        desk.after(0.1)
    assert desk.store.called("queued_sessions_of") <= 3
    for each in (CALLED, IDLE):
        desk.keeper.parked.take(each.session_id)
    before = desk.store.called("queued_sessions_of")
    for _ in range(5):
        desk.after(WINDOW)
    assert desk.store.called("queued_sessions_of") == before
