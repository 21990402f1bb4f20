"""Pressure: where it begins, where it ends, and that a trembling figure changes nothing."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from oah.core.policy.pressure import Pressure, Resource, Rules, Usage, judge

RULES = Rules(memory=0.9, load=4.0, disk=0.95, hysteresis=0.1, hold=timedelta(seconds=10))
figures = st.one_of(st.none(), st.floats(0, 1.2))


def after(*memory: float | None, every: float = 5.0) -> list[bool]:
    """Whether memory is under pressure after each of these looks."""
    pressure, told = Pressure(), []
    for number, figure in enumerate(memory):
        pressure = judge(Usage(memory=figure), RULES, pressure, now=number * every)
        told.append(bool(pressure))
    return told


def test_it_begins_at_the_threshold_and_ends_clearly_below_it() -> None:
    assert after(0.89, 0.9, 0.89, 0.82, 0.81, 0.8) == [False, True, True, True, True, False]


def test_it_lasts_a_while_however_fast_the_figure_falls() -> None:
    assert after(0.95, 0.1, 0.1) == [True, True, False]


def test_a_figure_between_the_marks_begins_nothing_and_ends_nothing() -> None:
    assert after(0.85, 0.89, 0.85) == [False, False, False]
    assert after(0.91, *[0.85] * 20) == [True] * 21


def test_a_figure_that_cannot_be_measured_any_more_is_no_pressure() -> None:
    assert after(0.95, None, 0.95) == [True, False, True]


def test_each_resource_is_its_own() -> None:
    full = judge(Usage(memory=0.99, load=9.0, disk=0.99), RULES, Pressure(), now=0.0)
    assert full.names == ("memory", "load", "disk")
    rest = judge(Usage(memory=0.1, load=9.0, disk=0.1), RULES, full, now=60.0)
    assert (rest.names, rest.since) == (("load",), {Resource.LOAD: 0.0})


def test_a_threshold_of_zero_is_not_looked_at() -> None:
    off = Rules(memory=0, load=0, disk=0)
    assert not judge(Usage(memory=1.0, load=99.0, disk=1.0), off, Pressure(), now=0.0)


@given(st.lists(figures, max_size=60), st.floats(0.1, 5))
def test_no_pressure_is_shorter_than_the_hold_and_none_flaps(looks: list[float | None], every: float) -> None:
    pressure, changes = Pressure(), [-1e9]
    for number, figure in enumerate(looks):
        now = number * every
        new = judge(Usage(disk=figure), RULES, pressure, now=now)
        if bool(new) and not pressure:
            assert figure is not None and figure >= RULES.disk
            changes.append(now)
        if not new and pressure and figure is not None:
            assert now - changes[-1] >= RULES.hold.total_seconds()
            assert figure < RULES.disk * (1 - RULES.hysteresis)
        pressure = new
