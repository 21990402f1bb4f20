"""Caps of profiles and of all, pauses of pools, profiles and workspaces, on every kind of server."""

from __future__ import annotations

from datetime import timedelta

from oah.core.model.group import ALL, Group, of_pool, of_profile
from oah.core.model.ids import SessionId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import PRIORITY, ReadyClass
from oah.ports.broker import ClaimReply, GroupCap, Target, WakeKind, WorkspaceLimit
from tests.support.broker_desk import LANE, ORDER, W1, W2, WS, Desk, S

SECOND = timedelta(seconds=1)
OTHER = Lane("pool", "python")
ELSEWHERE = Lane("gpu", "shell")
BOTH = tuple((lane, ready_class) for ready_class in PRIORITY for lane in (LANE, OTHER, ELSEWHERE))


def names(reply: ClaimReply) -> list[str]:
    return [claimed.session_id for claimed in reply.sessions]


def cap(desk: Desk, **caps: int) -> None:
    """``all=1, profile_shell=2, pool_gpu=0``."""
    groups = {"all": ALL}
    for word in caps:
        kind, _, name = word.partition("_")
        groups.setdefault(word, of_pool(name) if kind == "pool" else of_profile(name))
    desk.broker.caps(desk.epoch, [GroupCap(groups[word], most) for word, most in caps.items()])


def test_a_cap_of_a_profile_holds_in_all_pools_and_workspaces(desk: Desk) -> None:
    cap(desk, profile_shell=2)
    desk.hear("a")
    desk.hear("b", lane=ELSEWHERE, ws="two")
    desk.hear("c", ws="three")
    desk.hear("free", lane=OTHER)
    request = desk.request()
    taken = names(desk.claim(W1, want=9, order=BOTH, request=request))
    assert "free" in taken and len(taken) == 3
    reply = desk.claim(W2, want=9, order=BOTH)
    assert (names(reply), reply.more_left) == ([], False), "nobody is to come again at once"
    desk.audit()


def test_a_session_that_ends_wakes_lanes_that_waited_for_the_cap(desk: Desk) -> None:
    cap(desk, profile_shell=1)
    token = desk.take("a")
    desk.hear("b", lane=ELSEWHERE)
    assert names(desk.claim(W2, want=9, order=BOTH)) == []
    desk.client.delete("oah:{0}:wake:gpu/shell")
    desk.free("a", token, Target.IDLE)
    assert desk.broker.wait(W2, [ELSEWHERE], timeout=SECOND) is WakeKind.WORK
    assert names(desk.claim(W2, want=9, order=BOTH)) == ["b"]


def test_a_cap_of_all(desk: Desk) -> None:
    cap(desk, all=2)
    for n, lane in enumerate((LANE, OTHER, ELSEWHERE, LANE)):
        desk.hear(f"s{n}", lane=lane, ws=f"ws{n}")
    assert len(names(desk.claim(W1, want=9, order=BOTH))) == 2
    assert names(desk.claim(W2, want=9, order=BOTH)) == []
    cap(desk)  # lifted
    assert len(names(desk.claim(W2, want=9, order=BOTH))) == 2


def test_a_raised_cap_wakes(desk: Desk) -> None:
    cap(desk, all=1)
    desk.take("a")
    desk.hear("b")
    assert names(desk.claim(W2)) == []
    desk.client.delete("oah:{0}:wake:pool/shell")
    cap(desk, all=2)
    assert desk.broker.wait(W2, [LANE], timeout=SECOND) is WakeKind.WORK


def test_a_parked_session_frees_a_cap_and_waits_for_it_again(desk: Desk) -> None:
    cap(desk, profile_shell=1)
    token = desk.take()
    desk.free(S, token, Target.PARKED)
    other = desk.take("b", W2)
    desk.hear()
    assert names(desk.claim(W1)) == []  # called, and the cap is reached
    desk.free("b", other, Target.IDLE)
    assert names(desk.claim(W1)) == [S]


def test_what_waited_may_go_on_beyond_any_cap_and_pause(desk: Desk) -> None:
    token = desk.take()
    desk.free(S, token, Target.PARKED)
    cap(desk, all=0, profile_shell=0, pool_pool=0)
    desk.broker.limits(desk.epoch, [WorkspaceLimit(WS, max_active=0)])
    desk.ensure(S, cls=ReadyClass.RESUME)
    assert names(desk.claim(W1)) == [S]


def test_nothing_of_a_paused_pool_or_profile_is_taken(desk: Desk) -> None:
    for group in ("pool_gpu", "profile_python"):
        cap(desk, **{group: 0})
        paused = ELSEWHERE if group == "pool_gpu" else OTHER
        desk.hear(f"{group}-waits", lane=paused)
        desk.hear(f"{group}-goes", lane=LANE)
        assert names(desk.claim(W1, want=9, order=BOTH)) == [f"{group}-goes"]
        cap(desk)
        assert names(desk.claim(W1, want=9, order=BOTH)) == [f"{group}-waits"]


