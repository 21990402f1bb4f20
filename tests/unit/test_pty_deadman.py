"""The deadman's rules, with time as a number."""

from oah.adapters.pty.hostside.deadman import TICK, Deadman


def make(**more: object) -> Deadman:
    deadman = Deadman(margin=1.0, now=100.0, used=0.0, **more)  # type: ignore[arg-type]
    deadman.add("a", 110.0)
    deadman.add("b", 120.0)
    return deadman


def test_a_tree_dies_at_its_own_deadline_and_no_earlier() -> None:
    deadman = make()
    assert deadman.overdue(109.99) == []
    assert deadman.overdue(110.0) == [("a", "deadline")]


def test_deadlines_only_grow_and_unknown_agents_mean_nothing() -> None:
    deadman = make()
    deadman.extend("a", 105.0)
    deadman.extend("stranger", 105.0)
    assert deadman.deadlines == {"a": 110.0, "b": 120.0}
    deadman.extend("a", 130.0)
    assert deadman.overdue(121.0) == [("b", "deadline")]


def test_sleeps_to_the_next_decision_and_at_most_a_tick() -> None:
    deadman = make()
    assert deadman.sleeping(100.0) == TICK
    assert abs(deadman.sleeping(109.9) - 0.1) < 1e-6
    assert deadman.sleeping(111.0) == 0.0


def test_late_is_more_than_half_a_margin_beyond_what_we_slept_and_used() -> None:
    deadman = make()
    assert deadman.late(100.5, 0.0) == 0.0
    assert deadman.late(101.1, 0.0) > 0.5
    assert deadman.late(102.1, 0.6) == 0.0, "half of it was our own work"
    deadman.sleeping(102.1)
    assert deadman.late(102.8, 0.6) == 0.0, "we meant to sleep a tick"


def test_a_stop_between_two_readings_in_one_turn_of_the_loop_is_seen() -> None:
    deadman = make()
    deadman.sleeping(100.0)
    assert deadman.late(100.1, 0.0) == 0.0
    assert deadman.late(101.0, 0.0) > 0.0


def test_only_a_mark_begun_after_the_freeze_lets_the_trees_go_on() -> None:
    deadman = make()
    deadman.freeze(105.0)
    assert not deadman.marked(104.9, 105.1), "it lay in the socket while we were stopped"
    assert not deadman.marked(105.0, 105.1)
    assert deadman.marked(105.2, 105.4)
    assert deadman.overdue(106.5) == []


def test_frozen_trees_die_one_margin_later_without_a_mark() -> None:
    deadman = make()
    deadman.freeze(105.0)
    assert deadman.overdue(105.9) == []
    assert deadman.sleeping(105.9) <= 0.1 + 1e-6
    assert not deadman.marked(105.5, 106.1), "too late"
    assert sorted(deadman.overdue(106.0)) == [("a", "late"), ("b", "late")]


def test_a_second_stop_asks_for_a_newer_mark_but_does_not_lengthen_the_wait() -> None:
    deadman = make()
    deadman.freeze(105.0)
    deadman.freeze(105.8)
    assert not deadman.marked(105.5, 105.9)
    assert sorted(deadman.overdue(106.0)) == [("a", "late"), ("b", "late")]


def test_a_passed_deadline_kills_frozen_trees_too() -> None:
    deadman = make()
    deadman.freeze(109.5)
    assert deadman.overdue(110.1) == [("a", "deadline")]


def test_off_means_off() -> None:
    deadman = make(enabled=False)
    assert deadman.late(200.0, 0.0) == 0.0
    assert deadman.overdue(200.0) == []
