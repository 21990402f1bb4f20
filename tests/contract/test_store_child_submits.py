"""Runs that an agent starts and sessions that it opens: behind the fence of its attempt, exact in number."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from oah.core.model.ids import RunId, SessionId
from oah.core.model.lane import Lane
from oah.core.model.session import Session, SessionState
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.core.policy.children import Bounds
from oah.errors import Conflict, RequestError
from oah.ports.children import Parent
from oah.ports.store import Accepted, RunFence, RunFilter
from tests.support.store_clerk import LANE, Clerk, fence_of

P = RunId("parent")


@pytest.fixture
def fence(clerk: Clerk) -> RunFence:
    """A running parent."""
    clerk.submit("s1", P)
    return fence_of(clerk.start())


def parent(fence: RunFence, **bounds: int) -> Parent:
    return Parent(fence.session_id, fence.run_id, fence.attempt, fence.token, Bounds(**bounds))


def session(name: str, run: RunId = P, lane: Lane = LANE) -> Session:
    at = datetime.now(UTC)
    return Session(SessionId(name), DEFAULT_WORKSPACE, lane, SessionState.OPEN, at, parent_run_id=run)


def send(clerk: Clerk, by: Parent, *names: str, **more: str) -> list[Accepted | RequestError]:
    """A child each in a session of its own."""
    for name in names:
        clerk.store.open_child_session(session(f"s-{name}"), replace(by, bounds=Bounds()))
    return clerk.send(*(clerk.new(f"s-{name}", name, parent_run_id=by.run_id, parent=by, **more) for name in names))


def codes(answers: list[Accepted | RequestError]) -> list[str]:
    return ["ok" if isinstance(answer, Accepted) else answer.code for answer in answers]


def test_children_are_counted_member_by_member(clerk: Clerk, fence: RunFence) -> None:
    by = parent(fence, live=2, in_all=3)
    assert codes(send(clerk, by, "a", "b", "c")) == ["ok", "ok", "too_many_live_children"]
    clerk.settle(clerk.start("s-a", worker="w.2"))
    assert codes(send(clerk, by, "d", "e")) == ["ok", "too_many_children"]
    found = clerk.store.runs(RunFilter(parent_run_id=P)).items
    assert sorted(run.id for run in found) == ["a", "b", "d"]
    assert all(run.parent_run_id == P for run in found)
    clerk.audit()


def test_many_at_once_are_not_one_too_many(clerk: Clerk, fence: RunFence) -> None:
    """Each in a transaction of its own, in sessions of their own: what they share is the parent's row."""
    names = [f"c{number}" for number in range(8)]
    for name in names:
        clerk.store.open_child_session(session(f"s-{name}"), parent(fence))
    by = parent(fence, live=3)
    runs = [clerk.new(f"s-{name}", name, parent_run_id=P, parent=by) for name in names]
    with ThreadPoolExecutor(8) as pool:
        answers = [answer for [answer] in pool.map(lambda run: clerk.send(run), runs)]
    assert codes(answers).count("ok") == 3
    clerk.audit()


def test_a_tree_is_as_deep_as_it_may_be(clerk: Clerk, fence: RunFence) -> None:
    by = parent(fence, depth=2)
    assert codes(send(clerk, by, "a")) == ["ok"]
    below = parent(fence_of(clerk.start("s-a", worker="w.2")), depth=2)
    clerk.store.open_child_session(session("s-b", RunId("a")), below)
    assert codes(clerk.send(clerk.new("s-b", "b", parent_run_id=RunId("a"), parent=below))) == ["ok"]
    lowest = parent(fence_of(clerk.start("s-b", worker="w.3")), depth=2)
    clerk.store.open_child_session(session("s-c", RunId("b")), lowest)
    assert codes(clerk.send(clerk.new("s-c", "c", parent_run_id=RunId("b"), parent=lowest))) == ["tree_too_deep"]


