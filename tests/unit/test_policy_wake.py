"""Whether messages start an agent: every case, and what must hold in all of them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oah.core.model.message import WakeMode
from oah.core.policy.wake import SESSION_CLOSED, UNRECOVERABLE, Lost, NotNow, Rules, View, Wake, WhyNot, decide, stops

EAGER, LAZY = WakeMode.EAGER, WakeMode.LAZY
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("view", "decision"),
    [
        (View(waiting=0, mode=EAGER), NotNow(WhyNot.NOTHING_WAITS)),
        (View(waiting=1), NotNow(WhyNot.LAZY)),
        (View(waiting=1, mode=EAGER), Wake()),
        (View(waiting=1, mode=EAGER, pause_left=SECOND), Wake(SECOND)),
        (View(waiting=1, mode=EAGER, pause_left=-SECOND), Wake()),
        (View(waiting=1, alive=True), Wake()),
        (View(waiting=1, alive=True, pause_left=SECOND), Wake()),
        (View(waiting=1, alive=True, stopped="crashes", mode=EAGER), Wake()),
        (View(waiting=1, mode=EAGER, stopped="crashes"), NotNow(WhyNot.STOPPED)),
        (View(waiting=9, mode=EAGER, under_way=True), NotNow(WhyNot.UNDER_WAY)),
        (View(waiting=9, mode=EAGER, run_next=True), NotNow(WhyNot.RUN_NEXT)),
        (View(waiting=1, mode=EAGER, had_turns=True, resumable=True), Wake()),
        (View(waiting=1, mode=EAGER, had_turns=True, alive=True), Wake()),
        (View(waiting=1, mode=EAGER, had_turns=True), Lost(UNRECOVERABLE)),
        (View(waiting=1, had_turns=True), Lost(UNRECOVERABLE)),
        (View(waiting=1, had_turns=True, resumable=True), NotNow(WhyNot.LAZY)),
        (View(waiting=1, mode=EAGER, is_open=False), Lost(SESSION_CLOSED)),
    ],
)
def test_cases(view: View, decision: object) -> None:
    assert decide(view) == decision


views = st.builds(
    View,
    waiting=st.integers(0, 3),
    mode=st.sampled_from(WakeMode),
    is_open=st.booleans(),
    under_way=st.booleans(),
    run_next=st.booleans(),
    alive=st.booleans(),
    had_turns=st.booleans(),
    resumable=st.booleans(),
    stopped=st.sampled_from([None, "crashes"]),
    pause_left=st.timedeltas(-SECOND, SECOND),
)


@given(views)
def test_a_wake_has_a_reason_and_nothing_beside_it(view: View) -> None:
    decision = decide(view)
    if isinstance(decision, Wake):
        assert view.waiting
        assert view.is_open
        assert not view.under_way
        assert not view.run_next
        assert view.alive or (view.mode is EAGER and not view.stopped)
        assert decision.after >= timedelta(0)
        assert view.alive is False or decision.after == timedelta(0), "no start, no pause"
        assert view.alive or view.resumable or not view.had_turns, "nobody is told things meant for somebody else"


@given(views)
def test_whatever_waits_is_taken_by_somebody_or_ends_or_waits_for_a_person(view: View) -> None:
    match decide(view):
        case NotNow(why=WhyNot.NOTHING_WAITS):
            assert not view.waiting
        case NotNow(why=WhyNot.UNDER_WAY):
            assert view.under_way
        case NotNow(why=WhyNot.RUN_NEXT):
            assert view.run_next
        case NotNow(why=WhyNot.LAZY):
            assert view.mode is LAZY
        case NotNow(why=WhyNot.STOPPED):
            assert view.stopped
        case Lost() | Wake():
            assert view.waiting


def test_three_failures_are_enough() -> None:
    assert [stops(number, Rules()) for number in range(5)] == [False, False, False, True, True]
