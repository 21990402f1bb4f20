"""/v1/schedules: runs that time submits."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from oah.api.auth import Caller, needs
from oah.api.render import Document, answer, moment, page
from oah.api.schemas import Body, Cursor, Filter, Limit, Named, Number, RecoveryBody, RetryBody, SecretRef
from oah.api.state import ApiState, Desk
from oah.core.model.ids import SessionId
from oah.core.model.run import RunClass
from oah.core.model.schedule import Firing, Overlap, Schedule
from oah.core.model.workspace import Scope
from oah.services import inspect, workspaces
from oah.services.schedules import AskedSchedule, Clerk

router = APIRouter(prefix="/v1", tags=["schedules"])


class ScheduledRun(Body):
    """The run of every fire time; members as in POST /sessions/{id}/runs."""

    input: str
    run_class: RunClass = Field(default=RunClass.BACKGROUND, alias="class")
    timeout_seconds: Number | None = None
    start_timeout_seconds: Number | None = None
    idle_timeout_seconds: Number | None = None
    step_timeout_seconds: Number | None = None
    max_retries: int | None = None
    retry: RetryBody | None = None
    recovery: RecoveryBody | None = None
    priority: int = 0
    command: bool = False
    metadata: dict[str, Any] = Field(default_factory=dict)


class ScheduledSession(Body):
    """What each run's own session is made of; members as in POST /sessions. Secrets of its environment by name."""

    agent: str
    pool: str = "default"
    title: str | None = None
    cwd: str | None = None
    env: dict[str, str | SecretRef] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)


class ScheduleBody(Body):
    """POST /schedules. One of ``session_id`` (all runs go there) and ``session`` (each run gets its own)."""

    name: str
    cron: str = Field(max_length=200)
    timezone: str = Field(default="UTC", max_length=100)
    overlap: Overlap = Overlap.SKIP
    session_id: str | None = None
    session: ScheduledSession | None = None
    run: ScheduledRun
    workspace: str | None = None
    paused: bool = False


class ScheduleChanges(Body):
    """PATCH /schedules/{id}; what is absent stays."""

    name: str = ""
    cron: str = Field(default="", max_length=200)
    timezone: str = Field(default="UTC", max_length=100)
    overlap: Overlap = Overlap.SKIP
    session_id: str | None = None
    session: ScheduledSession | None = None
    run: ScheduledRun | None = None
    paused: bool = False


class TimesBody(Body):
    """POST /schedules:preview"""

    cron: str = Field(max_length=200)
    timezone: str = Field(default="UTC", max_length=100)
    count: int = Field(default=5, ge=1, le=100)


@router.post("/schedules", status_code=201, **needs(Scope.RUN))
def create_schedule(body: ScheduleBody, desk: Desk, caller: Caller) -> Response:
    """A new schedule; it fires at the first time from now on."""
    asked = AskedSchedule(
        workspace_id=workspaces.resolve(desk.context.store, body.workspace, caller.workspace_id),
        name=body.name,
        cron=body.cron,
        timezone=body.timezone,
        overlap=body.overlap,
        session_id=None if body.session_id is None else SessionId(body.session_id),
        session=_plain(body.session),
        run=_plain(body.run) or {},
        paused=body.paused,
    )
    made = clerk(desk).create(asked, by=caller.by)
    return answer(schedule_document(made), 201, {"location": f"/v1/schedules/{made.id}"})


@router.post("/schedules:preview", **needs(Scope.READ))
def preview(body: TimesBody, desk: Desk, caller: Caller) -> Response:
    """When a cron expression would fire, and what it says in words. Nothing is kept."""
    the_clerk = clerk(desk)
    the_clerk.times.check(body.cron, body.timezone)
    found: list[str | None] = []
    at = the_clerk.moment()
    while len(found) < body.count:
        following = the_clerk.times.next(body.cron, body.timezone, after=at)
        if following is None:
            break
        found.append(moment(following))
        at = following
    return answer(
        {"cron": body.cron, "timezone": body.timezone, "told": the_clerk.times.told(body.cron), "times": found}
    )


