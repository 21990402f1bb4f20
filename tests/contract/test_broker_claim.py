"""Claim: order, fairness, caps, suspects, called sessions, repeats; and what time brings."""

from __future__ import annotations

import collections
import itertools
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from oah.core.model.group import of_workspace
from oah.core.model.ids import ClaimToken, RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.core.model.session import HoldReason, Place
from oah.ports.broker import ClaimRequest, Ensure, Free, Hear, Target, WakeKind, WorkspaceLimit
from tests.support.broker_desk import BACKGROUND, INTERACTIVE, LANE, LEASE, ORDER, W1, W2, WS, Desk, S

SECOND = timedelta(seconds=1)


def names(reply) -> list[str]:
    return [claimed.session_id for claimed in reply.sessions]


def test_oldest_first_and_only_once(desk: Desk) -> None:
    for name in "abcde":
        desk.hear(name)
    first = desk.claim(W1, want=3)
    assert names(first) == ["a", "b", "c"]
    assert first.more_left
    second = desk.claim(W2, want=3)
    assert names(second) == ["d", "e"]
    assert not second.more_left


def test_classes_and_lanes_in_the_order_given(desk: Desk) -> None:
    other = Lane("pool", "python")
    desk.hear("low", cls=BACKGROUND)
    desk.hear("high", cls=INTERACTIVE)
    desk.hear("other", lane=other)
    assert names(desk.claim(want=9, order=((LANE, BACKGROUND), (LANE, INTERACTIVE)))) == ["low", "high"]
    assert names(desk.claim(want=9)) == []
    assert names(desk.claim(want=9, order=((other, INTERACTIVE),))) == ["other"]


def test_workspaces_take_turns_by_weight(desk: Desk) -> None:
    desk.broker.limits(desk.epoch, [WorkspaceLimit(WorkspaceId("heavy"), weight=3)])
    for n in range(40):
        for ws in ("heavy", "light"):
            desk.hear(f"{ws}-{n}", ws=ws)
    got = collections.Counter(name.split("-")[0] for name in names(desk.claim(want=40)))
    assert got["heavy"] == pytest.approx(30, abs=1)


def test_being_away_earns_nothing_and_costs_nothing(desk: Desk) -> None:
    for n in range(60):
        desk.hear(f"busy-{n}", ws="busy")
    desk.claim(want=30)
    for n in range(20):
        desk.hear(f"new-{n}", ws="new")
    got = collections.Counter(name.split("-")[0] for name in names(desk.claim(want=20)))
    assert got["busy"] == pytest.approx(10, abs=1)
    # One that always has a single session ready, and comes back after each, does not overtake.
    turns = collections.Counter[str]()
    for n in range(20):
        desk.hear(f"single-{n}", ws="aaa")
        turns.update(name.split("-")[0] for name in names(desk.claim(want=1)))
    assert turns["single"] <= 10


def test_repeated_request_repeats_its_answer(desk: Desk) -> None:
    for name in "abcd":
        desk.hear(name)
    request = desk.request()
    first = desk.claim(W1, want=2, request=request)
    again = desk.claim(W1, want=2, request=request)
    assert sorted(names(again)) == sorted(names(first)) == ["a", "b"]
    desk.free("a", request, Target.IDLE)
    assert names(desk.claim(W1, want=2, request=request)) == ["b"]
    assert names(desk.claim(W1, want=2)) == ["c", "d"]


def test_repeated_request_that_took_a_called_session(desk: Desk) -> None:
    token = desk.take()
    desk.free(S, token, Target.PARKED)
    desk.hear()
    request = desk.request()
    for _ in range(2):
        (claimed,) = desk.claim(W1, request=request).sessions
        assert (claimed.token, claimed.parked) == (token, True)


def test_called_sessions_come_first_and_use_slots(desk: Desk) -> None:
    token = desk.take("warm")
    desk.free("warm", token, Target.PARKED)
    desk.hear("cold")
    desk.hear("warm")
    assert names(desk.claim(W1, want=1)) == ["warm"]
    assert names(desk.claim(W1, want=1)) == ["cold"]


