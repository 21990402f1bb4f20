"""Schedules: runs that time submits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.errors import RequestError


class Overlap(StrEnum):
    """What becomes of a fire time while the run of the time before has not ended."""

    SKIP = "skip"
    """No run; the firing says so."""
    QUEUE = "queue"
    """A run all the same: behind the other where both go to one session, beside it where each has its own."""
    CANCEL_PREVIOUS = "cancel_previous"
    """The earlier run is asked to stop, then there is a run."""


class FiringOutcome(StrEnum):
    """What came of a fire time."""

    SUBMITTED = "submitted"
    SKIPPED = "skipped"
    """The run before had not ended."""
    MISSED = "missed"
    """Nobody was there in time; `detail` says how many fire times the row stands for."""
    REFUSED = "refused"
    """The run was not accepted; `detail` says why."""
    TRIGGERED = "triggered"
    """Somebody fired it by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """`cron`: five fields, or six with seconds in front. `session_id` None: each run gets a session of its own, made as
    `template["session"]` says. `template["run"]`: the run, as a submit takes it. `next_at` None: never again."""

    id: str
    workspace_id: WorkspaceId
    name: str
    cron: str
    timezone: str = "UTC"
    overlap: Overlap = Overlap.SKIP
    session_id: SessionId | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    paused: bool = False
    next_at: datetime | None = None
    last_at: datetime | None = None
    created_by: str = ""
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """One fire time of a schedule. `at`: when it was dealt with."""

    schedule_id: str
    fire_at: datetime
    outcome: FiringOutcome
    at: datetime | None = None
    run_id: RunId | None = None
    detail: str | None = None


DETAIL_CHARACTERS = 500


def refused(schedule: Schedule, fire_at: datetime, error: RequestError) -> Firing:
    """Of a run that was not accepted."""
    detail = f"{error.code}: {error.message}"[:DETAIL_CHARACTERS]
    return Firing(schedule_id=schedule.id, fire_at=fire_at, outcome=FiringOutcome.REFUSED, detail=detail)
