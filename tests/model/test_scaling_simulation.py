"""A simulated fleet under the policy: pods that take 45 s to start, loads of every shape, leaders that come and go."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from benchmarks.scaling_sim import PODS, SCENES, figures, plot
from benchmarks.scaling_world import Course, Fleet, Scene

SEEDS = (1, 2, 3)
AT_ONCE = timedelta(seconds=0)


def play(name: str, seed: int = 1, **changes: object) -> tuple[Scene, Course]:
    scene = replace(SCENES[name], seed=seed, **changes)  # type: ignore[arg-type]
    return scene, Fleet(scene).play()


def sizes_at(course: Course, begin: float, end: float) -> set[int]:
    return {sample.desired for sample in course.samples if begin <= sample.at < end}


@pytest.mark.parametrize("name", sorted(SCENES))
def test_no_pod_goes_with_its_runs_and_no_size_leaves_its_bounds(name: str) -> None:
    scene, course = play(name)
    assert course.actions
    assert not any(course.ended_with)
    assert all(0 <= to <= PODS.maximum for _, _, to, _ in course.actions)
    for sample in course.samples:
        assert sample.actual >= sample.running  # an agent never lives where no pod is
    gone = sum(size for _, size, to, _ in course.actions if to < size)
    assert gone == 0 or course.ended_with
    assert figures(course, scene)["pods_ended_with_runs"] == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_up_down_and_up_takes_at_most_six_changes(seed: int) -> None:
    _, course = play("step", seed)
    until_the_second_top = [action for action in course.actions if action[0] < 1_860]
    assert len(until_the_second_top) <= 6
    assert course.turns == 3  # up, down, up, down
    assert sizes_at(course, 100, 660) == sizes_at(course, 1_300, 1_860) == {100}  # straight to it, and it stays
    assert 0 in sizes_at(course, 1_200, 1_260)  # nothing runs or waits: nobody is kept
    assert all(sample.actual >= 100 for sample in course.samples if 130 <= sample.at < 660)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_without_any_patience_still_ends_at_the_right_size(seed: int) -> None:
    """Windows and cooldowns make it calm; that it is right does not rest on them."""
    eager = replace(PODS, up_window=1, down_window=1, up_cooldown=AT_ONCE, down_cooldown=AT_ONCE, memory=AT_ONCE)
    _, course = play("step", seed, rules=eager)
    assert not any(course.ended_with)
    assert sizes_at(course, 105, 600) == {100}
    assert sizes_at(course, 720, 1_260) == {0}


def test_a_ramp_is_followed_up_and_down_without_turning_back() -> None:
    _, course = play("ramp")
    assert course.turns == 1
    assert course.wait_p95() < 15
    most = max(sample.desired - sample.load for sample in course.samples if sample.at < 900)
    assert most <= 8  # two pods beyond what is wanted on the way up


def test_bursts_do_not_turn_a_pool_more_than_they_turn_themselves() -> None:
    _, course = play("burst")
    assert course.turns <= 5  # three bursts: up and down each
    assert len(course.actions) <= 12


def test_a_day_is_followed_with_little_to_spare() -> None:
    scene, course = play("diurnal")
    assert course.turns <= 4  # two days
    assert course.wait_p95() <= 1
    assert figures(course, scene)["busy_share"] >= 0.85


@pytest.mark.parametrize("sessions", [0, 1, 7, 50, 100, 239])
def test_constant_load_changes_the_size_once(sessions: int) -> None:
    _, course = play("step", sessions=lambda _: float(sessions))
    assert len(course.actions) == (1 if sessions else 0)
    assert course.samples[-1].desired == -(-sessions // 4) * 4


@pytest.mark.parametrize("seed", SEEDS)
def test_random_arrivals_at_a_constant_rate_do_not_make_it_swing(seed: int) -> None:
    """50 runs on average, of 2 minutes each, that come as they like: a few turns an hour, by a pod or two."""
    scene, course = play("steady", seed)
    calm = [action for action in course.actions if action[0] > 900]
    assert len(calm) <= 40  # in 1¾ hours
    assert course.turns <= 16
    assert max(abs(to - size) for _, size, to, _ in calm) <= 3
    forgets = replace(PODS, memory=AT_ONCE)
    _, without = play("steady", seed, rules=forgets)
    assert course.turns <= without.turns


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wanted_waiting_time_is_reached_where_runs_share_slots(seed: int) -> None:
    """Two runs to a slot is what counting asks for; the 95th percentile of waiting says how many it must be."""
    sharing = replace(PODS, per_unit=8, oldest_wait=timedelta(hours=1))
    wanted = replace(sharing, target_wait=timedelta(seconds=10))
    (_, left), (_, course) = play("steady", seed, rules=sharing), play("steady", seed, rules=wanted)
    assert late_p95(left) > 15
    assert late_p95(course) <= 10
    assert course.turns <= 10
    assert max(sample.desired for sample in course.samples) <= 2 * 55


def late_p95(course: Course) -> float:
    """Of the second half of the runs."""
    late = sorted(course.waits[len(course.waits) // 2 :])
    return late[int(len(late) * 0.95)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_new_leader_and_a_registry_that_shows_nobody_end_nothing(seed: int) -> None:
    """The leader is lost while pods start, at the top and in the shrink; the registry is away at the top, while the
    pool waits to shrink, and while it grows again."""
    scene, course = play("failover", seed)
    assert not any(course.ended_with)
    assert sizes_at(course, 100, 660) == {100}  # neither a restart nor a blip moved it
    for at, size, to, _ in course.actions:
        blind = any(begin <= at < end for begin, end in scene.blind)
        assert to > size or not blind
        assert not any(begin <= at < end for begin, end in scene.away)
    assert sizes_at(course, 1_320, 1_860) == {100}  # what is counted was enough to grow by, blind
    first_down = next(at for at, size, to, _ in course.actions if to < size)
    assert first_down >= 960 + 60 * scene.tick - scene.tick  # after the blip the whole window again


def test_one_restart_after_the_other_never_shrinks_what_is_needed() -> None:
    """A controller that dies every 20 s has no history: it can only ever grow."""
    falls = tuple((at, at + 5.0) for at in range(0, 2_280, 20))
    _, course = play("step", away=falls)
    assert all(to > size for _, size, to, _ in course.actions)
    assert not course.ended_with


def test_the_plot_shows_all_three_lines() -> None:
    _, course = play("step")
    drawn = plot(course, "step")
    assert all(f">{name}</text>" in drawn for name in ("load", "desired", "actual"))
    assert drawn.count("<path") == 3
