"""The rate of submits: never over, never under for who waits as told."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from oah.core.policy.rate import MINUTE_US, Admitted, Rate, Refused, admit, rate_of

RATES = st.builds(Rate, st.integers(1, 5_000), st.integers(1, 500))
START = 1_800_000_000_000_000


def test_no_limit_and_the_burst_that_is_left_out() -> None:
    assert rate_of(None, 5) is None
    assert rate_of(60, None) == Rate(60, 60)
    assert rate_of(60, 1) == Rate(60, 1)


def test_a_burst_then_one_each_interval() -> None:
    rate, full = Rate(60, 3), 0
    for _ in range(3):
        answer = admit(full, rate, now_us=START)
        assert isinstance(answer, Admitted)
        full = answer.full_at
    assert admit(full, rate, now_us=START) == Refused(timedelta(seconds=1))
    assert isinstance(admit(full, rate, now_us=START + 1_000_000), Admitted)


@given(RATES, st.lists(st.integers(0, 5_000_000), min_size=1, max_size=200))
def test_never_more_than_burst_and_rate_in_any_stretch(rate: Rate, pauses: list[int]) -> None:
    now, full, let_in = START, 0, []
    for pause in pauses:
        now += pause
        answer = admit(full, rate, now_us=now)
        if isinstance(answer, Admitted):
            full = answer.full_at
            let_in.append(now)
    for first, begin in enumerate(let_in):
        for last in range(first, len(let_in)):
            assert last - first + 1 <= rate.burst + (let_in[last] - begin) / rate.every_us


@given(RATES, st.integers(1, 300))
def test_who_waits_as_told_gets_the_full_rate(rate: Rate, runs: int) -> None:
    now, full, let_in = START, 0, 0
    while let_in < runs:
        answer = admit(full, rate, now_us=now)
        match answer:
            case Admitted(full_at=then):
                full, let_in = then, let_in + 1
            case Refused(retry_after=wait):
                now += wait // timedelta(microseconds=1)
                assert isinstance(admit(full, rate, now_us=now), Admitted), "told to come, and let in"
    assert now - START <= max(runs - rate.burst, 0) * rate.every_us


@given(RATES, st.integers(-10 * MINUTE_US, 10 * MINUTE_US))
def test_a_clock_that_jumps_costs_a_burst_at_most(rate: Rate, jump: int) -> None:
    answer = admit(START, rate, now_us=START + jump)
    if isinstance(answer, Refused):
        assert answer.retry_after <= timedelta(microseconds=rate.every_us)
