"""Depth and age of the queues, and what of it more slots would help, on every kind of server."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from oah.core.model.group import ALL, Group, of_pool, of_profile
from oah.core.model.ids import WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.ports.broker import Bind, GroupCap, LaneDepth, WorkspaceLimit
from tests.support.broker_desk import BACKGROUND, INTERACTIVE, LANE, Desk

SECOND = timedelta(seconds=1)
OTHER = Lane("pool", "python")


def depths(desk: Desk) -> dict[tuple[Lane, ReadyClass], tuple[int, int]]:
    """Lane and class → ready, and of these kept out."""
    found = desk.broker.figures().ready
    return {(depth.lane, depth.ready_class): (depth.sessions, depth.capped) for depth in found if depth.sessions}


def depth(desk: Desk, ready_class: ReadyClass = INTERACTIVE) -> LaneDepth:
    (found,) = [each for each in desk.broker.figures().ready if each.lane == LANE and each.ready_class is ready_class]
    return found


def cap(desk: Desk, *caps: tuple[Group, int]) -> None:
    desk.broker.caps(desk.epoch, [GroupCap(group, most) for group, most in caps])


def test_age_is_that_of_the_oldest_of_its_lane_and_class(desk: Desk) -> None:
    desk.hear("a")
    desk.pass_time(10)
    desk.hear("b", cls=BACKGROUND)
    desk.pass_time(5)
    old, young = depth(desk).oldest, depth(desk, BACKGROUND).oldest
    assert old is not None and 15 * SECOND <= old < 25 * SECOND
    assert young is not None and 5 * SECOND <= young < 15 * SECOND
    assert depth(desk, ReadyClass.SUSPECT) == LaneDepth(LANE, ReadyClass.SUSPECT, 0)


def test_what_waits_for_a_host_is_its_lanes_too(desk: Desk) -> None:
    desk.hear("a")
    for session, host in (("b", "h1"), ("c", "h2")):
        desk.hear(session, cls=BACKGROUND)
        (claimed,) = desk.claim(order=[(LANE, BACKGROUND)]).sessions
        desk.broker.bind(desk.epoch, [Bind(claimed.session_id, claimed.token, INTERACTIVE, host, SECOND * 60)])
    assert depths(desk) == {(LANE, INTERACTIVE): (3, 0)}


def test_a_workspace_waits_for_its_cap_and_not_for_slots(desk: Desk) -> None:
    desk.broker.limits(desk.epoch, [WorkspaceLimit(WorkspaceId("small"), 1, 3)])
    for n in range(10):
        desk.hear(f"s{n}", ws="small")
    desk.hear("late", ws="small", cls=BACKGROUND)
    assert depths(desk) == {(LANE, INTERACTIVE): (10, 7), (LANE, BACKGROUND): (1, 1)}
    desk.pass_time(60)
    for n in range(4):
        desk.hear(f"o{n}", ws="other")
    assert len(desk.claim(want=5).sessions) == 5
    assert sum(count - out for count, out in depths(desk).values()) == 2, "of the other, or one of each"
    while desk.claim(want=5).sessions:
        pass
    desk.hear("new", ws="other")
    assert depths(desk) == {(LANE, INTERACTIVE): (8, 7), (LANE, BACKGROUND): (1, 1)}
    oldest = depth(desk).oldest
    assert oldest is not None and oldest < 30 * SECOND, "the older ones could not be taken"
    assert depth(desk, BACKGROUND).oldest is None


def test_profiles_and_all_have_room_for_so_many(desk: Desk) -> None:
    for n in range(5):
        desk.hear(f"a{n}")
        desk.hear(f"b{n}", lane=OTHER)
    cap(desk, (of_profile("shell"), 2), (ALL, 6))
    assert sum(count - out for count, out in depths(desk).values()) == 6
    assert depths(desk)[LANE, INTERACTIVE][1] >= 3
    desk.claim(want=1)
    assert depths(desk)[LANE, INTERACTIVE][0] == 4
    assert depths(desk)[LANE, INTERACTIVE][1] >= 3
    assert sum(count - out for count, out in depths(desk).values()) == 5
    cap(desk, (of_pool("pool"), 0))
    assert {out == count for count, out in depths(desk).values()} == {True}, "the pool is paused"
    assert depth(desk).oldest is None
    assert desk.broker.figures().oldest_ready is not None, "they wait all the same"
    cap(desk)
    assert {out for _, out in depths(desk).values()} == {0}


def test_what_may_go_on_is_never_kept_out(desk: Desk) -> None:
    cap(desk, (ALL, 0))
    desk.ensure("r", cls=ReadyClass.RESUME)
    assert depths(desk) == {(LANE, ReadyClass.RESUME): (1, 0)}


@pytest.mark.parametrize("caps_of", ["workspaces", "profiles"])
def test_what_is_not_kept_out_is_what_workers_without_end_would_take(desk: Desk, caps_of: str) -> None:
    """By chance: sessions of workspaces and profiles, caps of either and of all, some slots taken already."""
    for seed in range(6):
        chance = random.Random(f"{caps_of}{seed}")
        lanes = [Lane("pool", f"{seed}-{name}") for name in ("shell", "python", "small")]
        names = [WorkspaceId(f"{seed}-{n}") for n in range(5)]
        limits = [chance.choice([None, 0, 1, 3, 8]) if caps_of == "workspaces" else None for _ in names]
        desk.broker.limits(desk.epoch, [WorkspaceLimit(*each) for each in zip(names, (1,) * 5, limits, strict=True)])
        profiles = [(of_profile(lane.profile), chance.randint(0, 6)) for lane in lanes] if caps_of == "profiles" else []
        running = len(desk.broker.active([ALL])[0])
        cap(desk, *profiles, (ALL, running + chance.choice([3, 12, 500])))
        for number in range(30):
            cls = chance.choice([INTERACTIVE, ReadyClass.SUBAGENT, BACKGROUND])
            desk.hear(f"{seed}-{number}", ws=chance.choice(names), lane=chance.choice(lanes), cls=cls)
        order = [(lane, cls) for cls in (INTERACTIVE, ReadyClass.SUBAGENT, BACKGROUND) for lane in lanes]
        desk.claim(want=chance.randint(0, 5), order=order)
        found = [each for each in desk.broker.figures().ready if each.lane in lanes]
        free = sum(each.sessions - each.capped for each in found)
        taken = 0
        while more := len(desk.claim(want=50, order=order).sessions):
            taken += more
        assert taken == free, (seed, limits, profiles)
        desk.broker.limits(desk.epoch, [WorkspaceLimit(name) for name in names])
        cap(desk)
        while desk.claim(want=50, order=order).sessions:  # nothing is left for the next
            pass
