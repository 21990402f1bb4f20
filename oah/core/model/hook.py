"""Hooks: commands and HTTP calls that a worker makes around the runs it executes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from oah.core.model.run import RunStatus


class HookWhen(StrEnum):
    """The moments at which hooks are called."""

    BEFORE_RUN = "before_run"
    """Before an attempt's agent is opened: the attempt waits for it, at most for its time-out."""
    AFTER_RUN = "after_run"
    """After each attempt."""
    ON_CANCEL = "on_cancel"
    """An active run was asked to stop; its agent may still be working."""
    ON_COMPLETED = "on_completed"
    ON_FAILED = "on_failed"
    ON_CANCELLED = "on_cancelled"
    ON_TIMED_OUT = "on_timed_out"

    @classmethod
    def at_end(cls, status: RunStatus) -> HookWhen | None:
        """The moment of a run that is over; None: it is not."""
        return cls(f"on_{status.value}") if status.terminal else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One of `command` (an argument list, no shell) and `url` (POST of a JSON document) is given."""

    name: str
    when: frozenset[HookWhen]
    command: tuple[str, ...] = ()
    url: str | None = None
    timeout: timedelta = timedelta(seconds=10)
