"""Turns that take too long, each by another limit: who is killed, who lives on, and what the outcome says."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from oah.core.model.timeout import TimeoutReason
from oah.ports.agent import TurnResult, TurnStatus
from oah.testing.turns import HeldTurn
from tests.support.terminals import Bench, bench, nap, napping

SPINNER = r"""
i=0
while :; do for c in '|' / - '\'; do i=$((i+1)); printf '\r%s Working... (%ss)' $c $i; sleep 0.05; done; done
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("desk")) as made:
        yield made


@pytest.fixture
def desk(shared: Bench) -> Iterator[Bench]:
    yield shared.fresh()
    shared.close_agents()


def after(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def ended(result: TurnResult, reason: TimeoutReason | None) -> None:
    assert (result.status, result.error_code) == (TurnStatus.TIMED_OUT, reason)
    assert result.tree_empty


@pytest.mark.parametrize("profile", ["shell", "exec"])
def test_b25_an_agent_that_only_waits_is_ended_by_the_idle_time_out(desk: Bench, profile: str) -> None:
    ended(desk.turn(desk.open(profile), f"echo go; sleep {nap(7501)}", idle=after(0.8)), TimeoutReason.IDLE)
    assert napping(7501) == []


@pytest.mark.parametrize("profile", ["shell", "exec", "busy"])
def test_p19_a_spinner_over_something_dead_is_idle(desk: Bench, profile: str) -> None:
    ended(desk.turn(desk.open(profile), SPINNER, idle=after(1.5)), TimeoutReason.IDLE)


def test_p19_an_agent_that_says_something_now_and_then_lives(desk: Bench) -> None:
    result = desk.turn(desk.open("exec"), "for i in 1 2 3 4 5 6 7 8; do echo step; sleep 0.5; done", idle=after(3))
    assert result.status is TurnStatus.COMPLETED


def test_p19_who_works_in_silence_lives_where_processor_time_is_progress(desk: Bench) -> None:
    work = "timeout 5 sh -c 'while :; do :; done'; echo done"
    result = desk.turn(desk.open("busy"), work)
    assert (result.status, result.output) == (TurnStatus.COMPLETED, "done\n")
    ended(desk.turn(desk.open("exec"), work, idle=after(1.5)), TimeoutReason.IDLE)


def test_p19_who_neither_works_nor_speaks_is_idle_there_too(desk: Bench) -> None:
    ended(desk.turn(desk.open("busy"), "sleep 60"), TimeoutReason.IDLE)


def test_a_deadline_and_a_time_out_say_which_was_first(desk: Bench) -> None:
    ended(desk.turn(desk.open("exec"), "sleep 60", timeout=20, deadline_in=after(0.3)), TimeoutReason.DEADLINE)
    ended(desk.turn(desk.open("exec"), "sleep 60", timeout=0.3, deadline_in=after(20)), TimeoutReason.RUN)
    ended(desk.turn(desk.open("shell"), "sleep 60", timeout=20, deadline_in=after(0)), TimeoutReason.DEADLINE)


@pytest.mark.parametrize("reason", [TimeoutReason.STEP, TimeoutReason.MODEL])
def test_a_limit_that_others_watch_ends_the_turn_at_once(desk: Bench, reason: TimeoutReason) -> None:
    class Told(HeldTurn):
        def on_output(self, text: str) -> None:
            self.over = reason

    ended(desk.turn(desk.open("shell"), f"trap '' INT TERM; echo go; sleep {nap(7502)}", control=Told()), reason)
    assert napping(7502) == []


def test_what_was_heard_otherwise_counts_and_what_is_not_known_yet_is_waited_for(desk: Bench) -> None:
    asked: list[timedelta] = []

    class Heard(HeldTurn):
        def idle_for(self, seen: timedelta) -> timedelta | None:
            asked.append(seen)
            return None if len(asked) <= 2 else timedelta(0) if len(asked) == 3 else seen

    ended(desk.turn(desk.open("exec"), "sleep 60", idle=after(0.4), control=Heard()), TimeoutReason.IDLE)
    assert len(asked) == 4, "two without an answer, one that heard of a step, one that heard of nothing"
    assert asked[3] < asked[2] + after(0.4), "counted anew from what was heard"
