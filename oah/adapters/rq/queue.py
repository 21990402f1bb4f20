"""The queue of maintenance tasks over rq."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from redis.exceptions import RedisError
from rq import Queue, Retry
from rq.exceptions import NoSuchJobError
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer

from oah.errors import Unavailable
from oah.ports.jobs import Handlers

QUEUE = "oah"
"""The name of the one queue, as ``rq info`` shows it."""
FUNCTION = "oah.adapters.rq.queue.perform"
TIMEOUT = timedelta(minutes=3)
"""Of one call of a handler: a net for what hangs. Handlers give their turn back long before."""
KEEP_FAILED = timedelta(days=1)
RETRY_SECONDS = (1, 5, 15)
"""Pauses after an exception; then rq keeps it among the failed until the leader tells of it again."""


def perform(task: str, subject: str) -> None:
    """What rq shows as the function. Only a worker of ours (``TaskJob``) performs it, with its handlers."""
    raise RuntimeError(f"{task} {subject}: only `oah job run` performs it")


class TaskJob(Job):
    """Performs a handler by its name, and nothing else: whatever function somebody has put into Redis."""

    handlers: ClassVar[Handlers] = {}
    again: ClassVar[tuple[str, str, timedelta] | None] = None
    """What the handler that was called last wants to be called for again, and when."""

    def _execute(self) -> Any:
        task, subject = (str(word) for word in self.args)
        TaskJob.again = None
        pause = TaskJob.handlers[task](subject)
        if pause is not None:
            TaskJob.again = (task, subject, pause)
        return None


class RqJobQueue:
    """See ``ports/jobs.py``. ``client``: a client of the Redis that carries them."""

    def __init__(self, client: Any, *, address: str = "the Redis of jobs") -> None:
        self.address = address
        self.queue = Queue(
            QUEUE,
            connection=client,
            default_timeout=round(TIMEOUT.total_seconds()),
            job_class=TaskJob,
            serializer=JSONSerializer,
        )

    def enqueue(self, task: str, subject: str, *, delay: timedelta | None = None) -> None:
        """One that waits already stays, unless it would wait longer; one that is known otherwise is replaced: whoever
        performs it may be gone, and the row is locked by who really does."""
        try:
            self._enqueue(task, subject, delay or timedelta(0))
        except (RedisError, OSError) as error:
            raise Unavailable(f"{self.address}: {error}", code="redis_unreachable") from error

    def _enqueue(self, task: str, subject: str, delay: timedelta) -> None:
        job_id = id_of(task, subject)
        try:
            known = Job.fetch(job_id, connection=self.queue.connection, serializer=JSONSerializer)
        except NoSuchJobError:
            known = None
        if known is not None:
            if self._waits(known, delay):
                return
            known.delete()
        how = {
            "job_id": job_id,
            "description": f"{task} {subject}",
            "result_ttl": 0,
            "failure_ttl": round(KEEP_FAILED.total_seconds()),
            "retry": Retry(max=len(RETRY_SECONDS), interval=list(RETRY_SECONDS)),
        }
        if delay > timedelta(0):
            self.queue.enqueue_in(delay, FUNCTION, task, subject, **how)
        else:
            self.queue.enqueue(FUNCTION, task, subject, **how)

    def _waits(self, job: Job, delay: timedelta) -> bool:
        status = job.get_status(refresh=False)
        if status == JobStatus.QUEUED:
            return self.queue.get_job_position(job.id) is not None
        if status != JobStatus.SCHEDULED:
            return False
        try:
            due = self.queue.scheduled_job_registry.get_scheduled_time(job.id)
        except NoSuchJobError:
            return False
        return bool(due <= datetime.now(UTC) + max(delay, timedelta(seconds=max(RETRY_SECONDS))))


def id_of(task: str, subject: str) -> str:
    """The id of rq's job: the same for the same row."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", f"{task}-{subject}")
