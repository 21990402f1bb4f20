"""Lanes of different weights share the slots of a worker: nothing is over-committed, nothing starves."""

from __future__ import annotations

from collections import Counter
from itertools import cycle

from hypothesis import given, settings
from hypothesis import strategies as st

from oah.core.model.lane import Lane
from oah.worker.shares import PATIENCE, Share, Shares

LIGHT, HEAVY, HUGE = Lane("default", "light"), Lane("default", "heavy"), Lane("default", "huge")
WEIGHTS = {"light": 1, "heavy": 6, "huge": 99}


def shares(*lanes: Lane, slots: int = 8) -> Shares:
    return Shares(lanes, WEIGHTS.__getitem__, slots=slots)


def sweep(of: Shares, idle: int) -> list[Share]:
    """The claims of one hint, while nothing is taken."""
    of.begin()
    found = []
    while not found or of.left:
        found.append(of.next(idle))
    return found


def test_lanes_of_one_weight_are_claimed_at_once() -> None:
    of = shares(LIGHT)
    assert (sweep(of, 8), of.mixed, of.fitting(1), of.fitting(0)) == ([Share((LIGHT,), 8)], False, (LIGHT,), ())
    assert of.next(3) == Share((LIGHT,), 3), "also without a hint"
    heavy = shares(HEAVY)
    assert [heavy.next(idle).want for idle in (8, 12, 6)] == [1, 2, 1]
    assert heavy.next(5) == Share((), 5), "only what was parked here"


def test_no_agent_weighs_more_than_its_worker() -> None:
    of = shares(LIGHT, HUGE)
    assert (of.weight("huge"), of.heaviest) == (8, 8)
    assert Share((HUGE,), 1) in sweep(of, 8)
    assert [share.lanes for share in sweep(of, 7)] in ([(LIGHT,)], [(LIGHT,), ()])


def test_each_weight_is_first_in_its_turn() -> None:
    of = shares(LIGHT, HEAVY)
    first = Counter(sweep(of, 8)[0].lanes for _ in range(10))
    assert first == {(LIGHT,): 5, (HEAVY,): 5}


def test_the_ear_listens_to_what_fits() -> None:
    of = shares(LIGHT, HEAVY)
    assert (of.fitting(8), of.fitting(5), of.fitting(0)) == ((LIGHT, HEAVY), (LIGHT,), ())


def test_slots_are_saved_for_a_heavy_lane_that_has_waited() -> None:
    of = shares(LIGHT, HEAVY)
    of.seen({HEAVY: 1}, now=0.0)
    of.seen({HEAVY: 1}, now=PATIENCE - 1)
    assert of.fitting(2) == (LIGHT,)
    of.seen({HEAVY: 1}, now=PATIENCE)
    assert (of.saved_for, of.fitting(2), sweep(of, 5)) == ((HEAVY,), (), [Share((), 5)])
    assert of.fitting(6) == (HEAVY,)
    assert Share((HEAVY,), 1) in sweep(of, 6)
    assert (of.saved_for, of.fitting(5)) == ((), (LIGHT,)), "its turn has come, the next one waits anew"


def test_slots_are_saved_no_longer_when_somebody_else_took_it() -> None:
    of = shares(LIGHT, HEAVY)
    for now in (0.0, PATIENCE):
        of.seen({HEAVY: 1}, now=now)
    of.seen({}, now=PATIENCE + 1)
    assert (of.saved_for, of.fitting(2)) == ((), (LIGHT,))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 16),
    st.lists(st.sampled_from([LIGHT, HEAVY, HUGE]), min_size=1, max_size=20),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_nothing_is_over_committed_and_everything_gets_its_turn(
    slots: int, queue: list[Lane], lives: list[int]
) -> None:
    """A worker under a stream of light runs that never ends: each heavy one runs in the end."""
    of, life = shares(LIGHT, HEAVY, HUGE, slots=slots), cycle(lives)
    ready, running = Counter(queue), list[tuple[Lane, int]]()
    for now in range(1000):
        ready[LIGHT] += slots
        running = [(lane, end) for lane, end in running if end > now]
        idle = slots - sum(of.weight(lane.profile) for lane, _ in running)
        of.seen(+ready, now=now)
        of.begin()
        while idle > 0:
            share = of.next(idle)
            taken = [lane for lane in share.lanes for _ in range(ready[lane])][: share.want]
            ready -= Counter(taken)
            running += [(lane, now + next(life)) for lane in taken]
            idle -= sum(of.weight(lane.profile) for lane in taken)
            if not of.left:
                break
        assert idle >= 0
        if not ready[HEAVY] and not ready[HUGE]:
            return
    raise AssertionError(f"{ready} never ran")
