"""Requeue of many runs: by id, or by what a job has written down that it found."""

from datetime import UTC, datetime, timedelta

import pytest

from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.run import RecoveryState, RunStatus
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.errors import LeaseError
from oah.ports.jobs import JobFence
from oah.ports.requeue import RequeueFilter, RequeueOutcome
from oah.ports.store import RecoveryAction
from tests.support.store_clerk import Clerk

OTHER = WorkspaceId("other")
LONG = timedelta(minutes=1)
END = "listed"


def fail(clerk: Clerk, run_id: str, session: str = "s1", status: RunStatus = RunStatus.FAILED) -> None:
    clerk.submit(session, run_id)
    clerk.settle(clerk.start(session), status)


def ids(*names: str) -> list[RunId]:
    return [RunId(name) for name in names]


def begin(clerk: Clerk, job_id: str = "job_1") -> JobFence:
    clerk.store.create_job(job_id, "requeue", workspace_id=None, arguments={}, total=0, by="me")
    assert clerk.store.claim_job(job_id, "h", stale_for=LONG)
    return JobFence(job_id, "h")


def test_many_keep_their_order_and_each_has_its_answer(clerk: Clerk) -> None:
    store = clerk.store
    clerk.session("s2")
    clerk.session("s3")
    for run_id, session in (("a", "s1"), ("b", "s1"), ("c", "s2"), ("d", "s3"), ("e", "s1")):
        fail(clerk, run_id, session, RunStatus.COMPLETED if run_id == "e" else RunStatus.FAILED)
    store.close_session(SessionId("s3"), None)
    clerk.submit("s2", "waits")
    wanted = ids("b", "waits", "e", "nobody", "d", "a", "c", "a")
    planned = store.requeue_runs(wanted, None, by="me", dry_run=True)
    assert clerk.run("a").status is RunStatus.FAILED
    done = store.requeue_runs(wanted, None, by="me", reason="the host was down")
    expected = ["requeued", "invalid_status", "requeued", "not_found", "session_closed", "requeued", "requeued"]
    assert [each.outcome for each in done] == [each.outcome for each in planned] == expected
    assert [each.run_id for each in done] == ids("b", "waits", "e", "nobody", "d", "a", "c")
    assert [run.id for run in store.queue_of(SessionId("s1"), limit=9)] == ["a", "b", "e"], "as they were before"
    for each in done:
        if each.accepted is not None:
            run = clerk.run(each.run_id)
            assert (each.accepted.run.position, each.accepted.run.status) == (run.position, run.status)
            assert each.accepted.event_number <= store.session(run.session_id, None).event_seq
            step = store.steps(run.id)[-1]
            assert step.name == "run.requeued" and step.data["reason"] == "the host was down"
    rows = clerk.behind.query("SELECT actor, subject FROM audit WHERE action = 'run.requeued' ORDER BY subject")
    assert [tuple(row) for row in rows] == [("me", run_id) for run_id in ("a", "b", "c", "e")]
    assert clerk.events("s2")[-1] == "run.queued"
    clerk.audit()
    assert clerk.start("s1").run.id == "a"


def test_a_foreign_run_is_not_found(clerk: Clerk) -> None:
    fail(clerk, "a")
    [each] = clerk.store.requeue_runs(ids("a"), OTHER, by="me")
    assert each.outcome is RequeueOutcome.NOT_FOUND and clerk.run("a").status is RunStatus.FAILED
    assert clerk.store.requeue_runs([], None, by="me") == []


def test_what_would_end_it_again_at_once_is_lifted(clerk: Clerk) -> None:
    clerk.submit(run_id="a", start_timeout=timedelta(hours=1), deadline_at=datetime.now(UTC) + timedelta(hours=1))
    clerk.submit(run_id="b", deadline_at=datetime.now(UTC) + timedelta(hours=1))
    for _ in range(2):
        clerk.settle(clerk.start(), RunStatus.FAILED)
    at = "1000000" if clerk.url.startswith("sqlite") else "timestamptz 'epoch'"
    clerk.behind.query(f"UPDATE runs SET deadline_at = {at} WHERE id = 'a'")
    clerk.store.requeue_runs(ids("a", "b"), None, by="me")
    assert (clerk.run("a").deadline_at, clerk.run("a").start_by) == (None, None)
    assert clerk.run("b").deadline_at is not None


