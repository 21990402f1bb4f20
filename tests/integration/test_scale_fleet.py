"""Shrinking by knowledge: the idle first, then who becomes empty; nobody's work is interrupted, whoever leads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from oah.core.model.drain import AtDeadline, Drain
from oah.core.model.ids import WorkerId
from oah.core.model.rollout import Member, RolloutRules
from oah.core.model.worker import WorkerReport
from oah.core.policy.scaling import Rules
from oah.errors import Broken, Unavailable
from oah.ports.audit import AuditFilter
from oah.ports.scaling import Outcome
from oah.services.scale_look import NAMES
from tests.support.scale_world import POOL, QUICK, ScaleWorld, Unit, bounds


@pytest.fixture
def world(tmp_path: Path, sqlite_template: Path) -> Iterator[ScaleWorld]:
    world = ScaleWorld(Path(shutil.copy(sqlite_template, tmp_path)))
    yield world
    assert world.interrupted == []
    world.close()


def test_of_six_busy_and_four_idle_the_idle_go_then_two_drain(world: ScaleWorld) -> None:
    world.have(busy=6, idle=4)
    leader = world.leader(bounds(0, 4))
    world.passes(leader, 2)
    assert world.target.writes == [], "nobody goes before he has been asked to take nothing more"
    assert len(world.going()) == 6 and {"w7", "w8", "w9", "w10"} < world.going()
    world.passes(leader, 2)
    [(size, victims)] = world.target.writes
    assert (size, set(victims)) == (6, {"w7", "w8", "w9", "w10"})
    two = world.going()
    assert len(two) == 2
    world.passes(leader, 20)
    assert (world.target.size, world.going()) == (6, two), "they work"
    for name in sorted(two):
        world.units[name].busy = 0
        world.passes(leader, 3)
    assert world.target.size == 4 == sum(unit.busy for unit in world.units.values())
    assert not any(unit.heard for unit in world.units.values()), "those that stay were told nothing"
    [only] = world.decisions()
    assert (only.current, only.desired, only.outcome, only.reason) == (10, 4, Outcome.SCALED, "bounds")
    assert set(only.detail["removed"]) == {"w7", "w8", "w9", "w10", *two}
    assert (only.inputs["running"], only.inputs["maximum"]) == (6, 4)
    assert (only.inputs["oldest_wait_seconds"], only.inputs["wait_p95_seconds"]) == (0, None)


def test_load_that_returns_keeps_those_that_have_not_gone_yet(world: ScaleWorld) -> None:
    world.have(busy=6, idle=0)
    shrinking, growing = bounds(0, 2), bounds(5, 100)
    world.passes(world.leader(shrinking), 2)
    four = world.going()
    assert len(four) == 4
    leader = world.leader(growing)
    world.passes(leader, 2)
    assert world.going() == set()
    assert world.target.writes == [], "nobody new while there are some who need not go"
    assert all(world.units[name].heard == ["drain", "uncordon"] for name in four)
    assert [each.outcome for each in world.decisions()] == [Outcome.OVERTAKEN, Outcome.SCALED]
    world.ready = 3
    world.passes(leader, 1)
    assert world.target.writes == [(9, ())]


def test_some_stay_and_the_rest_still_goes(world: ScaleWorld) -> None:
    world.have(busy=6)
    world.passes(world.leader(bounds(0, 2)), 2)
    world.units[sorted(world.going())[0]].busy = 0
    empty = sorted(world.going())[0]
    world.passes(world.leader(bounds(5, 5)), 1)
    assert world.going() == {empty}, "the one that is empty is the one to go"
    world.passes(world.leader(bounds(5, 5)), 1)
    leader = world.leader(bounds(5, 5))
    world.passes(leader, 3)
    assert (world.target.size, world.ended) == (5, [empty])


def test_another_leader_goes_on_in_the_middle_of_a_drain(world: ScaleWorld) -> None:
    world.have(busy=3, idle=1)
    one = world.leader(bounds(0, 1))
    world.passes(one, 1)
    before = world.going()
    two = world.leader(bounds(0, 1), "two")
    world.passes(two, 3)
    assert world.ended == ["w4"]
    for unit in world.units.values():
        unit.busy = 0 if unit.name in before else unit.busy
    world.passes(two, 3)
    assert world.target.size == 1
    assert [each.outcome for each in world.decisions()] == [Outcome.SCALED], "one decision, two leaders"
    assert sorted(world.ended) == sorted(before)


@pytest.mark.parametrize("at", ["add_decision", "change_decision", "resize"])
def test_a_leader_that_dies_anywhere_leaves_what_another_finishes(
    world: ScaleWorld, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th call of every kind is the last thing it does, n from 1 until it gets through."""

    class Died(BaseException):
        pass

    for number in range(1, 4):
        world.units.clear()
        world.ended.clear()
        world.have(busy=2, idle=3)
        left = [number]
        owner = world.target if at == "resize" else world.store

        def dies(*args: object, real: object = getattr(owner, at), left: list[int] = left, **more: object) -> object:
            answer = real(*args, **more)  # type: ignore[operator]
            left[0] -= 1
            if left[0] == 0:
                raise Died
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(owner, at, dies, raising=False)
            doomed = world.leader(bounds(0, 2))
            for _ in range(6):
                try:
                    world.passes(doomed)
                except Died:
                    break
        world.passes(world.leader(bounds(0, 2), "next"), 8)
        assert (world.target.size, sorted(world.ended)) == (2, ["w3", "w4", "w5"]), (at, number)
        assert world.going() == set()
        assert not any(unit.cordoned for unit in world.units.values())
        assert world.decisions()[-1].outcome is Outcome.SCALED