def test_called_sessions_that_a_full_claim_left_are_more(desk: Desk) -> None:
    """Nobody else comes for them: their owner claims again as soon as a slot is free."""
    for name in ("a", "b"):
        desk.free(name, desk.take(name), Target.PARKED)
    for name in ("a", "b"):
        desk.hear(name)
    reply = desk.claim(W1, want=1)
    assert names(reply) == ["a"] and reply.more_left
    reply = desk.claim(W1, want=1)
    assert names(reply) == ["b"] and not reply.more_left


def test_at_most_one_suspect(desk: Desk) -> None:
    for name in "abc":
        desk.ensure(name, cls=ReadyClass.SUSPECT)
    desk.hear("fine")
    assert names(desk.claim(W1, want=9, suspect=False)) == ["fine"]
    reply = desk.claim(W1, want=9)
    assert names(reply) == ["a"]
    assert not reply.more_left  # nobody should wake for suspects that wait for a place


def test_at_most_one_suspect_over_all_lanes(desk: Desk) -> None:
    other = Lane("pool", "python")
    desk.ensure("a", cls=ReadyClass.SUSPECT)
    desk.broker.ensure(desk.epoch, [Ensure(SessionId("b"), other, WS, ReadyClass.SUSPECT)])
    both = ((LANE, ReadyClass.SUSPECT), (other, ReadyClass.SUSPECT))
    assert names(desk.claim(W1, want=9, order=both)) == ["a"]


def test_a_called_suspect_needs_the_place_too(desk: Desk) -> None:
    token = desk.take()
    desk.free(S, token, Target.PARKED, ready_class=ReadyClass.SUSPECT)
    assert names(desk.claim(W1, want=9, suspect=False)) == []
    desk.ensure("other", cls=ReadyClass.SUSPECT)
    assert names(desk.claim(W1, want=9)) == [S]


def test_strays_are_dropped(desk: Desk) -> None:
    desk.client.zadd("oah:{0}:ready:pool/shell:interactive:ws", {f"ghost-{n}": n for n in range(10)})
    desk.hear()
    assert names(desk.claim(want=2)) == [S]


def test_cap_counts_sessions_that_hold_a_slot(desk: Desk) -> None:
    desk.broker.limits(desk.epoch, [WorkspaceLimit(WS, max_active=2)])
    for name in "abcd":
        desk.hear(name)
    desk.hear("other", ws="else")
    request = desk.request()
    assert sorted(names(desk.claim(W1, want=9, request=request))) == ["a", "b", "other"]
    assert names(desk.claim(W2, want=9)) == []
    desk.audit()
    assert desk.free("a", request, Target.PARKED).place is Place.PARKED  # a parked one holds no slot
    (claimed,) = desk.claim(W2, want=9).sessions
    assert claimed.session_id == "c"
    desk.hear("a")
    assert names(desk.claim(W1, want=9)) == []  # its owner is called, but the cap is reached
    desk.free("c", claimed.token, Target.IDLE)
    assert names(desk.claim(W1, want=9)) == ["a"]


def test_resume_may_exceed_a_cap(desk: Desk) -> None:
    desk.broker.limits(desk.epoch, [WorkspaceLimit(WS, max_active=1)])
    token = desk.take()
    desk.free(S, token, Target.PARKED)
    desk.take("b")
    desk.ensure(S, cls=ReadyClass.RESUME)
    assert names(desk.claim(W1)) == [S]


def test_a_raised_cap_brings_the_workspace_back_and_wakes(desk: Desk) -> None:
    desk.broker.limits(desk.epoch, [WorkspaceLimit(WS, max_active=1)])
    desk.hear("a")
    desk.hear("b", cls=BACKGROUND)
    assert names(desk.claim(want=9)) == ["a"]
    desk.client.delete("oah:{0}:wake:pool/shell")
    desk.broker.limits(desk.epoch, [WorkspaceLimit(WS, max_active=None)])
    assert desk.broker.wait(W2, [LANE], timeout=SECOND) is WakeKind.WORK
    assert names(desk.claim(W2, want=9)) == ["b"]


