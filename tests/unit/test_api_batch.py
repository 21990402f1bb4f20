"""Group commit of submits: leader and followers, no timers."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from oah.api.batch import SubmitBatches
from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass, Run, RunClass, RunStatus
from oah.errors import Conflict, RequestError, Unavailable
from oah.ports.store import Accepted, NewRun
from oah.ports.telemetry import NullTelemetry
from oah.services.submit import commit
from tests.support import eventually

WORKSPACE = WorkspaceId("default")


def new(name: str, session: str = "ses_1") -> NewRun:
    return NewRun(id=RunId(name), workspace_id=WORKSPACE, session_id=SessionId(session), input="x")


def accept(run: NewRun) -> Accepted:
    now = datetime.now(UTC)
    row = Run(
        id=run.id,
        session_id=run.session_id,
        workspace_id=WORKSPACE,
        position=1,
        run_class=RunClass.INTERACTIVE,
        status=RunStatus.QUEUED,
        input=run.input,
        created_at=now,
        queued_at=now,
    )
    return Accepted(row, Lane("default", "shell"), ReadyClass.INTERACTIVE, None, 1)


class Gate:
    """A commit that waits at a gate and notes what each transaction held."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.transactions: list[list[str]] = []

    def __call__(self, runs):
        self.transactions.append([run.id for run in runs])
        self.entered.release()
        assert self.open.wait(60)
        return [RequestError("bad") if run.id.startswith("bad") else accept(run) for run in runs]


def batches(gate, heard=None, most=256) -> SubmitBatches:
    return SubmitBatches(
        gate, committed=(heard if heard is not None else []).extend, telemetry=NullTelemetry(), most=most
    )


def waiting(these: SubmitBatches) -> int:
    return these.waiting


def test_a_lone_caller_commits_at_once():
    gate = Gate()
    gate.open.set()
    [answer] = batches(gate).submit([new("a")])
    assert isinstance(answer, Accepted)
    assert answer.run.id == "a"
    assert gate.transactions == [["a"]]


def test_who_comes_during_a_commit_shares_the_next_one():
    gate, heard = Gate(), []
    these = batches(gate, heard)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(these.submit, [new("a")])
        assert gate.entered.acquire(timeout=10)
        others = [pool.submit(these.submit, [new(f"b{index}")]) for index in range(6)]
        eventually(lambda: waiting(these) == 6)
        gate.open.set()
        assert first.result(60)[0].run.id == "a"
        assert [other.result(60)[0].run.id for other in others] == [f"b{index}" for index in range(6)]
    assert len(gate.transactions) == 2
    assert sorted(gate.transactions[1]) == [f"b{index}" for index in range(6)]
    assert len(heard) == 7


def test_the_lead_is_handed_on_so_that_nobody_serves_the_others_for_ever():
    gate = Gate()
    these = batches(gate, most=2)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(these.submit, [new("a")])
        assert gate.entered.acquire(timeout=10)
        others = [pool.submit(these.submit, [new(f"b{index}")]) for index in range(5)]
        eventually(lambda: waiting(these) == 5)
        gate.open.set()
        first.result(60)
        for other in others:
            other.result(60)
    assert [len(transaction) for transaction in gate.transactions] == [1, 2, 2, 1]
    assert not these.busy


def test_one_members_fault_is_its_own():
    gate, heard = Gate(), []
    gate.open.set()
    answers = batches(gate, heard).submit([new("a"), new("bad"), new("c")])
    assert [isinstance(answer, RequestError) for answer in answers] == [False, True, False]
    assert [one.run.id for one in heard] == ["a", "c"]


def test_a_store_that_is_away_fails_every_member_and_the_next_caller_tries_again():
    calls = []

    def away(runs):
        calls.append(len(runs))
        raise Unavailable("no database")

    these = batches(away)
    for _ in range(2):
        with pytest.raises(Unavailable):
            these.submit([new("a")])
    assert calls == [1, 1]


def test_members_are_sorted_by_session_and_answers_come_in_the_order_asked():
    seen = []

    class Store:
        def submit(self, runs, *, limits):
            seen.extend(run.session_id for run in runs)
            return [Conflict("busy") if run.session_id == "ses_1" else accept(run) for run in runs]

    answers = commit(Store(), [new("a", "ses_2"), new("b", "ses_1"), new("c", "ses_2")], limits=None)
    assert seen == ["ses_1", "ses_2", "ses_2"]
    assert isinstance(answers[1], Conflict)
    assert [answers[0].run.id, answers[2].run.id] == ["a", "c"]
