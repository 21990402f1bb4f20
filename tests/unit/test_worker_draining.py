"""A drain by an operator: how long, what then, and how a run ends that was not waited for."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from oah.core.model.drain import AtDeadline, Drain, drain_from
from oah.core.model.ids import ClaimToken, SessionId
from oah.core.model.run import ReadyClass, RunStatus
from oah.worker.draining import FOR_EVER, Draining, give_back, grace_of
from oah.worker.endings import Endings
from oah.worker.work import Assignment, Finished, Orphaned, Returned
from tests.support.clock import StillClock
from tests.support.worker_doubles import Scripted, context, fence, started

T = ClaimToken("f" * 32)
SECOND = timedelta(seconds=1)


def assignment() -> Assignment:
    of = fence()
    return Assignment(started(SessionId(of.session_id), T), of, ReadyClass.INTERACTIVE)


@dataclass
class Place:
    """A worker that runs one run; its settings say a second, then `settings`."""

    settings: AtDeadline = AtDeadline.REQUEUE
    clock: StillClock = field(default_factory=StillClock)
    running: list[Assignment] = field(default_factory=lambda: [assignment()])
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        parts = context(Scripted(), Scripted(), clock=self.clock, on_drain=lambda: self.said.append("over"))
        object.__setattr__(parts.rules, "drain_then", self.settings)
        self.drains = Draining(
            parts,
            working=lambda: self.running,
            empty=lambda: not self.running,
            stop_claims=lambda: self.said.append("no claims"),
            end_parked=lambda: None,
            end_waiting=lambda then: self.said.append(f"waiting: {then}"),
        )

    def after(self, seconds: float) -> Assignment:
        self.clock.seconds += seconds
        self.drains()
        return self.running[0]


def test_runs_may_go_on_until_the_deadline_and_are_released_then() -> None:
    place = Place()
    place.drains.begin(Drain(timedelta(seconds=5)))
    assert not place.after(4.9).give_back and place.said == []
    run = place.after(0.2)
    assert run.give_back and run.drained is None
    assert place.said == ["no claims", "waiting: None"]
    place.running.clear()
    place.drains()
    place.drains()
    assert place.said[2:] == ["over"]


def test_a_deadline_that_is_not_kept_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    place = Place()
    place.drains.begin(Drain(timedelta(seconds=5), AtDeadline.WAIT))
    assert not any(place.after(2).give_back for _ in range(4)) and place.said == []
    assert [each.getMessage() for each in caplog.records] == ["the deadline of the drain has passed, runs go on: 1"]


def test_what_is_not_said_is_as_the_settings_have_it() -> None:
    place = Place(settings=AtDeadline.FAIL)
    place.drains.begin(Drain())
    assert not place.after(0.9).give_back
    run = place.after(0.2)
    assert run.give_back and run.drained is AtDeadline.FAIL


def test_a_later_order_counts_from_its_own_beginning_and_takes_the_place_of_the_first() -> None:
    place = Place()
    place.drains.begin(Drain(timedelta(seconds=1), AtDeadline.FAIL))
    place.clock.seconds += 0.9
    place.drains.begin(Drain(timedelta(seconds=1), AtDeadline.WAIT, stay=True))
    assert not place.after(1000).give_back
    place.running.clear()
    place.drains()
    assert place.said == [], "it stays"
    place.drains.begin(Drain(timedelta(0)))
    place.drains()
    assert place.said == ["over"]


def test_a_drain_that_was_taken_back_ends_nothing() -> None:
    place = Place()
    place.drains.begin(Drain(timedelta(seconds=1)))
    place.drains.end()
    assert not place.after(1000).give_back and not place.drains.on


def test_an_agent_is_ended_once() -> None:
    first, second = assignment(), assignment()
    give_back([first], AtDeadline.FAIL)
    give_back([first, second], AtDeadline.REQUEUE)
    assert (first.drained, second.drained) == (AtDeadline.FAIL, AtDeadline.REQUEUE)


@pytest.mark.parametrize(("asked", "ending"), [(False, Returned), (True, Orphaned)])
def test_what_is_not_to_fail_is_released_or_decided_by_the_recovery_policy(*, asked: bool, ending: type) -> None:
    parts = context(Scripted(), Scripted())
    endings = Endings(parts, parked=None, cordon=lambda reason: None)  # type: ignore[arg-type]
    run = assignment()
    assert isinstance(endings.drained(run, 0.0, "warm", asked=asked), ending)
    run.drained = AtDeadline.REQUEUE
    assert isinstance(endings.drained(run, 0.0, "warm", asked=asked), Returned), "whoever drains has said it"
    run.drained = AtDeadline.FAIL
    failed = endings.drained(run, 0.0, "warm", asked=asked)
    assert isinstance(failed, Finished)
    outcome = failed.settlement.outcome
    assert outcome.status is RunStatus.FAILED
    assert outcome.error is not None and outcome.error.code == "worker_drained"


def test_what_a_command_carries_is_what_was_wished() -> None:
    for wish in (Drain(), Drain(SECOND), Drain(SECOND / 2, AtDeadline.WAIT, stay=True)):
        assert drain_from(wish.data()) == wish
    assert drain_from({"then": "explode", "deadline_ms": "soon", "stay": "yes"}) == Drain()


def test_a_stop_by_signal_waits_for_ever_only_when_the_settings_say_so() -> None:
    assert grace_of(AtDeadline.REQUEUE, SECOND) == SECOND
    assert grace_of(AtDeadline.WAIT, SECOND) == FOR_EVER