def test_tick_frees_a_cap_that_was_raised_behind_its_back(desk: Desk) -> None:
    desk.broker.limits(desk.epoch, [WorkspaceLimit(WS, max_active=1)])
    desk.hear("a")
    desk.hear("b")
    assert names(desk.claim(want=9)) == ["a"]
    desk.client.hset("oah:{0}:ws:ws", "cap", 5)
    desk.broker.tick(desk.epoch, limit=9)
    assert names(desk.claim(W2, want=9)) == ["b"]


def test_membership_is_repaired_only_where_nobody_leases(desk: Desk) -> None:
    desk.take("a")
    desk.client.sadd("oah:{0}:active:ws:ws", "ghost")
    assert sorted(desk.broker.active([of_workspace(WS)])[0]) == ["a", "ghost"]
    assert (
        desk.broker.drop_active(desk.epoch, of_workspace(WS), [SessionId("a"), SessionId("ghost"), SessionId("none")])
        == 1
    )
    assert desk.broker.active([of_workspace(WS)])[0] == ["a"]


def test_claim_tells_the_next_due_time_and_the_age_of_tick(desk: Desk) -> None:
    assert desk.claim().next_due_in is None
    assert desk.claim().ticked_ago is None
    desk.hear("later", due=60 * SECOND)
    desk.hold("held", HoldReason.BACKOFF, until=30 * SECOND)
    desk.hold("for-ever", HoldReason.PAUSED)
    desk.broker.tick(desk.epoch, limit=9)
    reply = desk.claim()
    assert reply.next_due_in is not None
    assert 29 * SECOND < reply.next_due_in <= 30 * SECOND
    assert reply.ticked_ago is not None
    assert reply.ticked_ago < SECOND


def test_due_runs_stay_listed_until_they_are_promoted(desk: Desk) -> None:
    desk.hear("a", "run-a", due=SECOND)
    desk.hear("b", "run-b", due=SECOND)
    desk.hear("b", "run-later", due=60 * SECOND)
    assert desk.place("a") is Place.IDLE
    assert desk.broker.tick(desk.epoch, limit=9).due == ()
    desk.pass_time(2)
    for _ in range(2):
        assert [(d.run_id, d.session_id) for d in desk.broker.tick(desk.epoch, limit=9).due] == [
            ("run-a", "a"),
            ("run-b", "b"),
        ]
    assert desk.ensure("a", promoted=("run-a",)).place is Place.READY
    desk.broker.undue(desk.epoch, ["run-b"])  # type: ignore[list-item]
    reply = desk.broker.tick(desk.epoch, limit=9)
    assert reply.due == ()
    assert reply.next_due_in is not None
    assert 55 * SECOND < reply.next_due_in <= 58 * SECOND


def test_an_earlier_due_time_wakes(desk: Desk) -> None:
    desk.hear("a", due=60 * SECOND)
    assert desk.broker.wait(W1, [LANE], timeout=SECOND) is WakeKind.WORK
    desk.hear("b", due=90 * SECOND)
    assert desk.broker.wait(W1, [LANE], timeout=SECOND / 20) is None
    desk.hear("c", due=30 * SECOND)
    assert desk.broker.wait(W1, [LANE], timeout=SECOND) is WakeKind.WORK


def test_tick_arms_a_lost_token_again(desk: Desk) -> None:
    desk.hear()
    assert desk.broker.wait(W1, [LANE], timeout=SECOND) is WakeKind.WORK  # taken by somebody who froze
    assert desk.broker.wait(W2, [LANE], timeout=SECOND / 20) is None
    reply = desk.broker.tick(desk.epoch, limit=9)
    assert reply.oldest_ready is not None
    assert desk.broker.wait(W2, [LANE], timeout=SECOND) is WakeKind.WORK
    assert names(desk.claim(W2)) == [S]
    assert desk.broker.tick(desk.epoch, limit=9).oldest_ready is None
    assert desk.client.smembers("oah:{0}:lanes") == set()