def test_a_paused_workspace_leaves_its_rings_and_comes_back(desk: Desk) -> None:
    desk.hear("a")
    desk.hear("b", ws="other")
    desk.broker.limits(desk.epoch, [WorkspaceLimit(WS, max_active=0)])
    assert names(desk.claim(W1, want=9)) == ["b"]
    desk.client.delete("oah:{0}:wake:pool/shell")
    desk.broker.limits(desk.epoch, [WorkspaceLimit(WS)])
    assert desk.broker.wait(W2, [LANE], timeout=SECOND) is WakeKind.WORK
    assert names(desk.claim(W2, want=9, order=ORDER)) == ["a"]


def test_members_of_every_group_are_repaired(desk: Desk) -> None:
    groups: list[Group] = [ALL, of_profile("shell")]
    desk.take("a")
    for key in ("all", "profile:shell"):
        desk.client.sadd(f"oah:{{0}}:active:{key}", "ghost")
    assert [sorted(each) for each in desk.broker.active(groups)] == [["a", "ghost"]] * 2
    asked = [SessionId("a"), SessionId("ghost")]
    assert [desk.broker.drop_active(desk.epoch, group, asked) for group in groups] == [1, 1]
    assert desk.broker.active(groups) == [["a"], ["a"]]


def test_a_lost_membership_comes_back_with_the_lease(desk: Desk) -> None:
    token = desk.take("a", ws=WorkspaceId(WS))
    desk.client.delete("oah:{0}:active:all", "oah:{0}:active:profile:shell", "oah:{0}:active:ws:ws")
    assert desk.restore("a", W1, token)
    desk.audit()


# priority inside a workspace


def test_higher_priorities_first_and_age_among_equals(desk: Desk) -> None:
    for name, priority in (("a", 0), ("b", -100), ("c", 100), ("d", 5), ("e", 100), ("f", 0)):
        desk.hear(name, priority=priority)
    desk.audit()
    assert names(desk.claim(want=9)) == ["c", "e", "d", "a", "f", "b"]


def test_a_priority_is_one_of_class_and_workspace_alone(desk: Desk) -> None:
    """It jumps no other workspace's turn, and no class."""
    for n in range(4):
        desk.hear(f"high-{n}", ws="loud", priority=100)
        desk.hear(f"low-{n}", ws="quiet")
    desk.hear("later", ws="loud", cls=ReadyClass.BACKGROUND, priority=100)
    taken = names(desk.claim(want=4))
    assert sorted(each.split("-")[0] for each in taken) == ["high", "high", "low", "low"]
    assert names(desk.claim(want=9))[-1] == "later"


def test_a_released_session_keeps_priority_and_place(desk: Desk) -> None:
    desk.hear("a", priority=3)
    desk.hear("b", priority=3)
    token = desk.claim().sessions[0].token
    desk.release("a", token)
    assert names(desk.claim(want=2)) == ["a", "b"]


def test_the_next_run_brings_its_own_priority(desk: Desk) -> None:
    desk.hear("a", priority=100)
    desk.hear("b", priority=3)
    token = desk.claim().sessions[0].token
    desk.free("a", token, Target.READY, ready_class=ReadyClass.INTERACTIVE, priority=1)
    assert names(desk.claim(want=2)) == ["b", "a"]
    desk.recover("c", "x" * 32, Target.READY, ready_class=ReadyClass.INTERACTIVE, priority=1)
    desk.hear("d", priority=2)
    assert names(desk.claim(want=2)) == ["d", "c"]


def test_ensure_puts_a_priority_right(desk: Desk) -> None:
    """Its first run was cancelled: reconcile says which is first now."""
    desk.hear("a", priority=100)
    desk.hear("b")
    desk.ensure("a", priority=-1)
    desk.audit()
    assert names(desk.claim(want=2)) == ["b", "a"]


def test_priorities_keep_the_order_of_age_after_a_rebuild(desk: Desk) -> None:
    """Scores of a rebuild are moments; a priority must not drown them."""
    base = 1.8e9 - 1e10
    for n in (2, 0, 1):
        desk.ensure(f"s{n}", priority=100, score=base + n)
    desk.ensure("first", priority=0, score=base - 1000)
    desk.ensure("exact", score=base - 2000.1234567)  # the set has the score as the hash has it, digit by digit
    desk.audit()
    assert names(desk.claim(want=9)) == ["s0", "s1", "s2", "exact", "first"]
