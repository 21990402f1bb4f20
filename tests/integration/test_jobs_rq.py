"""Maintenance tasks over rq, on real servers."""

import signal
from collections.abc import Iterator
from datetime import timedelta

import pytest
from rq import Queue, Worker

from oah.adapters.redis.connect import open_client
from oah.adapters.rq.queue import QUEUE, RqJobQueue, id_of
from oah.adapters.rq.worker import LOCK_SECONDS, Scheduler, TaskWorker
from oah.errors import Unavailable
from oah.ports.broker import BrokerOptions
from oah.ports.jobs import Handlers
from tests.support.servers_redis import RealServer
from tests.support.waiting import eventually


@pytest.fixture
def tasks(real_server: RealServer) -> RqJobQueue:
    return RqJobQueue(open_client(real_server.url, options=BrokerOptions()))


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """rq's worker takes them and does not give them back."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def perform(tasks: RqJobQueue, handlers: Handlers) -> None:
    """Everything that waits now."""
    TaskWorker(tasks, handlers, name="w").work(burst=True, logging_level=None)


def test_repeats_that_wait_are_one_and_what_is_over_may_be_told_again(tasks: RqJobQueue) -> None:
    seen: list[str] = []

    def handler(subject: str) -> None:
        seen.append(subject)

    for _ in range(3):
        tasks.enqueue("job", "job_1")
        tasks.enqueue("job", "job_2")
    plain = Queue(QUEUE, connection=tasks.queue.connection)
    assert plain.job_ids == ["job-job_1", "job-job_2"], "as `rq info` sees it"
    perform(tasks, {"job": handler})
    tasks.enqueue("job", "job_1")
    perform(tasks, {"job": handler})
    assert seen == ["job_1", "job_2", "job_1"]
    assert tasks.queue.connection.keys("rq:job:*") == [], "what is done leaves nothing"


def test_a_failed_task_is_retried_then_kept_among_the_failed_and_may_be_told_again(tasks: RqJobQueue) -> None:
    def broken(subject: str) -> None:
        raise ValueError(subject)

    tasks.enqueue("job", "job_1")
    perform(tasks, {"job": broken})
    assert tasks.queue.scheduled_job_registry.get_job_ids() == ["job-job_1"]
    tasks.enqueue("job", "job_1")
    assert tasks.queue.job_ids == [], "it waits already, for its retry"
    for _ in range(3):
        tasks.queue.connection.zadd(tasks.queue.scheduled_job_registry.key, {"job-job_1": 1})
        due(tasks)
        perform(tasks, {"job": broken})
    assert tasks.queue.failed_job_registry.get_job_ids() == ["job-job_1"]
    seen: list[str] = []
    tasks.enqueue("job", "job_1")
    perform(tasks, {"job": lambda subject: seen.append(subject)})
    assert seen == ["job_1"] and tasks.queue.failed_job_registry.get_job_ids() == []


def due(tasks: RqJobQueue) -> None:
    scheduler = Scheduler(tasks)
    scheduler._pass()
    scheduler._scheduler.stop()


def test_a_handler_says_when_it_wants_to_be_called_again(tasks: RqJobQueue) -> None:
    pauses = [timedelta(0), timedelta(hours=1), None]
    seen: list[str] = []

    def handler(subject: str) -> timedelta | None:
        seen.append(subject)
        return pauses.pop(0)

    tasks.enqueue("hook", "d1")
    perform(tasks, {"hook": handler})
    assert seen == ["d1", "d1"]
    assert tasks.queue.scheduled_job_registry.get_job_ids() == [id_of("hook", "d1")]
    tasks.enqueue("hook", "d1", delay=timedelta(hours=2))
    assert tasks.queue.job_ids == [], "later than what waits already"
    tasks.enqueue("hook", "d1")
    perform(tasks, {"hook": handler})
    assert len(seen) == 3 and tasks.queue.scheduled_job_registry.get_job_ids() == []


def test_a_delayed_task_comes_when_it_is_due(tasks: RqJobQueue) -> None:
    tasks.enqueue("hook", "d1", delay=timedelta(milliseconds=300))
    assert tasks.queue.job_ids == []
    scheduler = Scheduler(tasks)
    scheduler.start()
    try:
        eventually(lambda: tasks.queue.job_ids == ["hook-d1"], within=15)
    finally:
        scheduler.stop()


def test_what_a_dead_worker_had_begun_can_be_told_again(tasks: RqJobQueue) -> None:
    tasks.enqueue("job", "job_1")
    worker = TaskWorker(tasks, {}, name="dead")
    worker.register_birth()
    job, _ = worker.dequeue_job_and_maintain_ttl(1)
    worker.prepare_job_execution(job)
    worker.prepare_execution(job)
    tasks.enqueue("job", "job_1")
    seen: list[str] = []
    perform(tasks, {"job": lambda subject: seen.append(subject)})
    assert seen == ["job_1"]


def test_a_worker_is_known_again_after_a_flush(tasks: RqJobQueue) -> None:
    client = tasks.queue.connection
    worker = TaskWorker(tasks, {}, name="known")
    worker.register_birth()
    assert [each.name for each in Worker.all(connection=client)] == ["known"]
    client.flushall()
    assert Worker.all(connection=client) == []
    worker.heartbeat()
    assert [each.name for each in Worker.all(connection=client)] == ["known"]


def test_a_function_that_somebody_else_put_there_is_not_called(tasks: RqJobQueue, capfd) -> None:
    seen: list[str] = []
    tasks.queue.enqueue("os.system", "echo called", "job_1", job_id="x", result_ttl=0)
    perform(tasks, {"echo called": lambda subject: seen.append(subject)})
    assert seen == ["job_1"] and "called" not in capfd.readouterr().out


def test_a_queue_that_is_away_is_unavailable() -> None:
    gone = RqJobQueue(open_client("unix:///nowhere/at/all", options=BrokerOptions()))
    with pytest.raises(Unavailable):
        gone.enqueue("job", "job_1")


def test_the_lock_of_a_scheduler_that_was_killed_ends_soon(tasks: RqJobQueue) -> None:
    """rq's own would outlive it by a minute."""
    killed = Scheduler(tasks)
    killed._pass()
    killed._pass()  # a heartbeat: rq makes the lock long again
    key = killed._scheduler.get_locking_key(QUEUE)
    assert 0 < tasks.queue.connection.pttl(key) <= LOCK_SECONDS * 1_000
    other = Scheduler(tasks)
    other._pass()
    assert not other._scheduler.acquired_locks
    tasks.queue.connection.delete(key)
    killed._pass()
    assert tasks.queue.connection.pttl(key) <= LOCK_SECONDS * 1_000
    killed._scheduler.stop()
    other._pass()
    assert other._scheduler.acquired_locks