def test_a_short_claim_passes_a_token_on(desk: Desk) -> None:
    for name in "abc":
        desk.hear(name)
    desk.client.delete("oah:{0}:wake:pool/shell")
    desk.claim(W1, want=1)
    assert desk.broker.wait(W2, [LANE], timeout=SECOND) is WakeKind.WORK
    desk.claim(W2, want=2)
    assert desk.broker.wait(W2, [LANE], timeout=SECOND / 20) is None


def test_tokens_are_bounded(desk: Desk) -> None:
    for n in range(100):
        desk.hear(f"s{n}")
    desk.broker.wake([LANE] * 10)
    assert desk.client.llen("oah:{0}:wake:pool/shell") == 64


def test_ensure_places_by_age_and_later_ones_come_after(desk: Desk) -> None:
    desk.ensure("old", score=1_764_500_000_000.5)
    desk.ensure("older", score=1_764_400_000_000.0)
    desk.hear("new")
    assert names(desk.claim(want=9)) == ["older", "old", "new"]


def test_hint_list(desk: Desk) -> None:
    key = "oah:{0}:session:s:queue"
    for run in ("r1", "r2", "r3"):
        desk.hear(S, run)
    desk.broker.popped(desk.epoch, [S])
    assert desk.client.lrange(key, 0, -1) == [b"r2", b"r3"]
    desk.ensure(runs=("r3", "r4"))
    assert desk.client.lrange(key, 0, -1) == [b"r3", b"r4"]
    desk.cancel()
    assert not desk.client.exists(key)


def test_turn_frees_pops_and_claims_in_one_round_trip(desk: Desk) -> None:
    desk.free(
        "x", "f" * 32, Target.IDLE
    )  # the server knows the script: else only it would be repeated, after the claim
    token = desk.take("a")
    desk.hear("a", "r2")
    desk.hear("b")
    request = desk.request()
    turn = desk.broker.turn(
        desk.epoch,
        [Free(SessionId("a"), token, Target.READY, INTERACTIVE), Free(SessionId("x"), token, Target.IDLE)],
        ClaimRequest(W1, request, LEASE, 2, 9, ORDER),
        heads=[SessionId("a")],
    )
    assert [freed.place for freed in turn.freed] == [Place.READY, Place.IDLE]
    assert turn.claim is not None
    assert [(c.session_id, c.token) for c in turn.claim.sessions] == [("b", request), ("a", request)]
    assert turn.refused is None


def test_more_items_than_one_call_takes(desk: Desk) -> None:
    count = 600
    ensures = [
        Ensure(SessionId(f"s{n}"), LANE, WS, INTERACTIVE, runs=(f"r{n}",))  # type: ignore[arg-type]
        for n in range(count)
    ]
    assert {placed.place for placed in desk.broker.ensure(desk.epoch, ensures)} == {Place.READY}
    assert desk.client.lrange("oah:{0}:session:s599:queue", 0, -1) == [b"r599"]
    reply = desk.claim(want=count)
    assert names(reply) == [f"s{n}" for n in range(count)]
    frees = [Free(c.session_id, c.token, Target.IDLE) for c in reply.sessions]
    assert [freed.place for freed in desk.broker.free(desk.epoch, frees)] == [Place.IDLE] * count


def test_one_batch_that_leaves_and_enters_a_ring(desk: Desk) -> None:
    def hear(name: str, cls: ReadyClass) -> Hear:
        return Hear(SessionId(name), RunId(f"{name}-{cls}"), LANE, WS, cls)

    hears = [hear("a", BACKGROUND), hear("a", INTERACTIVE), hear("b", BACKGROUND), hear("a", INTERACTIVE)]
    assert {placed.place for placed in desk.broker.enqueue(desk.epoch, hears)} == {Place.READY}
    desk.audit()
    assert names(desk.claim(want=9)) == ["a", "b"]


