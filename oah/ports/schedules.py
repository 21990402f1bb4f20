"""Schedules: runs that time submits, exactly once per fire time.

Times are judged by the database's clock alone, so that controllers whose clocks differ fire the same moments. A firing
is exactly once by this: its run (with its session, where it gets one of its own), its row, whose primary key is the
schedule and the fire time, and the schedule's moving on by compare-and-set are one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.schedule import Firing, Overlap, Schedule
from oah.core.model.session import Session
from oah.ports.rows import Accepted, NewRun, Page, SubmitLimits


class CronTimes(Protocol):
    """Reads cron expressions. In the hours when clocks are put forward or back, a time of day that does not exist fires
    at the moment after the gap, and one that exists twice fires once; an expression that repeats goes on repeating."""

    def check(self, cron: str, timezone: str) -> None:
        """Raises InvalidRequest (``invalid_cron``, ``unknown_timezone``)."""
        ...

    def next(self, cron: str, timezone: str, *, after: datetime) -> datetime | None:
        """The first fire time later than `after`, in UTC; None: there is none any more."""
        ...

    def latest(self, cron: str, timezone: str, *, at: datetime) -> datetime | None:
        """The last fire time up to and including `at`."""
        ...

    def told(self, cron: str) -> str:
        """In words."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    """To be created. `next_at` is computed from the database's clock by the caller."""

    id: str
    workspace_id: WorkspaceId
    name: str
    cron: str
    timezone: str
    overlap: Overlap
    session_id: SessionId | None
    template: Mapping[str, Any] = field(default_factory=dict)
    paused: bool = False
    next_at: datetime | None
    by: str


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """A schedule whose time has come, and the run of its last firing that had one."""

    schedule: Schedule
    previous: RunId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRun:
    """What a fire time is to become. `session`: made together with the run, and takes no other; None: the run's is
    there already."""

    fire_at: datetime
    run: NewRun
    session: Session | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """What was written of a schedule that was due. `accepted`: its run, if there is one."""

    firings: Sequence[Firing]
    accepted: Accepted | None = None


class ScheduleStore(Protocol):
    """Rows of schedules and of their firings. Changes leave rows in the audit."""

    def create_schedule(self, schedule: NewSchedule, *, most: int = 1_000) -> Schedule:
        """`most`: schedules of a workspace. Raises NotFound (workspace), Conflict ``name_taken``,
        ``too_many_schedules``."""
        ...

    def schedules(
        self, workspace_id: WorkspaceId | None, *, cursor: str | None = None, limit: int = 100
    ) -> Page[Schedule]:
        """Newest first."""
        ...

    def schedule(self, named: str, workspace_id: WorkspaceId | None) -> Schedule:
        """By id, or by name within a workspace. Raises NotFound."""
        ...

    def update_schedule(
        self,
        schedule_id: str,
        workspace_id: WorkspaceId | None,
        changes: Mapping[str, Any],
        *,
        by: str,
        seen: datetime | None = None,
    ) -> Schedule:
        """`changes`: name, cron, timezone, overlap, session_id, template, paused, next_at. `seen`: its `updated_at`
        as it was read; None: whatever it is by now. Raises NotFound, Conflict ``name_taken``, ``schedule_changed``."""
        ...

    def delete_schedule(self, schedule_id: str, workspace_id: WorkspaceId | None, *, by: str) -> Schedule:
        """With its firings. Raises NotFound."""
        ...

    def firings(self, schedule_id: str, *, limit: int = 100) -> list[Firing]:
        """Newest first."""
        ...

    def due_schedules(self, *, limit: int) -> tuple[datetime, list[DueSchedule]]:
        """The database's moment, and the schedules whose time has come by it, the most overdue first."""
        ...

    def fire(
        self,
        schedule: Schedule,
        firings: Sequence[Firing],
        *,
        due: DueRun | None,
        next_at: datetime | None,
        limits: SubmitLimits,
        keep: int,
    ) -> Fired | None:
        """Submit the run, write its firing and these, and move on: all of it, if the schedule still stands where it was
        read, or nothing. None: somebody else fired it, or it was changed. A run that is refused is a firing that says
        so, and leaves no session; a fire time that has a firing gets no other run. The oldest firings beyond `keep`
        go."""
        ...

    def trigger(self, schedule: Schedule, due: DueRun, *, limits: SubmitLimits, by: str) -> Accepted:
        """The run and its firing, by hand: the schedule does not move. Raises NotFound, and what a submit raises; then
        nothing is written."""
        ...
