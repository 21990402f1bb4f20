"""How large a pool should be: bounded, monotone, calm under constant load, and never smaller for what is not known."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oah.core.policy.scaling import Decision, History, Reason, Rules, Signals, decide

SECOND = timedelta(seconds=1)
counts = st.integers(0, 400)
moments = st.none() | st.floats(0, 2_000)
signals = st.builds(
    Signals,
    ready=counts,
    subagent_ready=st.integers(0, 20),
    running=counts,
    waiting=st.integers(0, 20),
    slots=counts,
    idle_slots=st.integers(0, 20),
    starting=st.integers(0, 20),
    oldest_wait=st.timedeltas(timedelta(0), timedelta(minutes=5)),
    wait_p95=st.none() | st.timedeltas(timedelta(0), timedelta(minutes=5)),
    sure=st.booleans(),
)
rules = st.builds(
    lambda minimum, more, **rest: Rules(minimum=minimum, maximum=minimum + more, **rest),
    st.integers(0, 20),
    st.integers(0, 30),
    per_unit=st.integers(1, 8),
    slots_per_unit=st.integers(1, 8),
    subagent_reserve=st.integers(0, 3),
    busy_ratio=st.floats(0.1, 1),
    target_wait=st.none() | st.timedeltas(SECOND, timedelta(minutes=1)),
    up_window=st.integers(1, 4),
    down_window=st.integers(1, 4),
    up_cooldown=st.timedeltas(timedelta(0), timedelta(minutes=1)),
    down_cooldown=st.timedeltas(timedelta(0), timedelta(minutes=1)),
)
histories = st.builds(
    History,
    above=st.integers(0, 5),
    lately=st.lists(st.integers(0, 20), max_size=4).map(tuple),
    last_up=moments,
    last_change=moments,
    strained=moments,
    started=st.booleans(),
)
STARTED = History(started=True)
CALM = Rules(minimum=0, maximum=100, up_window=2, down_window=3)


def answer(seen: Signals, given_rules: Rules = CALM, *, current: int, history: History = STARTED) -> Decision:
    return decide(seen, given_rules, current=current, history=history, now=1_000.0)


def suggested(seen: Signals, given_rules: Rules = CALM, *, current: int = 1) -> int:
    return answer(seen, given_rules, current=current).suggested


class TestAlways:
    @given(signals, rules, st.integers(0, 150), histories, st.floats(0, 2_000))
    def test_is_bounded_and_says_what_it_does(
        self, seen: Signals, law: Rules, current: int, history: History, now: float
    ) -> None:
        decision = decide(seen, law, current=current, history=history, now=now)
        assert law.minimum <= decision.suggested <= law.maximum
        assert decision.history.started
        holds = {Reason.STEADY, Reason.WINDOW_HOLD, Reason.COOLDOWN_HOLD, Reason.BLIND_HOLD}
        assert (decision.desired == current) == (decision.reason in holds)  # a hold writes nothing, nothing else holds
        if decision.desired != current:
            assert law.minimum <= decision.desired <= law.maximum
        assert all(units >= 0 for units in decision.pressures.values())

    @given(signals, rules, st.integers(0, 150), histories, st.floats(0, 2_000))
    def test_is_never_smaller_when_blind_or_at_the_first_answer(
        self, seen: Signals, law: Rules, current: int, history: History, now: float
    ) -> None:
        blind = decide(replace(seen, sure=False), law, current=current, history=history, now=now)
        assert blind.desired >= current
        first = decide(seen, law, current=min(current, law.maximum), history=History(), now=now)
        assert law.down_window == 1 or first.desired >= min(current, law.maximum)

    @given(signals, rules, st.integers(0, 150), histories, st.integers(0, 50), st.integers(0, 50), st.booleans())
    def test_more_work_never_wants_fewer(
        self, seen: Signals, law: Rules, current: int, history: History, more: int, older: int, told: bool
    ) -> None:
        worse = replace(
            seen,
            ready=seen.ready + more,
            running=seen.running + more,
            subagent_ready=seen.subagent_ready + more,
            oldest_wait=seen.oldest_wait + older * SECOND,
            wait_p95=seen.wait_p95 + older * SECOND if seen.wait_p95 is not None and told else seen.wait_p95,
        )
        less, much = (decide(s, law, current=current, history=history, now=999.0) for s in (seen, worse))
        assert less.suggested <= much.suggested
        assert less.desired <= much.desired

    @given(signals, rules, st.integers(1, 20), histories)
    def test_nothing_is_left_alone_with_zero(self, seen: Signals, law: Rules, current: int, history: History) -> None:
        decision = decide(seen, law, current=current, history=history, now=1_000.0)
        if decision.desired == 0 and law.maximum > 0:
            assert not (seen.ready or seen.running or seen.waiting or seen.subagent_ready)

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 200), rules, st.integers(0, 30))
    def test_constant_load_converges_and_stays(self, load: int, law: Rules, current: int) -> None:
        """Runs beyond the slots wait, for ever older. However it begins, the size changes a few times, and then not."""
        history, sizes = History(), list[int]()
        for step in range(300):
            slots = current * law.slots_per_unit
            running = min(load, slots)
            seen = Signals(
                ready=load - running,
                running=running,
                slots=slots,
                idle_slots=slots - running,
                oldest_wait=timedelta(seconds=step * 60),
                wait_p95=timedelta(seconds=60),
            )
            decision = decide(seen, law, current=current, history=history, now=step * 60)
            history, current = decision.history, decision.desired
            sizes.append(current)
        assert len(set(sizes[-80:])) == 1
        assert min(current * law.slots_per_unit, load) == min(law.maximum * law.slots_per_unit, load)
        turns = [b - a for a, b in pairwise(sizes) if a != b]
        assert sum((a > 0) != (b > 0) for a, b in pairwise(turns)) <= 1  # no to and fro


class TestPressures:
    def test_the_signal_is_queued_and_running_work(self) -> None:
        assert suggested(Signals(ready=3, running=5)) == 8
        assert suggested(Signals(ready=0, running=5)) == 5  # a backlog of nothing is no reason to shrink
        assert suggested(Signals(ready=9, running=0), replace(CALM, per_unit=4, slots_per_unit=4)) == 3

    def test_queued_runs_may_share_a_unit_but_running_ones_need_their_slots(self) -> None:
        sharing = replace(CALM, per_unit=10)
        assert suggested(Signals(ready=20, running=0), sharing) == 2
        assert suggested(Signals(ready=0, running=6), sharing) == 6

    def test_a_subagent_that_waits_wants_a_slot_beyond_those_that_are_busy(self) -> None:
        law = replace(CALM, per_unit=8, slots_per_unit=4, subagent_reserve=2)
        assert suggested(Signals(ready=1, running=8, subagent_ready=1), law) == 3
        assert suggested(Signals(ready=1, running=8), law) == 2

    @pytest.mark.parametrize(
        ("changes", "ages"),
        [
            ({}, True),
            ({"oldest_wait": SECOND}, False),
            ({"ready": 0}, False),
            ({"idle_slots": 5}, False),
            ({"starting": 3}, False),  # what is on its way counts as capacity
            ({"sure": False}, False),
        ],
    )
    def test_old_waiting_at_busy_slots_wants_one_more(self, changes: dict[str, object], ages: bool) -> None:
        law = replace(CALM, per_unit=100, slots_per_unit=4)
        seen = Signals(ready=1, running=16, slots=16, oldest_wait=3 * SECOND)
        assert suggested(replace(seen, **changes), law, current=4) == (5 if ages else 4)  # type: ignore[arg-type]

    @pytest.mark.parametrize(("p95", "size"), [(9, 8), (11, 9), (12, 10), (15, 12), (300, 12)])
    def test_waits_beyond_the_target_want_more_by_how_much_but_at_most_half(self, p95: int, size: int) -> None:
        law = replace(CALM, per_unit=100, target_wait=10 * SECOND, oldest_wait=timedelta(hours=1))
        seen = Signals(ready=20, running=8, slots=8, oldest_wait=20 * SECOND, wait_p95=p95 * SECOND)
        assert suggested(seen, law, current=8) == size
        few = replace(seen, ready=2)  # slots beyond one for each run serve nobody
        assert suggested(few, law, current=8) == min(size, 10)
        over = replace(seen, oldest_wait=SECOND)  # the percentile of the last minutes outlives its cause
        assert suggested(over, law, current=8) == 8

    def test_parked_agents_keep_one(self) -> None:
        assert suggested(Signals(waiting=1)) == 1
        assert suggested(Signals()) == 0

    def test_what_suggested_it_is_told(self) -> None:
        decision = answer(Signals(ready=3, running=5, slots=5, oldest_wait=3 * SECOND, subagent_ready=1), current=5)
        assert decision.pressures == {
            "queue": 3,
            "saturation": 8,
            "running": 5,
            "alive": 1,
            "subagent": 6,
            "ageing": 6,
        }


def series(law: Rules, loads: list[int], *, current: int, tick: float = 1.0) -> list[tuple[int, str]]:
    """(size, reason) after each sample; whatever is decided stands at the next one."""
    history, found = STARTED, []
    for step, load in enumerate(loads):
        running = min(load, current)
        seen = Signals(ready=load - running, running=running, slots=current, idle_slots=current - running)
        decision = decide(seen, law, current=current, history=history, now=step * tick)
        history, current = decision.history, decision.desired
        found.append((current, decision.reason.value))
    return found


class TestDamping:
    def test_the_first_answer_goes_straight_up_and_waits_with_going_down(self) -> None:
        up = answer(Signals(ready=9), current=1, history=History())
        assert (up.desired, up.reason) == (9, Reason.STARTUP)
        down = answer(Signals(), current=5, history=History())
        assert (down.desired, down.reason) == (5, Reason.WINDOW_HOLD)

    def test_a_suggestion_must_stand_for_its_window(self) -> None:
        assert series(CALM, [3, 3], current=1) == [(1, "window_hold"), (3, "scale_up")]
        assert series(CALM, [3, 1, 3, 1], current=1) == [
            (1, "window_hold"),
            (1, "steady"),
            (1, "window_hold"),
            (1, "steady"),
        ]
        assert series(CALM, [2, 2, 2], current=4)[-1] == (2, "scale_down")

    def test_a_shrink_goes_to_the_largest_that_was_suggested_in_its_window(self) -> None:
        assert series(CALM, [9, 3, 7, 1], current=10)[-2:] == [(9, "scale_down"), (9, "cooldown_hold")]
        assert series(CALM, [8, 3, 7, 1], current=8)[-1] == (7, "scale_down")

    def test_with_nobody_there_one_sample_is_enough(self) -> None:
        assert series(CALM, [3], current=0) == [(3, "scale_up")]

    def test_cooldowns_hold_upwards_since_the_last_up_and_downwards_since_any_change(self) -> None:
        law = replace(CALM, up_cooldown=5 * SECOND, down_cooldown=8 * SECOND)
        sizes = series(law, [2, 2, 3, 3, 3, 3, 3], current=1)
        assert sizes == [
            (1, "window_hold"),
            (2, "scale_up"),
            (2, "window_hold"),
            *[(2, "cooldown_hold")] * 3,
            (3, "scale_up"),
        ]
        sizes = series(law, [4, 4] + [1] * 8, current=1)
        assert [reason for _, reason in sizes].count("cooldown_hold") == 5
        assert sizes[-1] == (1, "scale_down")
        after_down = series(law, [1] * 3 + [6] * 2, current=4)
        assert after_down[-1] == (6, "scale_up")  # a shrink does not hold a growth

    def test_bounds_are_mended_at_once(self) -> None:
        law = replace(CALM, minimum=2, maximum=4)
        low, high = answer(Signals(), law, current=0), answer(Signals(running=9), law, current=10)
        assert (low.desired, low.reason, high.desired, high.reason) == (2, Reason.BOUNDS, 4, Reason.BOUNDS)
        blind = answer(Signals(running=9, sure=False), law, current=10)
        assert (blind.desired, blind.reason) == (10, Reason.BLIND_HOLD)

    def test_a_blip_holds_and_the_window_begins_anew(self) -> None:
        history, reasons = STARTED, []
        for step, sure in enumerate([True, True, False, True, True, True]):
            decision = decide(Signals(sure=sure), CALM, current=6, history=history, now=1_000.0 + step)
            history = decision.history
            reasons.append(decision.reason.value)
        assert reasons == ["window_hold"] * 2 + ["blind_hold"] + ["window_hold"] * 2 + ["scale_down"]

    def test_blind_it_still_grows_by_what_is_counted(self) -> None:
        seen = Signals(ready=9, sure=False)
        history = answer(seen, current=1).history
        assert answer(seen, current=1, history=history).desired == 9

    def test_a_clock_that_went_back_holds_for_one_cooldown_at_most(self) -> None:
        ahead = History(started=True, last_up=9_000.0, last_change=9_000.0, lately=(0,) * 3, above=3, strained=9_000.0)
        down = answer(Signals(), current=5, history=ahead)
        assert down.reason is Reason.COOLDOWN_HOLD
        later = decide(Signals(), CALM, current=5, history=down.history, now=1_015.0)
        assert (later.desired, later.reason) == (0, Reason.SCALE_DOWN)

    def test_a_shrink_that_was_regretted_is_not_tried_again_soon(self) -> None:
        law = replace(CALM, up_window=1, down_window=1, up_cooldown=0 * SECOND, down_cooldown=0 * SECOND)
        sizes = [size for size, _ in series(law, [15, 12, 15, 12, 12, 10, 8], current=15)]
        assert sizes == [15, 12, 15, 15, 15, 14, 11]  # from 15: while 12 run, 16 would be 75 % busy; 10: 14; 8: 11
        later = [size for size, _ in series(law, [15, 12, 15, 12], current=15, tick=601.0)]
        assert later == [15, 12, 15, 12]

    def test_a_size_that_was_too_small_is_not_tried_again_at_the_same_load(self) -> None:
        """18 runs on 5 units of 4 slots waited too long. On 6 they do not; counting alone would go back to 5."""
        law = replace(CALM, slots_per_unit=4, per_unit=4, up_window=1, down_window=1, down_cooldown=SECOND)
        strained = Signals(ready=2, running=18, slots=20, idle_slots=2, oldest_wait=5 * SECOND)
        grown = answer(strained, law, current=5)
        assert (grown.desired, grown.history.strained) == (6, 1_000.0)
        calm = Signals(running=18, slots=24, idle_slots=6)
        held = decide(calm, law, current=6, history=grown.history, now=1_500.0)
        assert (held.desired, held.reason, held.pressures["memory"]) == (6, Reason.STEADY, 6)
        less = decide(replace(calm, running=12, idle_slots=12), law, current=6, history=grown.history, now=1_500.0)
        assert less.desired == 4
        forgotten = decide(calm, law, current=6, history=grown.history, now=1_601.0)
        assert forgotten.desired == 5