def test_many_workers_at_once_take_each_session_once(desk: Desk) -> None:
    total, threads = 120, 6
    desk.broker.ensure(desk.epoch, [Ensure(SessionId(f"s{n}"), LANE, WS, INTERACTIVE) for n in range(total)])

    def work(number: int) -> list[str]:
        worker, taken = WorkerId(f"w{number}.1"), []
        for counter in itertools.count(1):
            request = ClaimRequest(worker, ClaimToken(f"{number}-{counter}"), LEASE, counter, 3, ORDER)
            reply = desk.broker.claim(desk.epoch, request)
            if not reply.sessions:
                return taken
            taken += names(reply)
            frees = [Free(claimed.session_id, claimed.token, Target.IDLE) for claimed in reply.sessions]
            assert {freed.place for freed in desk.broker.free(desk.epoch, frees)} == {Place.IDLE}
        raise AssertionError

    with ThreadPoolExecutor(threads) as pool:
        taken = [name for part in pool.map(work, range(threads)) for name in part]
    assert sorted(taken) == sorted(f"s{n}" for n in range(total))


def test_resumes_only_takes_what_waited_and_nothing_else(desk: Desk) -> None:
    """A worker that takes no new runs still lets those go on that it has asked people about."""
    waits, warm = desk.take("waits"), desk.take("warm")
    desk.free("waits", waits, Target.PARKED)
    desk.free("warm", warm, Target.PARKED)
    desk.hear("new")
    assert desk.hear("warm").owner == W1
    assert desk.ensure("waits", cls=ReadyClass.RESUME).owner == W1
    reply = desk.claim(want=5, order=(), resumes_only=True)
    assert [(c.session_id, c.token, c.parked, c.ready_class) for c in reply.sessions] == [
        ("waits", waits, True, ReadyClass.RESUME)
    ]
    assert desk.claim(want=5, order=(), resumes_only=True).sessions == ()
    assert desk.view("waits").place is Place.LEASED and desk.view("warm").place is Place.PARKED
    assert {c.session_id for c in desk.claim(want=5).sessions} == {"warm", "new"}


def test_what_waited_is_found_behind_others_that_were_called(desk: Desk) -> None:
    for number in range(20):
        name = f"warm{number}"
        desk.free(name, desk.take(name), Target.PARKED)
    token = desk.take("waits")
    desk.free("waits", token, Target.PARKED)
    desk.take("busy")
    desk.broker.limits(desk.epoch, [WorkspaceLimit(WS, max_active=1)])
    for number in range(20):
        desk.hear(f"warm{number}")
    desk.ensure("waits", cls=ReadyClass.RESUME)
    assert [c.session_id for c in desk.claim().sessions] == ["waits"], "beyond the cap, and past the others"


def test_an_answer_while_the_session_is_claimed_for_another_reason_is_not_lost(desk: Desk) -> None:
    token = desk.take("waits")
    desk.free("waits", token, Target.PARKED)
    desk.hear("waits")
    assert [c.session_id for c in desk.claim().sessions] == ["waits"]
    assert desk.ensure("waits", cls=ReadyClass.RESUME).place is Place.LEASED
    assert desk.free("waits", token, Target.PARKED).owner == W1, "called again at once"
    assert desk.claim().sessions[0].ready_class is ReadyClass.RESUME


def test_a_hold_does_not_keep_an_answer_away(desk: Desk) -> None:
    token = desk.take("waits")
    desk.free("waits", token, Target.PARKED)
    desk.hold("waits")
    assert desk.ensure("waits", cls=ReadyClass.RESUME).owner == W1
    assert [c.ready_class for c in desk.claim(order=(), resumes_only=True).sessions] == [ReadyClass.RESUME]


def test_a_session_that_waits_and_is_restored_is_parked_and_can_be_called(desk: Desk) -> None:
    token = desk.request()
    assert desk.restore("waits", W1, token, parked=True)
    assert desk.view("waits").place is Place.PARKED
    assert desk.ensure("waits", cls=ReadyClass.RESUME).owner == W1
    assert [c.token for c in desk.claim().sessions] == [token]
