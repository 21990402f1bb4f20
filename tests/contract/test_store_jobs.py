"""Rows of maintenance jobs: one holder at a time, progress in the transaction of the work."""

from datetime import timedelta

import pytest

from oah.adapters.sql.jobs import advance
from oah.core.model.ids import WorkspaceId
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.errors import LeaseError, NotFound
from oah.ports.jobs import JobFence, JobItem, JobState
from oah.ports.store import Store
from tests.support.store_clerk import Clerk

LONG = timedelta(minutes=1)
NOW = timedelta(0)


def make(store: Store, job_id: str = "job_1", workspace: WorkspaceId | None = DEFAULT_WORKSPACE, kind: str = "k"):
    return store.create_job(job_id, kind, workspace_id=workspace, arguments={"a": [1]}, total=3, by="me")


def test_a_job_is_taken_by_one_and_taken_over_from_the_silent_only(store: Store) -> None:
    made = make(store)
    assert (made.state, made.total, made.arguments, made.created_by) == (JobState.QUEUED, 3, {"a": [1]}, "me")
    first = store.claim_job("job_1", "h1", stale_for=LONG)
    assert first is not None and (first.state, first.holder, first.attempt) == (JobState.RUNNING, "h1", 1)
    assert store.claim_job("job_1", "h2", stale_for=LONG) is None
    second = store.claim_job("job_1", "h2", stale_for=NOW)
    assert second is not None and (second.holder, second.attempt) == ("h2", 2)
    assert second.started_at == first.started_at
    assert not store.touch_job(JobFence("job_1", "h1"))
    assert not store.finish_job(JobFence("job_1", "h1"), JobState.COMPLETED)
    store.release_job(JobFence("job_1", "h2"))
    third = store.claim_job("job_1", "h3", stale_for=LONG)
    assert third is not None and third.attempt == 2, "who goes on where a turn ended is no further attempt"
    assert store.finish_job(JobFence("job_1", "h3"), JobState.COMPLETED, result={"n": 1})
    over = store.job("job_1", None)
    assert (over.state, over.result, over.holder) == (JobState.COMPLETED, {"n": 1}, None) and over.ended_at
    assert store.claim_job("job_1", "h4", stale_for=NOW) is None


def test_progress_counts_only_for_who_holds_it(store: Store) -> None:
    make(store)
    store.claim_job("job_1", "h1", stale_for=LONG)
    database = store._database  # type: ignore[attr-defined]
    with database.write() as connection:
        items = [JobItem(1, "r1", "requeued"), JobItem(2, "r2", "not_found", "no run r2")]
        advance(connection, JobFence("job_1", "h1"), done=1, failed=1, cursor="r2", items=items)
    with pytest.raises(LeaseError) as lost, database.write() as connection:
        advance(connection, JobFence("job_1", "h0"), done=1, items=[JobItem(3, "r3", "requeued")])
    assert lost.value.code == "job_lost"
    job = store.job("job_1", None)
    assert (job.done, job.failed, job.cursor) == (1, 1, "r2")
    assert store.job_items("job_1") == items and store.job_items("job_1", after=1) == items[1:]


def test_a_cancel_ends_a_waiting_job_and_marks_a_held_one(store: Store) -> None:
    make(store)
    assert store.cancel_job("job_1", None, by="me").state is JobState.CANCELLED
    make(store, "job_2")
    store.claim_job("job_2", "h", stale_for=LONG)
    marked = store.cancel_job("job_2", None, by="me")
    assert marked.state is JobState.RUNNING and marked.cancel_requested_at is not None
    assert store.finish_job(JobFence("job_2", "h"), JobState.CANCELLED)
    assert store.cancel_job("job_2", None, by="me").ended_at == store.job("job_2", None).ended_at


def test_what_nobody_is_seen_to_hold_waits(store: Store) -> None:
    for number in range(3):
        make(store, f"job_{number}")
    assert store.waiting_jobs(stale_for=LONG, limit=10) == []
    store.claim_job("job_1", "h", stale_for=LONG)
    store.finish_job(JobFence("job_1", "h"), JobState.FAILED, error="x")
    assert store.waiting_jobs(stale_for=NOW, limit=10) == ["job_0", "job_2"]
    assert store.waiting_jobs(stale_for=NOW, limit=1) == ["job_0"]


def test_jobs_are_listed_newest_first_and_by_workspace(store: Store) -> None:
    make(store, "job_1", kind="requeue")
    make(store, "job_2", workspace=None)
    make(store, "job_3")
    page = store.jobs(None, limit=2)
    assert [job.id for job in page.items] == ["job_3", "job_2"] and page.next_cursor
    assert [job.id for job in store.jobs(None, cursor=page.next_cursor).items] == ["job_1"]
    assert [job.id for job in store.jobs(DEFAULT_WORKSPACE, kind="requeue").items] == ["job_1"]
    assert store.jobs(None, state=JobState.RUNNING).items == ()
    with pytest.raises(NotFound):
        store.job("job_2", DEFAULT_WORKSPACE)
    with pytest.raises(NotFound):
        store.cancel_job("job_2", DEFAULT_WORKSPACE, by="me")


def test_figures_are_of_open_jobs_and_of_those_that_ended_in_a_stretch_of_time(clerk: Clerk) -> None:
    store = clerk.store
    for number in range(4):
        make(store, f"job_{number}", kind="requeue" if number else "purge")
    for job_id, state in (("job_0", JobState.FAILED), ("job_1", JobState.COMPLETED)):
        store.claim_job(job_id, "h", stale_for=LONG)
        store.finish_job(JobFence(job_id, "h"), state)
    store.claim_job("job_2", "h", stale_for=LONG)
    first = store.job_figures(since=None)
    assert (first.queued, first.running, dict(first.ended)) == (1, 1, {})
    assert store.job_figures(since=first.until).ended == {}, "their ends are younger than a commit may be late"
    earlier = "ended_at - 4000000" if clerk.url.startswith("sqlite") else "ended_at - interval '4 seconds'"
    clerk.behind.query(f"UPDATE jobs SET ended_at = {earlier} WHERE ended_at IS NOT NULL")
    again = store.job_figures(since=first.until - LONG)
    assert again.ended == {("purge", JobState.FAILED): 1, ("requeue", JobState.COMPLETED): 1}
    assert store.job_figures(since=again.until).ended == {}
