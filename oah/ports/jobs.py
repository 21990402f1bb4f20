"""Maintenance jobs: long work that an operator asked for, and deliveries, outside every request.

The row in SQL is the truth: what is to be done, how far it came, who does it. The queue (rq, or none) only carries the
name of a task and the id of its row, may lose both, and is told again by the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Protocol


class JobQueue(Protocol):
    """Where tasks wait for a process that performs them."""

    def enqueue(self, task: str, subject: str, *, delay: timedelta | None = None) -> None:
        """Let ``task`` be performed for the row ``subject``, once for however many calls while it waits.

        Raises Unavailable: the leader repeats it."""
        ...


Handler = Callable[[str], timedelta | None]
"""Performs a task for one row, which it reads and locks itself; safe to repeat. Returns when to be called again, None
when the row is done. An exception is retried after a while."""

Handlers = Mapping[str, Handler]


class JobStore(Protocol):
    """Rows of ``jobs`` and ``job_items``."""
