"""Commands about single runs and sessions: said once, answered once, and nothing is done to what is not ours."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from oah.core.model.ids import SessionId
from oah.core.model.run import ReadyClass
from oah.errors import NotFound, Unavailable
from oah.ports.broker import Claimed
from oah.ports.commands import CommandKind, Delivery, WorkerCommand
from oah.ports.store import AfterRun
from oah.worker import speaker
from oah.worker.errands import Errands
from oah.worker.table import Table
from oah.worker.work import Assignment
from tests.support.waiting import eventually
from tests.support.worker_doubles import WORKER, Scripted, context, fence, started

F = fence()


class Desk:
    """Errands over one session whose run works in a slot."""

    def __init__(self, store: Any, agent: Any = None) -> None:
        self.table = Table(lease=timedelta(seconds=30), margin=timedelta(seconds=5))
        self.table.request(F.token)
        self.table.answered(F.token, [Claimed(F.session_id, F.token, False, ReadyClass.INTERACTIVE)], sent_at=0.0)
        self.run = started(F.session_id, F.token)
        self.entry = self.table.started(self.run, F.token, begun_at=0.0)
        assert self.entry.fence is not None
        self.assignment = Assignment(self.run, self.entry.fence, ReadyClass.INTERACTIVE, agent)
        self.ended: list[list[SessionId]] = []
        self.hints: list[Any] = []
        slots: Any = SimpleNamespace(working=[self.assignment])
        keeper: Any = SimpleNamespace(end=self.ended.append)
        self.errands = Errands(context(store, Scripted()), self.table, slots, keeper)
        self.errands.speaker.happened = self.hints.extend

    def command(self, kind: CommandKind, *, attempt: int | None = None, **data: Any) -> WorkerCommand:
        run = self.run.run
        return WorkerCommand(7, WORKER, kind, "me", run.id, run.attempt if attempt is None else attempt, data)

    def steer(self, **more: Any) -> None:
        self.errands(self.command(CommandKind.STEER, text="hello", **more))


def says(delivery: Delivery | Callable[[], Delivery]) -> Any:
    """An agent that can be spoken to; remembers what it was told."""
    told: list[str] = []

    def say(text: str, timeout: timedelta, *, asked_for: bool = False) -> Delivery:
        told.append(text)
        return delivery() if callable(delivery) else delivery

    return SimpleNamespace(say=say, told=told)


def answered(store: Scripted) -> list[Any]:
    """(command, delivery) of every answer, once there is one."""
    eventually(lambda: store.called("answer_command"), within=10, what="an answer")
    return [args for name, args, _ in store.calls if name == "answer_command"]


def test_a_text_is_said_and_answered_and_streams_hear_of_it() -> None:
    store, agent = Scripted(answer_command=[12]), says(Delivery.DELIVERED)
    desk = Desk(store, agent)
    desk.steer()
    assert answered(store) == [(7, Delivery.DELIVERED)] and agent.told == ["hello"]
    eventually(lambda: desk.hints == [(F.session_id, 12)], within=5, what="the hint")


@pytest.mark.parametrize("why", ["attempt", "cancelled", "lost"])
def test_nothing_is_said_to_another_attempt_or_to_one_that_is_to_end(why: str) -> None:
    store, agent = Scripted(answer_command=[12]), says(Delivery.DELIVERED)
    desk = Desk(store, agent)
    desk.entry.cancel_requested = why == "cancelled"
    desk.assignment.lost = why == "lost"
    desk.steer(attempt=desk.run.run.attempt + (why == "attempt"))
    assert answered(store) == [(7, Delivery.MISSED)] and agent.told == []


def test_an_agent_that_is_still_being_opened_is_waited_for() -> None:
    store, agent = Scripted(answer_command=[12]), says(Delivery.UNVERIFIED)
    desk = Desk(store)
    desk.steer()
    desk.assignment.agent = agent
    assert answered(store) == [(7, Delivery.UNVERIFIED)] and agent.told == ["hello"]


def test_one_that_never_opens_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaker, "TURN_BEGINS", -1.0)
    store = Scripted(answer_command=[12])
    Desk(store).steer()
    assert answered(store) == [(7, Delivery.MISSED)]


def test_an_answer_is_repeated_while_the_store_is_away_and_the_text_is_not() -> None:
    store, agent = Scripted(answer_command=[Unavailable("away"), 12]), says(Delivery.DELIVERED)
    Desk(store, agent).steer()
    eventually(lambda: store.called("answer_command") == 2, within=10, what="a second answer")
    assert agent.told == ["hello"]


def test_a_command_that_is_gone_and_an_agent_that_breaks_end_nothing() -> None:
    def breaks() -> Delivery:
        raise RuntimeError("broken terminal")

    store = Scripted(answer_command=[NotFound("gone")])
    Desk(store, says(breaks)).steer()
    assert answered(store) == [(7, Delivery.UNVERIFIED)]


@pytest.mark.parametrize(("event", "delivery"), [(9, Delivery.DELIVERED), (0, Delivery.MISSED)])
def test_an_input_is_said_by_whoever_has_resumed_the_run(event: int, delivery: Delivery) -> None:
    store = Scripted(resume_run=[SimpleNamespace(event_number=event)], input_given=[SimpleNamespace(event_number=0)])
    agent = says(Delivery.DELIVERED)
    desk = Desk(store, agent)
    desk.errands(desk.command(CommandKind.INPUT, text="yes"))
    eventually(lambda: store.called("input_given"), within=10, what="an answer")
    [(args, named)] = [(args, named) for name, args, named in store.calls if name == "input_given"]
    assert (args[1:], named) == ((7, delivery), {"resumed": bool(event)})
    assert agent.told == (["yes"] if event else [])


def test_an_end_is_hurried_for_the_attempt_that_was_named() -> None:
    desk = Desk(Scripted())
    desk.errands(desk.command(CommandKind.KILL, attempt=99, after_ms=5))
    assert (desk.entry.cancel_requested, desk.entry.kill_after) == (False, None)
    desk.errands(desk.command(CommandKind.KILL, after_ms=1_500))
    assert (desk.entry.cancel_requested, desk.entry.kill_after) == (True, timedelta(seconds=1.5))
    again = desk.table.started(desk.run, F.token, begun_at=1.0)
    assert again.kill_after is None, "the next run of the session has its own"


def test_a_closed_session_keeps_its_agent_for_what_still_waits() -> None:
    desk = Desk(Scripted())
    close = WorkerCommand(8, WORKER, CommandKind.CLOSE, "me", data={"session_id": F.session_id})
    desk.errands(close)
    eventually(lambda: desk.ended == [[F.session_id]], within=5, what="the parked agent is ended, should there be one")
    desk.errands.parked(F.session_id, AfterRun(True, ReadyClass.INTERACTIVE))
    desk.errands.parked(SessionId("another"), AfterRun(True, None))
    assert len(desk.ended) == 1
    desk.errands.parked(F.session_id, AfterRun(True, None))
    eventually(lambda: len(desk.ended) == 2, within=5, what="the last agent is ended")
    desk.errands(WorkerCommand(9, WORKER, CommandKind.CLOSE, "me", data={"session_id": "not ours"}))
    assert len(desk.ended) == 2
