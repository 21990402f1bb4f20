"""Schedules: make, change, fire by hand. What is wrong with one is said when it is written, not when it fires."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any

from oah.core.model.ids import EpochId, SessionId, WorkspaceId
from oah.core.model.run import OnBusy, RunClass
from oah.core.model.schedule import Firing, FiringOutcome, Overlap, Schedule
from oah.core.model.session import Session, SessionState
from oah.core.policy import admission
from oah.errors import Conflict, InvalidRequest, LeaseError, Unavailable
from oah.ports.broker import Broker
from oah.ports.clock import Clock, Ids
from oah.ports.schedules import CronTimes, DueRun, NewSchedule
from oah.ports.store import Accepted, Store, SubmitLimits
from oah.services import sessions, submit

RUN_FIELDS = frozenset(
    {
        "input", "class", "priority", "timeout_seconds", "start_timeout_seconds", "idle_timeout_seconds",
        "step_timeout_seconds", "max_retries", "retry", "recovery", "command", "metadata",
    }
)  # fmt: skip
SESSION_FIELDS = frozenset({"agent", "pool", "title", "cwd", "env", "labels", "metadata"})
TRIES = 5
"""Of a change, against others who change the same schedule."""
_RENAMED = {"class": "run_class"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSchedule:
    """A schedule as it came from outside. One of `session_id` and `session` (what each run's own is made of)."""

    workspace_id: WorkspaceId
    name: str
    cron: str
    timezone: str = "UTC"
    overlap: Overlap = Overlap.SKIP
    session_id: SessionId | None = None
    session: Mapping[str, Any] | None = None
    run: Mapping[str, Any] = field(default_factory=dict)
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Clerk:
    """What making and firing need. `agents`: those that sessions may be made for; None: any."""

    store: Store
    broker: Broker
    clock: Clock
    ids: Ids
    times: CronTimes
    epoch: Callable[[], EpochId | None]
    rules: admission.Rules = field(default_factory=admission.Rules)
    limits: SubmitLimits = field(default_factory=SubmitLimits)
    agents: Callable[[], frozenset[str]] | None = None

    def create(self, asked: AskedSchedule, *, by: str) -> Schedule:
        """Raises InvalidRequest (``invalid_cron``, ``unknown_timezone``, ``unknown_agent``), PayloadTooLarge, NotFound,
        Conflict ``name_taken``."""
        self.times.check(asked.cron, asked.timezone)
        return self.store.create_schedule(
            NewSchedule(
                id=self.ids.new("sch"),
                workspace_id=asked.workspace_id,
                name=admission.name(asked.name, what="schedule"),
                cron=asked.cron,
                timezone=asked.timezone,
                overlap=asked.overlap,
                session_id=asked.session_id,
                template=self._template(asked.workspace_id, asked.session_id, asked.session, asked.run),
                paused=asked.paused,
                next_at=self.times.next(asked.cron, asked.timezone, after=self.moment()),
                by=by,
            )
        )

    def change(self, named: str, workspace_id: WorkspaceId | None, changes: Mapping[str, Any], *, by: str) -> Schedule:
        """`changes` as in `AskedSchedule`. One whose times change, or that goes on after a pause, fires next at the
        first time from now on. Raises as `create`."""
        for tries in count(1):
            before = self.store.schedule(named, workspace_id)
            values = self._changed(before, changes)
            try:
                return self.store.update_schedule(before.id, workspace_id, values, by=by, seen=before.updated_at)
            except Conflict as error:  # what follows from the change follows from what it was
                if error.code != "schedule_changed" or tries == TRIES:
                    raise
        raise AssertionError

    def trigger(self, named: str, workspace_id: WorkspaceId | None, *, by: str) -> Firing:
        """Fire it now, whatever its overlap says; it does not move. Raises NotFound, and what a submit raises."""
        schedule = self.store.schedule(named, workspace_id)
        due = self.due(schedule, self.moment(), by=by)
        accepted = self.store.trigger(schedule, due, limits=self.limits, by=by)
        self.hear(accepted)
        return Firing(
            schedule_id=schedule.id,
            fire_at=due.fire_at,
            at=due.fire_at,
            outcome=FiringOutcome.TRIGGERED,
            run_id=accepted.run.id,
            detail=by,
        )

    def due(self, schedule: Schedule, fire_at: datetime, *, by: str) -> DueRun:
        """The run of a fire time, ready to be committed, and the session that it gets. Raises InvalidRequest,
        PayloadTooLarge."""
        try:
            session = None if schedule.session_id is not None else self._own_session(schedule)
            session_id = schedule.session_id if session is None else session.id
            assert session_id is not None  # one of them is
            run = submit.prepare(
                self.store,
                self.clock,
                self.ids,
                _asked(schedule.template.get("run") or {}, session_id),
                workspace_id=schedule.workspace_id,
                rules=self.rules,
                by=by,
            )
        except (TypeError, ValueError, LookupError, AttributeError) as error:  # judged when written, by another release
            raise InvalidRequest(f"the schedule's run or session is not well formed: {error}") from error
        return DueRun(fire_at=fire_at, run=run, session=session)

    def hear(self, accepted: Accepted) -> None:
        """Let the broker hear of a run that is committed."""
        with contextlib.suppress(Unavailable, LeaseError):  # the relay tells of it
            submit.hear(self.broker, self.store, self.epoch(), [accepted])

    def _changed(self, before: Schedule, changes: Mapping[str, Any]) -> dict[str, Any]:
        """With what follows from them."""
        values = dict(changes)
        if "name" in values:
            admission.name(values["name"], what="schedule")
        if {"run", "session", "session_id"} & values.keys():
            session = values.pop("session", None)
            if session is not None and values.get("session_id") is None:
                values["session_id"] = None
            session_id = values.get("session_id", before.session_id)
            if session is None and session_id is None:
                session = before.template.get("session")
            run = values.pop("run", None) or before.template["run"]
            values["template"] = self._template(before.workspace_id, session_id, session, run)
        cron, timezone = values.get("cron", before.cron), values.get("timezone", before.timezone)
        resumed = before.paused and values.get("paused") is False
        ended = before.next_at is None and not values.get("paused", before.paused)  # whatever it was, it is tried again
        if (cron, timezone) != (before.cron, before.timezone) or resumed or ended:
            self.times.check(cron, timezone)
            values["next_at"] = self.times.next(cron, timezone, after=self.moment())
        return values

    def moment(self) -> datetime:
        """The database's."""
        return datetime.fromtimestamp(self.store.now(), UTC)

    def _own_session(self, schedule: Schedule) -> Session:
        asked = _asked_session(schedule.template.get("session") or {}, schedule.workspace_id)
        known = self.agents or (lambda: frozenset({asked.agent}))
        return sessions.prepare(self.store, self.clock, self.ids, asked, agents=known, rules=self.rules)

    def _template(
        self,
        workspace_id: WorkspaceId,
        session_id: SessionId | None,
        session: Mapping[str, Any] | None,
        run: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Judged as if it fired now."""
        if (session_id is None) == (session is None):
            raise InvalidRequest("a schedule has a session_id, or a session that each run gets one like")
        if unknown := (set(run) - RUN_FIELDS) | (set(session or {}) - SESSION_FIELDS):
            raise InvalidRequest(f"a schedule's run or session has no {', '.join(sorted(unknown))}")
        if session_id is not None:
            if self.store.session(session_id, workspace_id).state is not SessionState.OPEN:
                raise Conflict(f"session {session_id} is closed: it takes no runs", code="session_closed")
        else:
            asked = _asked_session(session or {}, workspace_id)
            sessions.judge(asked, agents=self.agents or (lambda: frozenset({asked.agent})), rules=self.rules)
        submit.prepare(
            self.store,
            self.clock,
            self.ids,
            _asked(run, session_id or SessionId("ses_none")),
            workspace_id=workspace_id,
            rules=self.rules,
        )
        return {"run": dict(run), **({} if session is None else {"session": dict(session)})}


def _asked(run: Mapping[str, Any], session_id: SessionId) -> submit.Asked:
    if "input" not in run:
        raise InvalidRequest("a schedule's run needs an input")
    values = {_RENAMED.get(name, name): value for name, value in run.items() if name != "recovery"}
    recovery = run.get("recovery") or {}
    try:
        if "run_class" in values:
            values["run_class"] = RunClass(values["run_class"])
        return submit.Asked(
            session_id=session_id,
            on_busy=OnBusy.ENQUEUE,
            recovery_strategy=recovery.get("strategy"),
            recovery_max_attempts=recovery.get("max_attempts"),
            **values,
        )
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"a schedule's run is not well formed: {error}") from error


def _asked_session(session: Mapping[str, Any], workspace_id: WorkspaceId) -> sessions.AskedSession:
    if not session.get("agent"):
        raise InvalidRequest("a schedule's session needs an agent")
    try:
        return sessions.AskedSession(workspace_id=workspace_id, **session)
    except TypeError as error:  # of a release that knew more
        raise InvalidRequest(f"a schedule's session is not well formed: {error}") from error
