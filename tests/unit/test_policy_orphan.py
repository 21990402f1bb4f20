"""Whether an owner is gone: both witnesses, a whole lease, one story, steady clocks (I5)."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from oah.core.model.session import Place
from oah.core.policy.orphan import Orphan, Restore, Rules, View, Wait, judge

LEASE = timedelta(seconds=6)
RULES = Rules(LEASE)
seconds = st.floats(-20, 60).map(lambda each: timedelta(seconds=each))
ages = st.floats(0, 60).map(lambda each: timedelta(seconds=each))
views = st.builds(
    View,
    mark_age=ages,
    place=st.sampled_from(Place),
    same_token=st.booleans(),
    life=st.none() | seconds,
    open_for=st.none() | ages,
    on_hold=st.booleans(),
)

GONE = View(mark_age=LEASE, place=Place.IDLE, same_token=False, life=None, open_for=LEASE, on_hold=False)


def test_both_witnesses_stale() -> None:
    assert judge(GONE, RULES) == Orphan()
    assert judge(replace(GONE, place=Place.LEASED, same_token=True, life=timedelta(seconds=-1)), RULES) == Orphan()


def test_each_condition_alone_keeps_the_owner() -> None:
    second = timedelta(seconds=1)
    assert judge(replace(GONE, place=Place.PARKED, same_token=True, life=second), RULES) == Wait("leased")
    assert judge(replace(GONE, mark_age=LEASE - second), RULES) == Restore(second)
    assert judge(replace(GONE, open_for=LEASE - second), RULES) == Wait("shard_young")
    assert judge(replace(GONE, open_for=None), RULES) == Wait("shard_young")
    assert judge(replace(GONE, on_hold=True), RULES) == Wait("on_hold")


def test_a_lease_in_anothers_name_does_not_witness() -> None:
    other = replace(GONE, place=Place.LEASED, same_token=False, life=LEASE)
    assert judge(other, RULES) == Orphan()


@given(views)
def test_an_orphan_has_no_witness_at_all(view: View) -> None:
    decision = judge(view, RULES)
    witnessed = view.place in (Place.LEASED, Place.PARKED) and view.same_token
    if isinstance(decision, Orphan):
        assert view.mark_age >= LEASE
        assert not (witnessed and view.life is not None and view.life > timedelta(0))
        assert view.open_for is not None
        assert view.open_for >= LEASE
        assert not view.on_hold


@given(views)
def test_a_lease_is_given_back_only_until_the_mark_is_stale(view: View) -> None:
    decision = judge(view, RULES)
    if isinstance(decision, Restore):
        assert timedelta(0) < decision.life
        assert view.mark_age + decision.life == LEASE
