"""What a program calls its conversation and where its files are: recorded with the attempt, behind its fence."""

from __future__ import annotations

from datetime import timedelta

from oah.core.model.home import HomeMode, SessionHome
from oah.core.model.run import Outcome, RunError, RunStatus
from oah.ports.conversations import OpenedAgent
from oah.ports.store import RetryPlan, Settlement, Store
from tests.support.store_clerk import Clerk, fence_of

HOME = SessionHome(mode=HomeMode.LOCAL, host="h1", place="p1", cwd="/w")
MOVED = SessionHome(
    mode=HomeMode.ARCHIVED, host="h2", place="p2", cwd="/w", archive="homes/s1/000001-x.tar", generation=1
)


def test_what_a_run_learned_is_the_sessions_with_its_settle(store: Store, clerk: Clerk) -> None:
    clerk.submit()
    begun = clerk.start()
    assert (begun.session.session_ref, begun.session.home) == (None, None)
    outcome = Outcome(
        RunStatus.COMPLETED,
        "done",
        agent="fresh",
        agent_reason="first",
        session_ref="abc",
        home_mode="local",
        home=HOME,
    )
    assert store.settle([Settlement(fence_of(begun), outcome)])[0].applied
    session = store.session(begun.session.id, None)
    assert (session.session_ref, session.home) == ("abc", HOME)
    [attempt] = store.attempts(begun.run.id)
    assert (attempt.agent, attempt.agent_reason, attempt.home) == ("fresh", "first", "local")


def test_what_is_unchanged_stays_and_what_changed_is_known_to_the_next_start(store: Store, clerk: Clerk) -> None:
    for _ in range(3):
        clerk.submit()
    store.settle([Settlement(fence_of(clerk.start()), Outcome(RunStatus.COMPLETED, session_ref="abc", home=HOME))])
    second = clerk.start()
    assert (second.session.session_ref, second.session.home) == ("abc", HOME)
    clerk.settle(second)
    assert store.session(second.session.id, None).session_ref == "abc"
    third = clerk.start()
    store.settle([Settlement(fence_of(third), Outcome(RunStatus.COMPLETED, session_ref="def", home=MOVED))])
    session = store.session(third.session.id, None)
    assert (session.session_ref, session.home) == ("def", MOVED)


def test_a_refused_settle_changes_no_session(store: Store, clerk: Clerk) -> None:
    clerk.submit()
    begun = clerk.start()
    clerk.settle(begun)
    late = Settlement(fence_of(begun), Outcome(RunStatus.COMPLETED, session_ref="late", home=HOME))
    assert not store.settle([late])[0].applied
    session = store.session(begun.session.id, None)
    assert (session.session_ref, session.home) == (None, None)


def test_an_attempt_that_is_retried_leaves_its_conversation_behind(store: Store, clerk: Clerk) -> None:
    clerk.submit()
    begun = clerk.start()
    outcome = Outcome(
        RunStatus.FAILED,
        error=RunError("x", "y"),
        agent_reason="first",
        session_ref="abc",
        home_mode="local",
        home=HOME,
    )
    plan = RetryPlan(timedelta(0), 3)
    after = store.settle([Settlement(fence_of(begun), outcome, retry=plan)])[0]
    assert (after.applied, after.status) == (True, RunStatus.QUEUED)
    session = store.session(begun.session.id, None)
    assert (session.session_ref, session.home) == ("abc", HOME)
    [attempt] = store.attempts(begun.run.id)
    assert (attempt.agent_reason, attempt.home) == ("first", "local")


def test_an_opened_agent_is_known_before_its_turn_and_to_whoever_recovers(store: Store, clerk: Clerk) -> None:
    clerk.submit()
    begun = clerk.start()
    assert store.opened(fence_of(begun), OpenedAgent(agent="fresh", reason="first", session_ref="abc", home=HOME))
    [attempt] = store.attempts(begun.run.id)
    assert (attempt.agent, attempt.agent_reason, attempt.home) == ("fresh", "first", "local")
    told = [each for each in store.events(begun.session.id, after=0, limit=10) if each.type == "run.agent"]
    assert [dict(each.data) for each in told] == [
        {"agent": "fresh", "reason": "first", "session_ref": "abc", "home": {"mode": "local", "host": "h1"}}
    ]
    clerk.recover(clerk.owner())
    again = clerk.start()
    assert (again.session.session_ref, again.session.home) == ("abc", HOME)
    [first, _] = store.attempts(begun.run.id)
    assert (first.agent, first.agent_reason, first.home, first.outcome) == ("fresh", "first", "local", "worker_lost")


def test_a_conversation_that_is_given_up_has_no_name_until_the_new_one_is_known(store: Store, clerk: Clerk) -> None:
    for _ in range(2):
        clerk.submit()
    store.settle([Settlement(fence_of(clerk.start()), Outcome(RunStatus.COMPLETED, session_ref="abc", home=HOME))])
    second = clerk.start()
    assert store.opened(fence_of(second), OpenedAgent(agent="fresh", reason="home_lost", before="abc", home=MOVED))
    session = store.session(second.session.id, None)
    assert (session.session_ref, session.home) == (None, MOVED)
    assert store.opened(fence_of(second), OpenedAgent(agent="resumed", session_ref=None))
    assert store.session(second.session.id, None).home == MOVED


def test_an_opening_behind_a_stale_fence_is_refused(store: Store, clerk: Clerk) -> None:
    clerk.submit()
    begun = clerk.start()
    clerk.recover(clerk.owner())
    assert not store.opened(fence_of(begun), OpenedAgent(agent="fresh", reason="first", session_ref="abc", home=HOME))
    session = store.session(begun.session.id, None)
    assert (session.session_ref, session.home) == (None, None)
    assert not [each for each in store.events(begun.session.id, after=0, limit=10) if each.type == "run.agent"]