def test_a_leader_that_dies_while_it_takes_back_leaves_nobody_cordoned(
    world: ScaleWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.have(busy=4)
    world.passes(world.leader(bounds(0, 2)), 1)
    with monkeypatch.context() as patch:
        patch.setattr(world.store, "change_decision", lambda *a, **k: 1 / 0, raising=False)
        with pytest.raises(ZeroDivisionError):
            world.leader(bounds(4, 4))()
    assert world.decisions()[-1].outcome is Outcome.BEGUN
    world.passes(world.leader(bounds(4, 4), "next"), 2)
    assert not any(unit.cordoned for unit in world.units.values())
    assert world.decisions()[-1].outcome is Outcome.SCALED


def test_two_leaders_at_once_do_no_harm(world: ScaleWorld) -> None:
    world.have(busy=2, idle=4)
    one, two = world.leader(bounds(0, 2), "one"), world.leader(bounds(0, 2), "two")
    world.target.before_resize = lambda: None
    for _ in range(6):
        one()
        two()
        world.tick(2)
    assert (world.target.size, sorted(world.ended)) == (2, ["w3", "w4", "w5", "w6"])


def test_one_that_was_beaten_to_it_reads_again(world: ScaleWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have read that nothing is open; the other has written first."""
    world.have(busy=0, idle=3)
    one, two = world.leader(bounds(0, 1), "one"), world.leader(bounds(0, 1), "two")
    read = world.store.open_decision
    with monkeypatch.context() as patch:

        def late(pool: str) -> object:
            found = read(pool)
            patch.undo()
            two()
            return found

        patch.setattr(world.store, "open_decision", late, raising=False)
        one()
    assert [each.holder for each in world.decisions()] == ["two"]
    world.tick(5)
    world.passes(one, 3)
    assert world.target.size == 1


def test_a_blip_of_the_registry_shrinks_nothing(world: ScaleWorld) -> None:
    world.have(busy=3, idle=3)
    leader = world.leader(QUICK)
    world.passes(leader, 1)
    for unit in world.units.values():
        unit.silent = True
    world.sure = False
    world.passes(leader, 40)
    assert (world.target.writes, world.decisions()) == ([], [])
    world.sure = True  # even where what is seen is believed: of nobody is known that he is empty
    world.passes(leader, 8)
    assert world.target.writes == []
    for unit in world.units.values():
        unit.silent = False
    world.passes(leader, 8)
    assert world.target.size == 3


def test_while_a_rolling_restart_goes_on_nothing_shrinks(world: ScaleWorld) -> None:
    world.have(busy=1, idle=2)
    member = Member(name="w1", worker_id=WorkerId("w1.1"), host="h", version="1", profiles=())
    world.store.create_rollout("ro_1", POOL, [member], RolloutRules(), by="me", reason=None)
    leader = world.leader(QUICK)
    world.passes(leader, 10)
    assert (world.target.writes, world.decisions()) == ([], [])
    world.ready = 4
    world.passes(leader, 2)
    assert world.target.size == 5
    assert world.decisions()[0].inputs["doubts"] == ["a rolling restart is under way"]


def test_a_report_that_is_old_empties_nobody(world: ScaleWorld) -> None:
    """The store knows of a run that the report does not tell of."""
    world.have(busy=3)
    leader = world.leader(bounds(0, 1))
    world.passes(leader, 1)
    for name in world.going():
        world.units[name].shown = 0
    world.passes(leader, 6)
    assert world.target.writes == []


def test_who_is_silent_and_works_is_not_gone(world: ScaleWorld) -> None:
    world.have(busy=3)
    leader = world.leader(bounds(0, 1))
    world.passes(leader, 1)
    for name in world.going():
        world.units[name].silent = True
    world.passes(leader, 20)
    assert world.target.writes == []
    for name in world.going():
        world.units[name].busy = 0
    world.passes(leader, 3)
    assert world.target.size == 1


def test_who_was_silent_before_his_leader_began_is_not_gone_while_he_works(world: ScaleWorld) -> None:
    """No report tells the new leader of his incarnation, and whoever was restarted has another."""
    world.have(busy=2, idle=1)
    world.units["w1"].silent = True
    leader = world.leader(bounds(0, 1), "new")
    world.passes(leader, 30)
    assert world.ended == ["w3"]
    world.units["w1"].busy = 0
    world.passes(leader, 3)
    assert (world.target.size, world.ended) == (1, ["w3", "w1"])


def test_who_is_silent_may_come_back_to_work(world: ScaleWorld) -> None:
    """It owns nothing now, and has not been silent for long: what it was told may not have reached it."""
    world.have(busy=0, idle=2)
    leader = world.leader(bounds(1, 1))
    world.units["w1"].cordoned = True
    world.passes(leader, 1)
    assert world.going() == {"w1"}
    world.units["w1"].silent = True
    world.passes(leader, 6)
    assert world.target.writes == []
    world.passes(leader, 10)
    assert world.ended == ["w1"]


def test_a_new_incarnation_that_was_told_is_taken_back_by_its_own_name(world: ScaleWorld) -> None:
    world.have(busy=2)
    leader = world.leader(bounds(0, 1))
    world.passes(leader, 2)
    [name] = world.going()
    world.restart(name)
    world.passes(leader, 1)
    assert world.units[name].cordoned
    world.units[name].busy = 1
    world.passes(world.leader(bounds(2, 2)), 2)
    assert not world.units[name].cordoned and world.going() == set()


def test_a_leader_whose_look_is_old_removes_nobody_who_was_taken_back(
    world: ScaleWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.have(busy=0, idle=3)
    old, new = world.leader(bounds(1, 1), "old"), world.leader(bounds(3, 3), "new")
    world.passes(old, 2)
    read = world.store.owners_by_worker
    taken_back: list[bool] = []
    with monkeypatch.context() as patch:

        def late(ids: object) -> object:
            patch.undo()
            new()
            world.tick(0)
            taken_back.append(not world.going())
            return read(ids)

        patch.setattr(world.store, "owners_by_worker", late, raising=False)
        world.tick(5)
        old()
    assert taken_back == [True]
    assert world.target.writes == []
    assert world.going() == set() and len(world.units) == 3
    assert not any(unit.cordoned for unit in world.units.values())


def test_those_that_are_empty_wait_while_nobody_knows(world: ScaleWorld) -> None:
    world.have(busy=1, idle=2)
    leader = world.leader(bounds(0, 1))
    world.passes(leader, 1)
    world.sure = False
    world.passes(leader, 10)
    assert (len(world.going()), world.target.writes) == (2, [])
    world.sure = True
    world.passes(leader, 3)
    assert world.target.size == 1


def test_one_that_never_becomes_empty_keeps_nobody_else(world: ScaleWorld) -> None:
    """Sick: silent, deaf, or at work for ever."""
    world.have(busy=3, idle=3)
    world.units["w4"].deaf = True
    world.units["w5"].silent = True
    leader = world.leader(bounds(0, 2))
    world.passes(leader, 4)
    assert world.ended == ["w6"]
    world.passes(leader, 20)
    assert sorted(world.ended) == ["w5", "w6"], "what has been silent for long and owns nothing is gone"
    assert "w4" in world.going()


def test_another_goes_instead_of_one_that_works_on_and_on(world: ScaleWorld) -> None:
    world.have(busy=3)
    leader = world.leader(bounds(0, 2))
    world.passes(leader, 2)
    [long] = world.going()
    other = next(name for name in world.units if name != long)
    world.units[other].busy = 0
    world.passes(leader, 3)
    assert world.going() == {long}, "not at once: it may end any moment"
    world.passes(leader, 12)
    assert (world.ended, world.going()) == ([other], set())
    assert [row.reason for row in world.decisions()] == ["bounds", "instead"]
    assert world.units[long].heard == ["drain", "uncordon"]


def test_who_looked_idle_and_was_not_is_replaced_by_a_second_decision(world: ScaleWorld) -> None:
    """Reports are late when the machine is busy: the choice is mended after a while, and interrupts nobody."""
    world.have(busy=6, idle=4)
    late = [name for name, unit in world.units.items() if unit.busy][:3]
    for name in late:
        world.units[name].shown, world.units[name].born = 0, world.clock.seconds
    leader = world.leader(bounds(1, 4))
    world.passes(leader)
    assert set(late) < world.going(), "the youngest of those that look idle"
    for name in late:
        world.units[name].shown = None
    world.passes(leader, 12)
    assert [row.reason for row in world.decisions()] == ["bounds", "instead"]
    assert len(world.ended) == 4 and world.interrupted == []
    assert all(world.units[name].busy for name in world.going()) and len(world.going()) == 2


def test_a_new_incarnation_of_one_that_goes_is_told_again(world: ScaleWorld) -> None:
    world.have(busy=2)
    leader = world.leader(bounds(0, 1))
    world.passes(leader, 2)
    [name] = world.going()
    world.restart(name)
    world.units[name].busy = 1
    world.passes(leader, 2)
    assert world.units[name].cordoned
    world.units[name].busy = 0
    world.passes(leader, 3)
    assert world.ended == [name]


def test_what_an_operator_cordoned_goes_first_and_is_never_uncordoned(world: ScaleWorld) -> None:
    world.have(busy=2, idle=1)
    world.units["w1"].cordoned = True
    leader = world.leader(bounds(0, 2))
    world.passes(leader, 3)
    assert world.going() == {"w1"}
    world.passes(world.leader(bounds(3, 3)), 2)
    assert (world.going(), world.units["w1"].heard) == (set(), [])


def test_a_target_that_always_takes_the_highest_takes_only_empty_ones(world: ScaleWorld) -> None:
    world.have(busy=6, idle=2)
    world.target.highest = True
    for name, busy in (("w1", 0), ("w2", 0), ("w7", 1), ("w8", 0)):
        world.units[name].busy = busy
    leader = world.leader(bounds(0, 4))
    world.passes(leader, 4)
    assert (world.ended, world.target.size) == (["w8"], 7), "w7 works, so that nobody below it can go"
    world.units["w5"].busy = 0
    world.passes(leader, 10)
    assert world.ended == ["w8"]
    for name in ("w6", "w7"):
        world.units[name].busy = 0
    world.passes(leader, 4)
    assert (world.target.size, set(world.ended)) == (4, {"w5", "w6", "w7", "w8"})


def test_units_that_never_came_go_first(world: ScaleWorld) -> None:
    world.have(busy=2, idle=2)
    world.target.size, world.target.quota = 6, 4
    world.passes(world.leader(bounds(5, 5)), 2)
    assert (world.target.writes, world.going()) == ([(5, ())], set())
    leader = world.leader(bounds(3, 3))
    world.passes(leader, 6)
    assert (world.target.size, len(world.ended), world.going()) == (3, 1, set())
    assert [size for size, _ in world.target.writes] == [5, 4, 3]


def test_who_is_going_stays_when_a_unit_turns_out_never_to_come(world: ScaleWorld) -> None:
    """The pool has its size without him."""
    world.have(busy=4)
    leader = world.leader(bounds(3, 3))
    world.passes(leader, 2)
    [name] = world.going()
    other = next(each for each in world.units if each != name)
    world.units.pop(other)  # its machine is gone, and there is no other
    world.passes(leader, 10)
    assert (world.going(), world.target.size) == ({name}, 4), "it may come back"
    world.passes(leader, 6)
    assert (world.going(), world.target.size, world.ended) == (set(), 3, [])
    assert not world.units[name].cordoned


def test_what_others_carry_needs_no_unit(world: ScaleWorld) -> None:
    world.have(busy=1)
    world.others = [replace(world.units["w1"].report(slots=1), id=WorkerId("x.1"), name="x", busy=1)]
    world.passes(world.leader(QUICK), 6)
    assert (world.target.writes, world.decisions()) == ([], [])


def test_an_incarnation_that_crashed_is_none_of_the_others(world: ScaleWorld) -> None:
    """Until it is recovered SQL counts its run, and the registry lists it."""
    world.have(busy=2)
    world.units["w2"].busy = 0
    world.others = [replace(world.units["w2"].report(slots=1), busy=1)]
    world.restart("w2")
    world.passes(world.leader(QUICK), 6)
    assert (world.target.writes, world.decisions()) == ([], [])


def test_growth_counts_what_is_on_its_way(world: ScaleWorld) -> None:
    world.have(busy=1)
    world.ready = 4
    leader = world.leader(QUICK)
    world.passes(leader, 8)
    assert world.target.writes == [(5, ())]
    assert world.outcomes() == [(1, 5, Outcome.SCALED)]
    assert world.decisions()[0].inputs["pressures"]["saturation"] == 5


def test_a_pool_of_nobody_grows_for_whoever_waits_and_shrinks_to_nobody(world: ScaleWorld) -> None:
    leader = world.leader(QUICK)
    world.passes(leader, 3)
    assert world.target.writes == []
    world.ready = 2
    world.passes(leader, 1)
    assert world.target.size == 2
    world.tick(60)
    world.ready = 0
    for unit in world.units.values():
        unit.busy = 1
    world.passes(leader, 10)
    assert world.target.size == 2
    for unit in world.units.values():
        unit.busy = 0
    world.passes(leader, 8)
    assert world.target.size == 0


def test_a_target_that_does_not_answer_is_told_of_once(world: ScaleWorld) -> None:
    world.have(busy=1)
    world.ready = 1
    leader = world.leader(QUICK)
    world.target.fails = Unavailable("away")
    for _ in range(3):
        with pytest.raises(Unavailable):
            leader()
        world.tick(5)
    world.target.fails = Broken("no such workload")
    assert leader() is None, "nothing that ends a controller"
    leader()
    assert [(each.outcome, each.detail["error"]) for each in world.decisions()] == [
        (Outcome.FAILED, "away"),
        (Outcome.FAILED, "no such workload"),
    ]
    world.target.fails = None
    world.passes(leader, 1)
    assert world.target.size == 2
    assert world.decisions()[-1].outcome is Outcome.SCALED


def test_a_size_that_is_refused_is_told_of_once_and_tried_again(world: ScaleWorld) -> None:
    world.have(busy=1)
    world.ready = 1
    leader = world.leader(QUICK)

    def refuse() -> None:
        raise Unavailable("quota")

    world.target.before_resize = refuse
    for _ in range(4):
        with pytest.raises(Unavailable):
            leader()
        world.tick(5)
    assert world.outcomes() == [(1, 2, Outcome.FAILED)]
    world.target.before_resize = lambda: None
    world.passes(leader, 1)
    assert world.outcomes() == [(1, 2, Outcome.FAILED), (1, 2, Outcome.SCALED)]
    assert world.target.size == 2


def test_without_a_target_what_would_be_wanted_is_written_when_it_changes(world: ScaleWorld) -> None:
    world.have(busy=2)
    leader = world.leader(QUICK, target=None)
    world.passes(leader, 3)
    assert world.decisions() == []
    world.ready = 3
    world.passes(leader, 5)
    assert [(each.desired, each.outcome, each.target) for each in world.decisions()] == [(5, Outcome.HELD, "none")]
    assert world.target.writes == []


def test_a_size_that_somebody_else_has_set_is_told_of_once(world: ScaleWorld) -> None:
    world.have(busy=2)
    world.ready = 1
    leader = world.leader(bounds(2, 9))
    world.passes(leader, 2)
    world.ready = 0
    world.end("w3")
    world.target.size = 2
    world.passes(leader, 4)
    assert [(row.current, row.desired, row.reason) for row in world.decisions()] == [
        (2, 3, "startup"),
        (3, 2, "outside"),
    ]
    world.passes(world.leader(bounds(2, 9), "next"), 3)
    assert len(world.decisions()) == 2
    assert world.decisions()[-1].outcome is Outcome.SCALED


def test_another_target_leaves_nobody_behind_who_was_to_go_with_the_last(world: ScaleWorld) -> None:
    """Somebody has changed the settings in the middle of a drain."""
    world.have(busy=3)
    world.units["w3"].cordoned = True
    world.passes(world.leader(bounds(0, 1)), 2)
    assert world.going() == {"w2", "w3"}
    leader = world.leader(bounds(0, 1), "next", target=None)
    world.passes(leader, 3)
    assert world.units["w2"].heard == ["drain"], "the one that began it may lead again in a moment"
    world.passes(leader, 15)
    assert (world.units["w2"].heard, world.units["w3"].heard) == (["drain", "uncordon"], []), "w3 was never ours"
    assert world.going() == set()
    assert world.decisions()[1].detail == {"why": "the target was 'fake' and is 'none' now"}
    assert [each.outcome for each in world.decisions()] == [Outcome.OVERTAKEN, Outcome.HELD, Outcome.HELD]


def test_those_that_go_are_told_how_long_they_have(world: ScaleWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.have(busy=2)
    drain = Drain(timedelta(seconds=90), AtDeadline.REQUEUE)
    world.passes(world.leader(bounds(0, 1), drain=drain), 1)
    [name] = world.going()
    assert world.units[name].told == {"deadline_ms": 90_000, "then": "requeue", "stay": True}
    assert {row.action for row in world.store.audit_rows(AuditFilter()).items} == {"worker.drain"}
    [row] = world.store.audit_rows(AuditFilter()).items
    assert row.actor == "controller:one"


def test_one_that_never_comes_is_no_promise_for_ever(world: ScaleWorld) -> None:
    world.have(busy=1)
    world.start("w2", timedelta(days=1))
    world.target.size = 2
    leader = world.leader(bounds(2, 2))
    world.passes(leader, 1)
    world.ready = 9
    world.passes(world.leader(bounds(2, 9)), 2)
    assert world.decisions()[-1].inputs["starting"] == 1
    world.tick(120)
    world.passes(leader, 20)
    world.units["w1"].busy = 0
    world.ready = 0
    world.passes(world.leader(bounds(1, 1)), 40)
    assert "w2" in world.ended, "silent for long, and owning nothing: it goes before any that works"


def test_a_new_leader_keeps_the_cooldown_of_the_last(world: ScaleWorld) -> None:
    world.have(busy=2, idle=2)
    rules: Rules = replace(QUICK, down_cooldown=timedelta(seconds=60))
    world.ready = 2
    world.passes(world.leader(bounds(5, 5)), 1)
    world.ready = 0
    world.passes(world.leader(rules, "two"), 6)
    assert world.going() == set(), "it grew a moment ago"
    world.passes(world.leader(rules, "three"), 14)
    assert world.target.size < 5 or world.going()


def other(name: str, busy: int) -> WorkerReport:
    report = Unit(name, begins=0, born=0, busy=busy).report(slots=8)
    return replace(report, host="elsewhere")


def test_what_other_workers_of_the_pool_carry_needs_nobody_here(world: ScaleWorld) -> None:
    """Two workloads of one pool, one of which is scaled."""
    world.have(busy=1, idle=1)
    world.others = [other("x1", 8), other("x2", 7)]
    leader = world.leader(QUICK)
    world.passes(leader, 6)
    assert (world.target.size, world.ended) == (1, ["w2"])
    world.ready = 2
    world.passes(leader, 2)
    assert world.target.size == 3


def test_members_that_are_known_by_other_names_are_never_taken_for_gone(world: ScaleWorld) -> None:
    world.have(busy=2, idle=1)
    world.others = [other(f"node-{number}", unit.busy) for number, unit in enumerate(world.units.values())]
    for unit in world.units.values():
        unit.silent = True
    leader = world.leader(bounds(0, 1))
    world.passes(leader, 40)
    assert (world.target.size, world.going()) == (3, set())
    world.ready = 9
    world.passes(world.leader(bounds(0, 9)), 2)
    assert world.decisions()[-1].inputs["doubts"] == [NAMES]


def test_where_units_start_on_the_host_that_sessions_are_bound_to_they_are_counted(
    world: ScaleWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.have(busy=1)
    world.bound = {"h": 3, "elsewhere": 9}
    leader = world.leader(QUICK)
    world.passes(leader, 3)
    assert world.target.size == 1, "units of no certain host would not help them"
    read = world.target.read
    monkeypatch.setattr(world.target, "read", lambda: replace(read(), host="h"))
    world.passes(leader, 2)
    assert world.target.size == 4
