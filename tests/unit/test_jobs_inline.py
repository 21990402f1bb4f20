"""Maintenance jobs without a server: the queue in memory, the handler of jobs, figures for the leader."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oah.adapters.inprocess.jobs import InlineJobQueue
from oah.errors import Broken, InvalidRequest, LeaseError, Unavailable
from oah.ports.jobs import Job, JobFence, JobFigures, JobState
from oah.services.jobs import AGAIN, MeasureJobs, RunJob
from tests.support.clock import StillClock

LONG = timedelta(minutes=1)


class Ids:
    def nonce(self) -> str:
        return "n" * 32


class OneJob:
    """A store with one job."""

    def __init__(self, **more: Any) -> None:
        fields = {"id": "j", "workspace_id": None, "kind": "k", "state": JobState.QUEUED, "created_by": "me"}
        self.row = Job(**{**fields, "created_at": datetime.now(UTC), **more})
        self.ended: list[tuple[JobState, str | None]] = []
        self.released = 0

    def claim_job(self, job_id: str, holder: str, *, stale_for: timedelta) -> Job | None:
        self.row = self._with(holder=holder, state=JobState.RUNNING)
        return self.row

    def job(self, job_id: str, workspace_id: object) -> Job:
        return self.row

    def finish_job(self, fence: JobFence, state: JobState, *, result: object = None, error: str | None = None) -> bool:
        self.ended.append((state, error))
        return True

    def release_job(self, fence: JobFence) -> None:
        self.released += 1

    def _with(self, **changes: Any) -> Job:
        return Job(**{name: changes.get(name, getattr(self.row, name)) for name in Job.__slots__})


def run(store: OneJob, work: Callable[[Job, JobFence], bool], **more: Any) -> timedelta | None:
    clock = more.pop("clock", StillClock())
    return RunJob(store, {"k": work}, clock, Ids(), "me", LONG, **more)("j")  # type: ignore[arg-type]


def test_chunks_until_nothing_is_left() -> None:
    store, left = OneJob(), [False, False, True]
    assert run(store, lambda job, fence: left.pop(0)) is None
    assert store.ended == [(JobState.COMPLETED, None)]


def test_a_turn_is_given_back_after_a_while_and_when_the_process_stops() -> None:
    store, clock = OneJob(), StillClock()

    def slow(job: Job, fence: JobFence) -> bool:
        clock.seconds += 3
        return False

    assert run(store, slow, clock=clock) == AGAIN
    assert (store.ended, store.released) == ([], 1)
    assert run(store, lambda job, fence: False, going_on=lambda: False) == AGAIN


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (InvalidRequest("no", code="bad"), [(JobState.FAILED, "bad: no")]),
        (Broken("bug"), [(JobState.FAILED, "broken: bug")]),
        (ZeroDivisionError("x"), [(JobState.FAILED, "ZeroDivisionError: x")]),
        (LeaseError("lost", code="job_lost"), []),
    ],
)
def test_an_error_ends_it_unless_the_job_was_lost(error: Exception, ended: list) -> None:
    store = OneJob()

    def work(job: Job, fence: JobFence) -> bool:
        raise error

    assert run(store, work) is None
    assert (store.ended, store.released) == (ended, 0)


def test_an_absence_is_retried_by_who_called() -> None:
    store = OneJob()

    def work(job: Job, fence: JobFence) -> bool:
        raise Unavailable("away")

    with pytest.raises(Unavailable):
        run(store, work)
    assert (store.ended, store.released) == ([], 1)


def test_a_cancel_is_heeded_between_chunks_and_an_unknown_kind_fails() -> None:
    store = OneJob(cancel_requested_at=datetime.now(UTC))
    assert run(store, lambda job, fence: False) is None and store.ended == [(JobState.CANCELLED, None)]
    other = OneJob(kind="of a later release")
    assert run(other, lambda job, fence: True) is None and other.ended[0][0] is JobState.FAILED


def test_repeats_are_one_and_the_earliest_time_counts() -> None:
    clock = StillClock()
    queue = InlineJobQueue(clock)
    seen: list[str] = []
    wakes: list[int] = []
    queue.on_work = lambda: wakes.append(1)

    def handler(subject: str) -> timedelta | None:
        seen.append(subject)
        return timedelta(seconds=30) if subject == "again" else None

    queue.enqueue("t", "late", delay=timedelta(seconds=10))
    queue.enqueue("t", "again")
    queue.enqueue("t", "again")
    assert queue.perform({"t": handler}, lambda: True) == timedelta(seconds=10)
    assert (seen, len(wakes)) == (["again"], 4)
    queue.enqueue("t", "late")
    queue.perform({"t": handler}, lambda: True)
    clock.seconds += 30
    queue.perform({"t": handler}, lambda: True)
    assert seen == ["again", "late", "again"]


def test_a_handler_that_fails_is_called_again_and_harms_no_other() -> None:
    clock = StillClock()
    queue = InlineJobQueue(clock)
    seen: list[str] = []

    def handler(subject: str) -> None:
        seen.append(subject)
        if subject != "good":
            raise {"away": Unavailable("away"), "bug": KeyError("bug")}[subject]

    for subject in ("away", "bug", "good"):
        queue.enqueue("t", subject)
    queue.perform({"t": handler}, lambda: True)
    clock.seconds += 60
    queue.perform({"t": handler}, lambda: True)
    assert seen == ["away", "bug", "good", "away", "bug"]


def test_the_leader_counts_what_ended_while_it_leads() -> None:
    class Figures:
        def __init__(self) -> None:
            self.since: list[datetime | None] = []

        def job_figures(self, *, since: datetime | None) -> JobFigures:
            self.since.append(since)
            ended = {} if since is None else {("requeue", JobState.COMPLETED): 2}
            return JobFigures(queued=1, running=3, ended=ended, until=datetime(2026, 1, len(self.since), tzinfo=UTC))

    class Told:
        def __init__(self) -> None:
            self.told: list[tuple] = []

        def gauge(self, name: str, value: float) -> None:
            self.told.append((name, value))

        def count(self, name: str, value: float, **labels: str) -> None:
            self.told.append((name, value, labels))

        def forget(self, name: str) -> None:
            self.told.append((name,))

    store, telemetry = Figures(), Told()
    measure = MeasureJobs(store, telemetry)  # type: ignore[arg-type]
    measure()
    measure()
    assert store.since == [None, datetime(2026, 1, 1, tzinfo=UTC)]
    counted = ("oah_jobs_total", 2, {"kind": "requeue", "outcome": "completed"})
    assert telemetry.told == [("oah_jobs_queued", 1), ("oah_jobs_running", 3)] * 2 + [counted]
    measure.clear()
    measure()
    assert store.since[-1] is None
