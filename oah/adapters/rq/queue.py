"""The queue of maintenance tasks over rq."""

from __future__ import annotations

from datetime import timedelta

from rq import Queue


class RqJobQueue:
    """See ``ports/jobs.py``."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def enqueue(self, task: str, subject: str, *, delay: timedelta | None = None) -> None:
        """Let a task be performed."""
        raise NotImplementedError
