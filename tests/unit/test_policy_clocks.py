"""A clock that jumps holds recovery; one that ticks, drifts or is read slowly does not pretend to have jumped."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from oah.core.policy.clocks import Reading, Rules, Watch, begin, watch

RULES = Rules(lease=timedelta(seconds=6), margin=timedelta(seconds=1))


def _read(boottime: float, offset: float, *, width: float = 0.01) -> Reading:
    return Reading(boottime, boottime + width / 2 + offset, boottime + width)


def _run(offsets: list[float], *, every: float = 1.0, width: float = 0.01) -> Watch:
    seen = Watch()
    for number, offset in enumerate(offsets):
        seen = watch(seen, _read(100 + number * every, offset, width=width), RULES)
    return seen


def test_a_new_leader_holds_for_one_lease() -> None:
    seen = watch(begin(100, RULES), _read(100, 5), RULES)
    assert seen.on_hold(105.9)
    assert not seen.on_hold(106)


def test_a_step_holds_for_one_lease_whatever_its_direction() -> None:
    for step in (60.0, -60.0, 1.2, -1.2):
        seen = _run([0, 0, step])
        assert seen.on_hold(102 + 5.9), step
        assert not seen.on_hold(102 + 6.1), step
        assert abs(seen.last_step - step) < 0.1


def test_a_second_step_prolongs_the_hold() -> None:
    assert _run([0, 60, 60, 0]).on_hold(103 + 5.9)


def test_small_steps_add_up_within_a_lease() -> None:
    assert _run([0, 0.6, 1.2]).on_hold(103)
    slow = _run([0, 0.6, 1.2, 1.8], every=10)
    assert not slow.on_hold(131), "each lease on its own is within the margin"


def test_a_step_right_after_a_step_is_measured_from_the_new_clock() -> None:
    seen = _run([0, 60, 60, 60])
    assert seen.last_step > 59
    assert len(seen.samples) == 3


def test_a_slow_reading_proves_nothing_and_decides_nothing() -> None:
    seen = watch(_run([0, 0]), _read(102, 60, width=0.6), RULES)
    assert seen.blurred
    assert seen.on_hold(102.6)
    good = watch(seen, _read(103, 0), RULES)
    assert not good.on_hold(103)


@given(st.lists(st.floats(-0.4, 0.4), min_size=1, max_size=40), st.floats(0, 0.2))
def test_noise_within_the_margin_never_holds(offsets: list[float], width: float) -> None:
    assert not _run(offsets, width=width).on_hold(0)


@given(st.floats(-1e6, 1e6).filter(lambda step: abs(step) > 1.1), st.integers(1, 10))
def test_every_jump_beyond_the_margin_is_seen(step: float, before: int) -> None:
    assert _run([0.0] * before + [step]).on_hold(100 + before)


@given(st.integers(1, 100))
def test_what_is_remembered_is_bounded_by_a_lease(passes: int) -> None:
    assert len(_run([0.0] * passes).samples) <= 8
