"""Quantiles of durations that many processes measure: counts in buckets whose edges grow by a tenth, so that what one
process has seen is a few numbers, two of them add up, and a quantile of the sum is right within five per cent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta

GROWTH = 1.1
FIRST = 0.001
"""Seconds of the upper edge of bucket 0."""
LAST = 250
"""The last bucket: longer than twenty months."""

Buckets = Mapping[int, int]
"""Bucket → how many."""


def bucket(seconds: float) -> int:
    """Where a duration belongs; negative ones are none."""
    if seconds <= FIRST:
        return 0
    return min(LAST, math.ceil(math.log(seconds / FIRST, GROWTH) - 1e-9))


def merged(parts: Iterable[Buckets]) -> dict[int, int]:
    """All together."""
    total: Counter[int] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)


def quantile(buckets: Buckets, share: float) -> timedelta | None:
    """The duration that `share` of them (0 to 1) does not exceed; None of nothing."""
    count = sum(buckets.values())
    if not count:
        return None
    rank, seen = max(1, math.ceil(share * count)), 0
    for number in sorted(buckets):
        seen += buckets[number]
        if seen >= rank:
            break
    return timedelta(seconds=_middle(number))


def _middle(number: int) -> float:
    """Of its edges, so that it is as wrong above as below."""
    return FIRST if number == 0 else FIRST * 2 * GROWTH**number / (GROWTH + 1)
