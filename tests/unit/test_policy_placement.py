"""Where a session belongs, as SQL sees it (I11)."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oah.core.model.run import ReadyClass
from oah.core.model.session import HoldReason, Place
from oah.core.policy.placement import InPlace, PutHeld, PutLeased, PutReady, Rules, View, judge

LEASE = timedelta(seconds=6)
RULES = Rules(LEASE)
INTERACTIVE, PAUSED = ReadyClass.INTERACTIVE, (HoldReason.PAUSED,)
SECOND = timedelta(seconds=1)

views = st.builds(
    View,
    eligible=st.none() | st.sampled_from(ReadyClass),
    holds=st.lists(st.sampled_from(HoldReason), unique=True).map(tuple),
    mark_age=st.none() | st.floats(0, 60).map(lambda each: timedelta(seconds=each)),
    place=st.sampled_from(Place),
)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (View(INTERACTIVE, (), None, Place.IDLE), PutReady(INTERACTIVE)),
        (View(INTERACTIVE, (), None, Place.HELD), PutReady(INTERACTIVE)),
        (View(INTERACTIVE, (), None, Place.READY), InPlace()),
        (View(INTERACTIVE, (), None, Place.LEASED), InPlace()),
        (View(INTERACTIVE, PAUSED, None, Place.READY), PutHeld()),
        (View(None, PAUSED, None, Place.IDLE), PutHeld()),
        (View(INTERACTIVE, PAUSED, None, Place.HELD), InPlace()),
        (View(INTERACTIVE, (), SECOND, Place.READY), PutLeased(LEASE - SECOND)),
        (View(INTERACTIVE, PAUSED, SECOND, Place.IDLE), PutLeased(LEASE - SECOND)),
        (View(INTERACTIVE, (), SECOND, Place.PARKED), InPlace()),
        (View(INTERACTIVE, (), LEASE, Place.IDLE), InPlace()),
        (View(None, (), None, Place.IDLE), InPlace()),
    ],
)
def test_judgements(view: View, expected: object) -> None:
    assert judge(view, RULES) == expected


@given(views)
def test_no_owned_session_is_made_ready(view: View) -> None:
    if view.mark_age is not None or view.place in (Place.LEASED, Place.PARKED):
        assert not isinstance(judge(view, RULES), PutReady | PutHeld)


@given(views)
def test_what_is_put_where_it_belongs_is_in_place(view: View) -> None:
    where = {PutReady: Place.READY, PutHeld: Place.HELD, PutLeased: Place.LEASED}
    decision = judge(view, RULES)
    if not isinstance(decision, InPlace):
        after = View(view.eligible, view.holds, view.mark_age, where[type(decision)])
        assert judge(after, RULES) == InPlace()