def test_what_messages_and_people_start_there_is_below_who_opened_the_session(clerk: Clerk, fence: RunFence) -> None:
    """A run that is nobody's child makes no tree of its own: its agent would be as free as the first one."""
    clerk.store.open_child_session(session("s-a"), parent(fence))
    clerk.submit("s-a", "woken")
    below = parent(fence_of(clerk.start("s-a", worker="w.2")), depth=1)
    clerk.store.open_child_session(session("s-b", RunId("woken")), below)
    new = clerk.new("s-b", "b", parent_run_id=RunId("woken"), parent=below)
    assert codes(clerk.send(new)) == ["tree_too_deep"]
    assert codes(clerk.send(replace(new, parent=replace(below, bounds=Bounds(depth=2))))) == ["ok"]


@pytest.mark.parametrize("how", ["settled", "released", "again"])
def test_an_attempt_that_is_over_starts_nothing(clerk: Clerk, fence: RunFence, how: str) -> None:
    by = parent(fence)
    assert codes(send(clerk, by, "a")) == ["ok"]
    if how == "settled":
        clerk.settle(fence)
    else:
        clerk.store.release([fence])
    later = parent(fence_of(clerk.start("s1"))) if how == "again" else None
    for name in ("s-a", "s-new"):
        with pytest.raises(Conflict) as caught:
            clerk.store.open_child_session(session(name), by)
        assert caught.value.code == "attempt_over"
    refused, other = clerk.send(clerk.new("s-a", "b", parent_run_id=P, parent=by), clerk.new("s-a", "c"))
    assert codes([refused, other]) == ["attempt_over", "ok"], "nobody else's submit is refused with it"
    if later is not None:
        clerk.store.open_child_session(session("s-a"), later)
        assert codes(clerk.send(clerk.new("s-a", "d", parent_run_id=P, parent=later))) == ["ok"]
    clerk.audit()


def test_one_that_is_asked_to_stop_starts_nothing(clerk: Clerk, fence: RunFence) -> None:
    clerk.store.open_child_session(session("s-a"), parent(fence))
    clerk.store.cancel(P, None, by="somebody")
    assert codes(clerk.send(clerk.new("s-a", "a", parent_run_id=P, parent=parent(fence)))) == ["run_stopping"]
    with pytest.raises(Conflict) as caught:
        clerk.store.open_child_session(session("s-b"), parent(fence))
    assert caught.value.code == "run_stopping"


def test_a_repetition_finds_the_child_and_counts_nothing(clerk: Clerk, fence: RunFence) -> None:
    by = parent(fence, live=1)
    same = {"idempotency_key": "k", "request_hash": "h"}
    assert codes(send(clerk, by, "a", **same)) == ["ok"]
    clerk.store.release([fence])
    later = parent(fence_of(clerk.start("s1")), live=1)
    [again] = clerk.send(clerk.new("s-a", "b", parent_run_id=P, parent=later, **same))
    assert isinstance(again, Accepted) and again.replayed and again.run.id == "a"
    assert codes(clerk.send(clerk.new("s-a", "b", parent_run_id=P, parent=later))) == ["too_many_live_children"]


def test_a_session_is_opened_once(clerk: Clerk, fence: RunFence) -> None:
    by = parent(fence, in_all=2)
    made, before = clerk.store.open_child_session(session("s-a"), by)
    assert (made.parent_run_id, before) == (P, False)
    assert clerk.store.open_child_session(session("s-a"), by) == (made, True)
    assert clerk.store.session(SessionId("s-a"), None) == made
    clerk.store.open_child_session(session("s-b"), by)
    with pytest.raises(Conflict) as caught:
        clerk.store.open_child_session(session("s-c"), by)
    assert caught.value.code == "too_many_children"
    assert clerk.store.open_child_session(session("s-a"), by)[1], "what is there is no further one"
    for other in (session("s-a", lane=Lane("default", "python")), session("s1")):
        with pytest.raises(Conflict) as caught:
            clerk.store.open_child_session(other, by)
        assert caught.value.code == "idempotency_conflict"