@router.get("/schedules", **needs(Scope.READ))
def list_schedules(
    desk: Desk, caller: Caller, workspace: Filter = None, cursor: Cursor = None, limit: Limit = 100
) -> Response:
    """Schedules, newest first."""
    store = desk.context.store
    where = caller.workspace_id if workspace is None else workspaces.resolve(store, workspace, caller.workspace_id)
    found = store.schedules(where, cursor=cursor, limit=limit)
    return page(map(schedule_document, found.items), found.next_cursor)


@router.get("/schedules/{schedule_id}", **needs(Scope.READ))
def show_schedule(schedule_id: Named, desk: Desk, caller: Caller) -> Response:
    """One schedule, by id or name."""
    return answer(schedule_document(desk.context.store.schedule(schedule_id, caller.workspace_id)))


@router.patch("/schedules/{schedule_id}", **needs(Scope.RUN))
def change_schedule(schedule_id: Named, body: ScheduleChanges, desk: Desk, caller: Caller) -> Response:
    """Change a schedule, pause it or let it go on. What was missed meanwhile is not made up for."""
    changes = {name: getattr(body, name) for name in body.model_fields_set}
    for name in ("run", "session"):
        if name in changes:
            changes[name] = _plain(changes[name])
    return answer(schedule_document(clerk(desk).change(schedule_id, caller.workspace_id, changes, by=caller.by)))


@router.delete("/schedules/{schedule_id}", **needs(Scope.RUN))
def delete_schedule(schedule_id: Named, desk: Desk, caller: Caller) -> Response:
    """Delete a schedule. Its runs stay."""
    return answer(schedule_document(desk.context.store.delete_schedule(schedule_id, caller.workspace_id, by=caller.by)))


@router.post("/schedules/{schedule_id}/trigger", status_code=202, **needs(Scope.RUN))
def trigger_schedule(schedule_id: Named, desk: Desk, caller: Caller) -> Response:
    """Make its run now, besides its times."""
    return answer(firing_document(clerk(desk).trigger(schedule_id, caller.workspace_id, by=caller.by)), 202)


@router.get("/schedules/{schedule_id}/firings", **needs(Scope.READ))
def list_firings(schedule_id: Named, desk: Desk, caller: Caller, limit: Limit = 100) -> Response:
    """What came of its fire times, newest first."""
    store = desk.context.store
    found = store.firings(store.schedule(schedule_id, caller.workspace_id).id, limit=limit)
    return page(map(firing_document, found))


def clerk(desk: ApiState) -> Clerk:
    """Who makes and fires them here."""
    context = desk.context
    return Clerk(
        store=context.store,
        broker=context.broker,
        clock=context.clock,
        ids=context.ids,
        times=context.times,
        epoch=desk.epoch,
        rules=context.rules,
        limits=context.limits,
        agents=lambda: frozenset(inspect.agents(context.profiles(), context.broker)),
    )


def _plain(body: Body | None) -> dict[str, Any] | None:
    return None if body is None else body.model_dump(mode="json", by_alias=True, exclude_unset=True) | _class_of(body)


def _class_of(body: Body) -> dict[str, Any]:
    """Said even when it is the default: the default of a submit is another."""
    return {"class": str(body.run_class)} if isinstance(body, ScheduledRun) else {}


def schedule_document(schedule: Schedule) -> Document:
    """A schedule; its times in UTC."""
    return {
        "id": schedule.id,
        "workspace_id": schedule.workspace_id,
        "name": schedule.name,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "overlap": schedule.overlap,
        "session_id": schedule.session_id,
        "session": schedule.template.get("session"),
        "run": schedule.template["run"],
        "paused": schedule.paused,
        "next_at": None if schedule.paused else moment(schedule.next_at),
        "last_at": moment(schedule.last_at),
        "created_by": schedule.created_by,
        "created_at": moment(schedule.created_at),
        "updated_at": moment(schedule.updated_at),
    }


def firing_document(firing: Firing) -> Document:
    """What came of one fire time."""
    return {
        "fire_at": moment(firing.fire_at),
        "outcome": firing.outcome,
        "run_id": firing.run_id,
        "detail": firing.detail,
        "at": moment(firing.at),
    }