def test_a_job_lists_pages_then_requeues_chunks_each_once(clerk: Clerk) -> None:
    store = clerk.store
    clerk.session("s2")
    for number in range(7):
        fail(clerk, f"r{number}", f"s{1 + number % 2}")
    fail(clerk, "kept", status=RunStatus.CANCELLED)
    fence = begin(clerk)
    fail(clerk, "later")
    where = RequeueFilter(status=(RunStatus.FAILED,))
    pages = 0
    while store.job("job_1", None).cursor != END:
        store.list_requeue(fence, where, last=END, limit=3)
        pages += 1
    assert pages == 3 and store.job("job_1", None).total == 7
    assert [item.subject for item in store.job_items("job_1")] == ["r0", "r2", "r4", "r6", "r1", "r3", "r5"]
    first = store.requeue_items(fence, None, by="me", reason=None, limit=3)
    assert first is not None and [each.run.id for each in first] == ["r0", "r2", "r4"]
    again = store.claim_job("job_1", "h2", stale_for=timedelta(0))
    assert again is not None and (again.done, again.failed) == (3, 0)
    with pytest.raises(LeaseError):
        store.requeue_items(fence, None, by="me", reason=None, limit=3)
    assert clerk.run("r6").status is RunStatus.FAILED, "the chunk of who had lost the job was undone"
    clerk.settle(clerk.start(), RunStatus.FAILED)  # r0 fails once more: it is not taken twice
    second = JobFence("job_1", "h2")
    while store.requeue_items(second, None, by="me", reason=None, limit=3) is not None:
        pass
    job = store.job("job_1", None)
    assert (job.total, job.done, job.failed) == (7, 7, 0)
    assert store.job_outcomes("job_1") == {"requeued": 7}
    assert {clerk.run(name).status for name in ("kept", "later", "r0")} == {RunStatus.CANCELLED, RunStatus.FAILED}
    steps = clerk.behind.query("SELECT run_id, count(*) FROM run_steps WHERE name = 'run.requeued' GROUP BY run_id")
    assert {row[1] for row in steps} == {1} and len(steps) == 7
    data = store.steps(RunId("r5"))[-1].data
    assert data["job_id"] == "job_1" and data["requeued_by"] == "me"
    clerk.audit()


def test_a_job_by_ids_tells_what_became_of_each(clerk: Clerk) -> None:
    store = clerk.store
    fail(clerk, "a")
    fail(clerk, "b")
    clerk.submit(run_id="c")
    fence = begin(clerk)
    store.list_requeue_of(fence, ids("ghost", "c", "b", "a", "a"), None, last=END)
    store.requeue_items(fence, None, by="me", reason="why", limit=10)
    assert store.requeue_items(fence, None, by="me", reason="why", limit=10) is None
    items = {item.subject: item.outcome for item in store.job_items("job_1")}
    assert items == {"a": "requeued", "b": "requeued", "c": "invalid_status", "ghost": "not_found"}
    job = store.job("job_1", None)
    assert (job.total, job.done, job.failed, job.cursor) == (4, 2, 2, END)
    assert [run.id for run in store.queue_of(SessionId("s1"), limit=9)] == ["c", "a", "b"]


def test_filters_say_which(clerk: Clerk) -> None:
    store = clerk.store
    clerk.session("s2")
    fail(clerk, "failed")
    fail(clerk, "late", "s2", RunStatus.TIMED_OUT)
    fail(clerk, "gone", "s2", RunStatus.CANCELLED)
    clerk.submit(run_id="bad")
    clerk.start()
    clerk.recover(clerk.owner(), RecoveryAction.QUARANTINE)
    hour = timedelta(hours=1)
    now = datetime.now(UTC)

    def found(**where: object) -> list[str]:
        counted = store.count_requeue(RequeueFilter(**where))  # type: ignore[arg-type]
        assert counted.total == len(counted.sample)
        return sorted(run.id for run in counted.sample)

    assert found() == ["bad", "failed", "late"]
    assert found(status=(RunStatus.CANCELLED, RunStatus.QUEUED)) == ["gone"]
    assert found(recovery_state=RecoveryState.QUARANTINED) == ["bad"]
    assert found(error_code="agent_failed") == ["failed"]
    assert found(session_id=SessionId("s2")) == ["late"]
    assert found(workspace_id=OTHER) == [] and len(found(workspace_id=DEFAULT_WORKSPACE)) == 3
    assert found(agent="shell") == ["bad", "failed", "late"] and found(agent="python") == []
    assert found(since=now + hour) == [] and len(found(since=now - hour)) == 3
    assert found(until=now - hour) == [] and len(found(until=now + hour)) == 3
    assert found(created_after=now + hour) == []
    assert store.count_requeue(RequeueFilter(), sample=1).total == 3


def test_a_letter_of_each_is_redriven(clerk: Clerk) -> None:
    for run_id in ("a", "b"):
        clerk.submit(run_id=run_id)
        clerk.start()
        clerk.recover(clerk.owner(), RecoveryAction.QUARANTINE)
    clerk.store.requeue_runs(ids("b", "a"), None, by="me")
    assert {row[0] for row in clerk.behind.query("SELECT state FROM dead_letters")} == {"redriven"}
    assert clerk.events().count("dead_letter.redriven") == 2
    rows = clerk.behind.query("SELECT count(*) FROM audit WHERE action = 'dead_letter.redriven'")
    assert rows[0][0] == 2
    clerk.audit()
