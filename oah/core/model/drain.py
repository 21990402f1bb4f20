"""A drain: no new runs, those that run finish; how long they may, and what becomes of them then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any


class AtDeadline(StrEnum):
    """What becomes of runs that still run at the deadline of a drain."""

    WAIT = "wait"
    """They may take as long as they need: the deadline is only told."""
    REQUEUE = "requeue"
    """Their agents end, and they are back at the head of their session's queue. Nothing is counted against them.
    Said by somebody, and not only by the settings, it is also for those that wait for a person."""
    FAIL = "fail"
    """Their agents end, and they fail with ``worker_drained``."""


@dataclass(frozen=True, slots=True)
class Drain:
    """What an operator wishes; None: as the worker's own settings have it.

    ``stay``: the worker does not end when it is empty, it stays as it is, taking nothing, until somebody ends it or
    uncordons it.
    """

    deadline: timedelta | None = None
    then: AtDeadline | None = None
    stay: bool = False

    def data(self) -> dict[str, Any]:
        """As a command carries it."""
        said: dict[str, Any] = {}
        if self.deadline is not None:
            said["deadline_ms"] = round(self.deadline.total_seconds() * 1000)
        if self.then is not None:
            said["then"] = self.then.value
        return {**said, "stay": True} if self.stay else said


def drain_from(data: Mapping[str, Any]) -> Drain:
    """What a command carries. A word that this release does not know says nothing."""
    deadline, then = data.get("deadline_ms"), data.get("then")
    return Drain(
        deadline=timedelta(milliseconds=deadline) if isinstance(deadline, int | float) else None,
        then=AtDeadline(then) if then in set(AtDeadline) else None,
        stay=data.get("stay") is True,
    )
