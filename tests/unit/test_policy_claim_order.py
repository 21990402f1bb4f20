"""The order in which claims look: by weight, evenly, and nothing starves."""

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.core.policy.claim_order import Rules, View, order, turns

lanes = st.lists(st.integers(0, 30), min_size=1, max_size=20, unique=True).map(
    lambda each: tuple(Lane("pool", f"agent-{number}") for number in each)
)
weights = st.integers(1, 9)
rules = st.builds(Rules, weights, weights, weights, weights, st.integers(0, 2))
views = st.builds(View, lanes, st.integers(1, 9), st.booleans())
ONE = View((Lane("pool", "shell"),), 8)


def test_first_looks_follow_the_weights_and_are_spread() -> None:
    cycle = turns(Rules())
    assert Counter(cycle) == {
        ReadyClass.INTERACTIVE: 8,
        ReadyClass.SUBAGENT: 4,
        ReadyClass.BACKGROUND: 1,
        ReadyClass.SUSPECT: 1,
    }
    gaps = [index for index, each in enumerate(cycle) if each is ReadyClass.SUBAGENT]
    assert all(later - earlier <= 5 for earlier, later in itertools.pairwise(gaps))


def test_what_waited_is_looked_at_first_and_suspects_last() -> None:
    looks = [ready_class for _, ready_class in order(ONE, Rules(), counter=0)]
    assert looks == [
        ReadyClass.RESUME,
        ReadyClass.INTERACTIVE,
        ReadyClass.SUBAGENT,
        ReadyClass.BACKGROUND,
        ReadyClass.SUSPECT,
    ]


@given(views, rules, st.integers(0, 10_000))
def test_an_order_names_each_pair_once_and_is_a_function_of_the_counter(view: View, rule: Rules, counter: int) -> None:
    looks = order(view, rule, counter=counter)
    assert len(set(looks)) == len(looks)
    assert looks == order(view, rule, counter=counter)
    assert {ready_class for _, ready_class in looks[: len(view.lanes)]} == {ReadyClass.RESUME}
    for ready_class in {each for _, each in looks}:
        assert {lane for lane, each in looks if each is ready_class} == set(view.lanes)
    assert view.suspect_place or ReadyClass.SUSPECT not in {each for _, each in looks}


@given(lanes, rules, st.integers(0, 1000))
def test_every_lane_is_first_in_every_class_at_some_claim(served: tuple[Lane, ...], rule: Rules, start: int) -> None:
    view = View(served, idle=9)
    first = set()
    for counter in range(start, start + len(turns(rule)) * len(served)):
        first.add(order(view, rule, counter=counter)[len(served)])
    classes = (ReadyClass.INTERACTIVE, ReadyClass.SUBAGENT, ReadyClass.BACKGROUND, ReadyClass.SUSPECT)
    assert first == {(lane, ready_class) for lane in served for ready_class in classes}


@given(st.integers(0, 1000))
def test_the_reserve_takes_only_what_parents_wait_for(counter: int) -> None:
    rule = Rules(subagent_reserve=2)
    full = {each for _, each in order(View(ONE.lanes, 2), rule, counter=counter)}
    assert full == {ReadyClass.RESUME, ReadyClass.SUBAGENT}
    assert ReadyClass.INTERACTIVE in {each for _, each in order(View(ONE.lanes, 3), rule, counter=counter)}


def test_a_worker_without_lanes_looks_nowhere() -> None:
    assert order(View((), 3), Rules(), counter=1) == ()
