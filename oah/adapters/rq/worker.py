"""The worker of maintenance tasks: rq's, without a fork per task, in a process of its own.

rq's scheduler forks a process beside its worker; here it is a thread, which does the same once a second.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError
from rq import Queue, SimpleWorker
from rq.scheduler import RQScheduler
from rq.worker import WorkerStatus

from oah.adapters.rq.queue import RqJobQueue, TaskJob
from oah.errors import Unavailable
from oah.ports.jobs import Handlers

log = logging.getLogger(__name__)

WORKER_TTL_SECONDS = 60
"""It blocks for a quarter less; a Redis that is gone without a word is noticed after a little more."""
EVERY_SECONDS = 1.0
"""How often what is due is looked at."""

REMIND_SECONDS = 2.0
"""After a signal: rq ignores a second one within a second, and takes a later one for "at once"."""


class TaskWorker(SimpleWorker):
    """Performs tasks one after the other in the main thread of its process."""

    job_class = TaskJob
    log_result_lifespan = False
    max_connection_wait_time = 5.0

    def __init__(self, tasks: RqJobQueue, handlers: Handlers, *, name: str) -> None:
        self._tasks = tasks
        TaskJob.handlers = handlers
        self.asked = threading.Event()
        """Somebody wants it to stop."""
        super().__init__(
            [tasks.queue],
            name=name,
            connection=tasks.queue.connection,
            job_class=TaskJob,
            serializer=tasks.queue.serializer,
            worker_ttl=WORKER_TTL_SECONDS,
            log_job_description=False,
        )

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop: a long task gives its turn back."""
        return bool(self._stop_requested)

    def request_stop(self, signum: Any, frame: Any) -> None:
        """The first signal. rq raises out of a wait, or ends after the task at hand."""
        self.asked.set()
        library: Any = super()
        library.request_stop(signum, frame)

    def execute_job(self, job: Any, queue: Queue) -> None:
        """And queue the task again when its handler wants it, which rq could not while it was being performed."""
        super().execute_job(job, queue)
        again, TaskJob.again = TaskJob.again, None
        if again is not None:
            task, subject, pause = again
            with suppress(Unavailable):  # the leader tells of it again
                self._tasks.enqueue(task, subject, delay=pause)

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Also be known again after a flush."""
        if pipeline is None and self.birth_date is not None and not self.connection.hexists(self.key, "birth"):
            self.connection.delete(self.key)
            library: Any = self
            library.register_birth()
        super().heartbeat(timeout, pipeline)


class Reminder(threading.Thread):
    """Signals once more when the first signal was lost: rq raises an exception out of whatever its thread is in, which
    may swallow it, or takes a task that is just over for one that goes on; then it waits for the next task."""

    def __init__(self, worker: TaskWorker) -> None:
        super().__init__(name="jobs-reminder", daemon=True)
        self._worker = worker
        self._over = threading.Event()

    def run(self) -> None:
        """From the first signal on, until it has stopped."""
        self._worker.asked.wait()
        while not self._over.wait(REMIND_SECONDS):
            if self._worker.get_state() != WorkerStatus.BUSY:
                os.kill(os.getpid(), signal.SIGTERM)

    def stop(self) -> None:
        """It has stopped."""
        self._over.set()
        self._worker.asked.set()


LOCK_SECONDS = 5
"""rq's own lock outlives a scheduler that was killed by a minute, in which nothing that is due would be queued. One
that stands still for longer loses it; two that both believe to have it queue a task twice, of which one finds its row
taken."""


class _ShortLocks(RQScheduler):
    """rq's scheduler, whose lock ends soon after it."""

    def acquire_locks(self, auto_start: bool = False) -> set[str]:  # noqa: FBT001, FBT002  # rq's signature
        """And let them end soon."""
        library: Any = super()
        found: set[str] = library.acquire_locks(auto_start)
        self._shorten()
        return found

    def heartbeat(self) -> None:
        """And let the locks end soon."""
        library: Any = super()
        library.heartbeat()
        self._shorten()

    def _shorten(self) -> None:
        for name in self.acquired_locks:
            self.connection.expire(self.get_locking_key(name), LOCK_SECONDS)


class Scheduler(threading.Thread):
    """Queues what is due, while this process has rq's scheduler lock."""

    def __init__(self, tasks: RqJobQueue) -> None:
        super().__init__(name="jobs-scheduler", daemon=True)
        queue = tasks.queue
        self._scheduler: Any = _ShortLocks([queue.name], connection=queue.connection, serializer=queue.serializer)
        self._stopping = threading.Event()

    def run(self) -> None:
        """Once a second, whatever Redis answers."""
        born = False
        while not self._stopping.wait(EVERY_SECONDS):
            try:
                if not born:
                    self._scheduler.register_birth()
                    born = True
                self._pass()
            except RedisError as error:
                log.warning("what is due waits: %s", error)
                born = False
        with suppress(RedisError):
            self._scheduler.stop()

    def stop(self) -> None:
        """Ask it to end and wait for it."""
        self._stopping.set()
        self.join(timeout=5)

    def _pass(self) -> None:
        if not self._scheduler.acquired_locks:
            self._scheduler.acquire_locks()
        self._scheduler.heartbeat()
        if self._scheduler.acquired_locks:
            self._scheduler.enqueue_scheduled_jobs()


def perform_tasks(tasks: RqJobQueue, handlers_of: Callable[[Callable[[], bool]], Handlers], *, name: str) -> None:
    """Until SIGTERM or SIGINT, from the main thread; then the task at hand comes to its next pause. ``handlers_of``:
    the handlers, which ask between two pauses whether they may go on. Raises Unavailable."""

    def going_on() -> bool:
        return not worker.stopping

    try:
        worker = TaskWorker(tasks, handlers_of(going_on), name=name)
        scheduler = Scheduler(tasks)
        reminder = Reminder(worker)
        scheduler.start()
        reminder.start()
        try:
            worker.work(logging_level=None)
        finally:
            reminder.stop()
            scheduler.stop()
    except (RedisError, OSError) as error:
        raise Unavailable(f"{tasks.address}: {error}", code="redis_unreachable") from error
