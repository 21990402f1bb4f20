"""Rates of submits per workspace, on every database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from oah.core.model.ids import WorkspaceId
from oah.core.model.run import OnBusy
from oah.errors import LimitReached, RequestError
from oah.ports.store import Accepted
from tests.support.store_clerk import Clerk

WS = WorkspaceId("ws_rate")


def limited(clerk: Clerk, *, per_minute: int = 1, burst: int = 3) -> None:
    clerk.store.create_workspace(
        WS, "limited", weight=1, max_active_runs=None, max_queued_runs=None, runs_per_minute=per_minute,
        runs_burst=burst,
    )  # fmt: skip
    for name in ("a", "b", "c", "d"):
        clerk.session(name, workspace=WS)


def send(clerk: Clerk, *sessions: str, **more: Any) -> list[Accepted | RequestError]:
    return clerk.send(*(clerk.new(session, workspace_id=WS, **more) for session in sessions))


def accepted(answers: list[Accepted | RequestError]) -> list[bool]:
    return [isinstance(answer, Accepted) for answer in answers]


def test_beyond_the_burst_each_member_is_told_when_to_come_again(clerk: Clerk) -> None:
    limited(clerk)
    assert accepted(send(clerk, "a", "b")) == [True, True]
    answers = send(clerk, "a", "a", "b")
    assert accepted(answers) == [True, False, False]
    refused = answers[1]
    assert isinstance(refused, LimitReached) and refused.code == "rate_limited"
    assert refused.retry_after is not None
    assert timedelta(seconds=50) < refused.retry_after <= timedelta(minutes=1)
    clerk.audit()


def test_other_workspaces_and_other_refusals_count_nothing(clerk: Clerk) -> None:
    limited(clerk, burst=1)
    assert accepted(clerk.send(*(clerk.new() for _ in range(5)))) == [True] * 5
    clerk.store.close_session(clerk.session("closed", workspace=WS), None, cancelling=False)
    assert accepted(send(clerk, "closed")) == [False]
    assert accepted(send(clerk, "a")) == [True]
    assert accepted(send(clerk, "b")) == [False]


def test_a_replay_counts_no_second_time(clerk: Clerk) -> None:
    limited(clerk, burst=2)
    for _ in range(5):
        [answer] = send(clerk, "a", idempotency_key="k", request_hash="h")
        assert isinstance(answer, Accepted)
    assert accepted(send(clerk, "b")) == [True]
    assert accepted(send(clerk, "b")) == [False]


def test_a_refused_key_can_be_used_again(clerk: Clerk) -> None:
    limited(clerk, burst=1)
    assert accepted(send(clerk, "a")) == [True]
    assert accepted(send(clerk, "a", idempotency_key="k", request_hash="h")) == [False]
    clerk.store.update_workspace(WS, {"runs_burst": 2})
    assert accepted(send(clerk, "a", idempotency_key="k", request_hash="h")) == [True]


def test_a_text_for_a_live_run_is_no_run(clerk: Clerk) -> None:
    limited(clerk, burst=1)
    assert accepted(send(clerk, "a")) == [True]
    clerk.start("a")
    for _ in range(3):
        assert accepted(send(clerk, "a", on_busy=OnBusy.STEER)) == [True]


def test_a_rate_that_is_lifted_or_raised_counts_at_once(clerk: Clerk) -> None:
    limited(clerk, burst=1)
    assert accepted(send(clerk, "a", "a")) == [True, False]
    clerk.store.update_workspace(WS, {"runs_per_minute": None})
    assert accepted(send(clerk, "a", "b", "c")) == [True] * 3
    clerk.store.update_workspace(WS, {"runs_per_minute": 600, "runs_burst": None})
    assert accepted(send(clerk, *["a"] * 50)) == [True] * 50


def test_many_at_once_get_the_burst_and_no_more(clerk: Clerk) -> None:
    """Whatever the sessions, whoever was first: one number under one lock."""
    limited(clerk, burst=20)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda name: [accepted(send(clerk, name, name)) for _ in range(8)], "abcd"))
    assert sum(sum(pair) for each in answers for pair in each) == 20
    clerk.audit()
