"""Quantiles of durations out of buckets that add up."""

from __future__ import annotations

import math
from collections import Counter
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from oah.core.policy.quantiles import LAST, bucket, merged, quantile

waits = st.lists(st.floats(min_value=0.001, max_value=1e6), min_size=1, max_size=60)


@given(waits, st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_a_quantile_is_right_within_five_per_cent(seconds: list[float], share: float) -> None:
    exact = sorted(seconds)[max(1, math.ceil(share * len(seconds))) - 1]
    found = quantile(Counter(map(bucket, seconds)), share)
    assert found is not None
    assert abs(found.total_seconds() - exact) <= 0.05 * exact + 1e-6


@given(waits, waits)
def test_what_two_processes_saw_adds_up(one: list[float], other: list[float]) -> None:
    parts = [Counter(map(bucket, one)), Counter(map(bucket, other))]
    assert merged(parts) == Counter(map(bucket, one + other))


def test_of_nothing_and_beyond_the_edges() -> None:
    assert quantile({}, 0.5) is None
    assert quantile({0: 3}, 0.95) == timedelta(milliseconds=1)
    assert bucket(-1) == bucket(0) == 0
    assert bucket(1e300) == LAST
