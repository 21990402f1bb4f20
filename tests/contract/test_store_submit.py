"""What a submit promises: a committed row, its place, its event, its limits, its key; an answer a member."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from oah.adapters.sql.store import open_store
from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.run import OnBusy, ReadyClass, RunClass, RunStatus
from oah.core.model.session import HoldReason
from oah.errors import Conflict, InvalidRequest, LimitReached, NotFound
from oah.ports.store import SubmitLimits
from tests.support.store_clerk import LANE, Clerk, accepted


def test_an_accepted_run_is_a_committed_row(clerk: Clerk) -> None:
    answer = accepted(
        clerk.send(
            clerk.new(
                run_id="r1",
                run_class=RunClass.SUBAGENT,
                timeout=timedelta(seconds=90),
                deadline_at=datetime(2031, 1, 1, tzinfo=UTC),
                max_retries=2,
                parent_run_id=RunId("parent"),
                metadata={"a": [1, {"b": "ü"}]},
            )
        )[0]
    )
    assert (answer.lane, answer.ready_class, answer.due_in, answer.event_number) == (LANE, ReadyClass.SUBAGENT, None, 1)
    other = open_store(clerk.url)
    assert other.run(RunId("r1"), None) == answer.run
    other.close()
    assert answer.run.status is RunStatus.QUEUED
    assert answer.run.metadata == {"a": [1, {"b": "ü"}]}
    assert answer.run.timeout == timedelta(seconds=90)
    assert clerk.events() == ["run.queued"]
    clerk.audit()


def test_members_of_a_batch_follow_each_other(clerk: Clerk) -> None:
    clerk.session("s2")
    answers = [accepted(a) for a in clerk.send(clerk.new("s2"), clerk.new(), clerk.new("s2"), clerk.new())]
    assert [(a.run.session_id, a.run.position, a.event_number) for a in answers] == [
        ("s2", 1, 1),
        ("s1", 1, 1),
        ("s2", 2, 2),
        ("s1", 2, 2),
    ]
    clerk.audit()


@pytest.mark.parametrize("bad", ["nul \0 here", "lone \ud800 surrogate"])
def test_one_members_bad_text_fails_that_member_only(clerk: Clerk, bad: str) -> None:
    good, refused, other = clerk.send(clerk.new(run_id="a"), clerk.new(run_id="b", input=bad), clerk.new(run_id="c"))
    assert isinstance(refused, InvalidRequest)
    assert (accepted(good).run.position, accepted(other).run.position) == (1, 2)
    assert isinstance(clerk.send(clerk.new(metadata={"x": bad}))[0], InvalidRequest)
    assert isinstance(clerk.send(clerk.new(metadata={bad: 1}))[0], InvalidRequest)
    clerk.audit()


def test_what_only_the_database_can_refuse_fails_that_member_only(clerk: Clerk) -> None:
    clerk.submit(run_id="taken")
    answers = clerk.send(clerk.new(run_id="a"), clerk.new(run_id="taken"), clerk.new(run_id="b"))
    assert isinstance(answers[1], Conflict)
    assert [accepted(answers[0]).run.id, accepted(answers[2]).run.id] == ["a", "b"]
    clerk.audit()


def test_a_session_of_another_workspace_is_not_found(clerk: Clerk) -> None:
    clerk.store.create_workspace(WorkspaceId("ws2"), "two", weight=1, max_active_runs=None, max_queued_runs=None)
    answers = clerk.send(clerk.new(workspace_id="ws2"), clerk.new("nowhere"))
    assert [type(answer) for answer in answers] == [NotFound, NotFound]


def test_a_delayed_run_is_deferred_with_its_remaining_time(clerk: Clerk) -> None:
    late, soon, past, none = (
        accepted(answer)
        for answer in clerk.send(
            clerk.new(delay=timedelta(minutes=1)),
            clerk.new(due_at=datetime.now(UTC) + timedelta(hours=1)),
            clerk.new(due_at=datetime(2020, 1, 1, tzinfo=UTC)),
            clerk.new(delay=timedelta(0)),
        )
    )
    assert late.run.deferred and late.due_in is not None
    assert timedelta(seconds=59) < late.due_in <= timedelta(seconds=60)
    assert soon.run.deferred and soon.due_in is not None and timedelta(minutes=59) < soon.due_in
    assert not past.run.deferred and past.due_in is None
    assert not none.run.deferred and none.due_in is None


def test_a_full_session_refuses_exactly_at_its_limit(clerk: Clerk) -> None:
    limits = SubmitLimits(queued_per_session=3)
    answers = clerk.send(*(clerk.new() for _ in range(5)), limits=limits)
    assert [type(answer).__name__ for answer in answers] == ["Accepted"] * 3 + ["LimitReached"] * 2
    refused = answers[4]
    assert isinstance(refused, LimitReached) and refused.code == "queue_full"
    clerk.start()
    assert isinstance(clerk.send(clerk.new(), limits=limits)[0], type(answers[0]))
    assert isinstance(clerk.send(clerk.new(), limits=limits)[0], LimitReached)
    clerk.audit()


def test_a_full_workspace_refuses(clerk: Clerk) -> None:
    clerk.session("s2")
    answers = clerk.send(clerk.new(), clerk.new("s2"), clerk.new(), limits=SubmitLimits(queued_per_workspace=2))
    assert isinstance(answers[2], LimitReached) and answers[2].code == "quota_exceeded"
    clerk.store.update_workspace("default", {"max_queued_runs": 3})
    answers = clerk.send(clerk.new(), clerk.new(), limits=SubmitLimits(queued_per_workspace=1))
    accepted(answers[0])
    assert isinstance(answers[1], LimitReached)
    started = clerk.start()
    accepted(clerk.send(clerk.new())[0])
    clerk.settle(started)
    assert isinstance(clerk.send(clerk.new())[0], LimitReached)
    clerk.audit()


def test_reject_if_busy(clerk: Clerk) -> None:
    accepted(clerk.send(clerk.new(on_busy=OnBusy.REJECT))[0])
    busy = clerk.send(clerk.new(on_busy=OnBusy.REJECT))[0]
    assert isinstance(busy, Conflict) and busy.code == "session_busy"
    started = clerk.start()
    assert isinstance(clerk.send(clerk.new(on_busy=OnBusy.REJECT))[0], Conflict)
    clerk.settle(started)
    both = clerk.send(clerk.new(on_busy=OnBusy.REJECT), clerk.new(on_busy=OnBusy.REJECT))
    accepted(both[0])
    assert isinstance(both[1], Conflict)


def test_the_same_key_with_the_same_body_replays(clerk: Clerk) -> None:
    first = accepted(clerk.send(clerk.new(run_id="a", idempotency_key="k", request_hash="h"))[0])
    again = accepted(clerk.send(clerk.new(run_id="b", idempotency_key="k", request_hash="h"))[0])
    assert again.replayed and not first.replayed
    assert again.run == first.run
    other = clerk.send(clerk.new(run_id="c", idempotency_key="k", request_hash="other"))[0]
    assert isinstance(other, Conflict) and other.code == "idempotency_conflict"
    assert clerk.events() == ["run.queued"]
    clerk.audit()


def test_a_replay_wins_over_a_full_queue_and_shows_the_run_as_it_is(clerk: Clerk) -> None:
    clerk.send(clerk.new(run_id="a", idempotency_key="k", request_hash="h"))
    clerk.settle(clerk.start())
    clerk.submit()
    full = SubmitLimits(queued_per_session=1)
    again = accepted(clerk.send(clerk.new(idempotency_key="k", request_hash="h"), limits=full)[0])
    assert again.run.status is RunStatus.COMPLETED


def test_a_key_is_a_workspaces_own(clerk: Clerk) -> None:
    ws2 = WorkspaceId("ws2")
    clerk.store.create_workspace(ws2, "two", weight=1, max_active_runs=None, max_queued_runs=None)
    clerk.session("s2", workspace=ws2)
    answers = clerk.send(
        clerk.new(idempotency_key="k", request_hash="h"),
        clerk.new("s2", workspace_id=ws2, idempotency_key="k", request_hash="h"),
    )
    assert [accepted(answer).replayed for answer in answers] == [False, False]


def test_a_refused_run_leaves_its_key_free(clerk: Clerk) -> None:
    full = SubmitLimits(queued_per_session=0)
    assert isinstance(clerk.send(clerk.new(idempotency_key="k", request_hash="h"), limits=full)[0], LimitReached)
    assert not accepted(clerk.send(clerk.new(idempotency_key="k", request_hash="h"))[0]).replayed


def test_a_key_twice_in_one_batch(clerk: Clerk) -> None:
    def keyed(request_hash: str) -> object:
        return clerk.new(idempotency_key="k", request_hash=request_hash)

    first, again, other = clerk.send(keyed("h"), keyed("h"), keyed("x"))  # type: ignore[arg-type]
    assert accepted(again).replayed and accepted(again).run.id == accepted(first).run.id
    assert isinstance(other, Conflict) and other.code == "idempotency_conflict"
    clerk.audit()


def test_two_at_once_with_one_key_make_one_run(clerk: Clerk) -> None:
    """Also across sessions in crossing order: one waits for the other, nobody deadlocks."""
    for n in range(8):
        clerk.session(f"t{n}")
    barrier = threading.Barrier(4)

    def submit(who: int) -> list[str]:
        names = [f"t{n}" for n in range(8)]
        if who % 2:
            names.reverse()
        barrier.wait()
        batch = [clerk.new(name, f"{name}-{who}", idempotency_key=name, request_hash="h") for name in names]
        return sorted(accepted(answer).run.id for answer in clerk.send(*batch))

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(submit, range(4)))
    assert all(answer == answers[0] for answer in answers)
    assert sum(len(clerk.events(f"t{n}")) for n in range(8)) == 8
    clerk.audit()


def test_a_closing_session_takes_nothing(clerk: Clerk) -> None:
    clerk.submit()
    clerk.store.close_session(SessionId("s1"), None)
    refused = clerk.send(clerk.new())[0]
    assert isinstance(refused, Conflict) and refused.code == "session_closed"


def test_an_empty_batch_and_impossible_values(clerk: Clerk) -> None:
    assert clerk.send() == []
    assert isinstance(clerk.send(clerk.new(delay=timedelta(seconds=-1)))[0], InvalidRequest)
    assert isinstance(clerk.send(clerk.new(due_at=datetime(2030, 1, 1)))[0], InvalidRequest)
    assert isinstance(clerk.send(clerk.new(metadata={"x": float("nan")}))[0], InvalidRequest)


def test_the_event_of_a_submit_says_how_many_wait_before_it(clerk: Clerk) -> None:
    clerk.submit()
    clerk.send(clerk.new(), clerk.new())
    events = clerk.store.events(SessionId("s1"), after=0, limit=10)
    assert [(e.data["position"], e.data["queued_before"]) for e in events] == [(1, 0), (2, 1), (3, 2)]


def test_the_event_of_a_submit_says_why_the_run_will_wait_as_far_as_it_is_known(clerk: Clerk) -> None:
    clerk.submit()
    clerk.submit()
    clerk.submit(delay=timedelta(hours=1))
    clerk.store.hold_session(SessionId("s1"), None, HoldReason.PAUSED, until_in=None)
    clerk.submit()
    events = [e for e in clerk.store.events(SessionId("s1"), after=0, limit=10) if e.type == "run.queued"]
    codes = [e.data.get("wait_reason", {}).get("code") for e in events]
    assert codes == [None, "behind_run", "delayed", "session_held"]
