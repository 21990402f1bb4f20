"""/v1/jobs: maintenance jobs; /v1/audit: who did what"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AfterValidator, AwareDatetime
from starlette.responses import Response

from oah.api.auth import Caller, needs
from oah.api.render import Document, answer, moment, page
from oah.api.schemas import Cursor, Filter, Limit, Named
from oah.api.state import Desk
from oah.core.model.workspace import Scope
from oah.core.policy import admission
from oah.errors import InvalidRequest
from oah.ports.audit import AuditFilter, AuditRow
from oah.ports.jobs import Job, JobItem, JobState
from oah.services import workspaces

router = APIRouter(prefix="/v1", tags=["operations"])

SHOWN_IDS = 100


@router.get("/jobs", **needs(Scope.OPERATE))
def jobs(
    desk: Desk,
    caller: Caller,
    state: JobState | None = None,
    kind: Filter = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Maintenance jobs, newest first: those that were asked for in the caller's workspace, or all."""
    found = desk.context.store.jobs(caller.workspace_id, state=state, kind=kind, cursor=cursor, limit=limit)
    return page(map(job_document, found.items), found.next_cursor)


@router.get("/jobs/{job_id}", **needs(Scope.OPERATE))
def job(job_id: Named, desk: Desk, caller: Caller) -> Response:
    """One job: how far it came, and what became of how many."""
    found = desk.context.store.job(job_id, caller.workspace_id)
    return answer({**job_document(found), "outcomes": dict(desk.context.store.job_outcomes(found.id))})


@router.get("/jobs/{job_id}/items", **needs(Scope.OPERATE))
def items(job_id: Named, desk: Desk, caller: Caller, cursor: Cursor = None, limit: Limit = 100) -> Response:
    """What became of each subject of a job, in its order."""
    found = desk.context.store.job(job_id, caller.workspace_id)
    if cursor is not None and not (cursor.isdigit() and len(cursor) < 10):
        raise InvalidRequest("the cursor is none that was handed out", code="invalid_cursor")
    rows = desk.context.store.job_items(found.id, after=int(cursor or 0), limit=limit + 1)
    more = str(rows[limit - 1].number) if len(rows) > limit else None
    return page(map(item_document, rows[:limit]), more)


@router.post("/jobs/{job_id}/cancel", status_code=202, **needs(Scope.OPERATE))
def cancel_job(job_id: Named, desk: Desk, caller: Caller) -> Response:
    """A job that waits ends now, one at work after its chunk; what it did stays done."""
    return answer(job_document(desk.context.store.cancel_job(job_id, caller.workspace_id, by=caller.by)), 202)


def job_document(job: Job) -> Document:
    """A job. ``failed``: subjects that could not be done, as the items say."""
    return {
        "id": job.id,
        "kind": job.kind,
        "state": job.state,
        "workspace_id": job.workspace_id,
        "arguments": {name: _bounded(value) for name, value in job.arguments.items()},
        "total": job.total,
        "done": job.done,
        "failed": job.failed,
        "attempt": job.attempt,
        "result": None if job.result is None else dict(job.result),
        "error": job.error,
        "created_by": job.created_by,
        "created_at": moment(job.created_at),
        "started_at": moment(job.started_at),
        "seen_at": moment(job.seen_at),
        "ended_at": moment(job.ended_at),
        "cancel_requested_at": moment(job.cancel_requested_at),
    }


def _bounded(value: object) -> object:
    """Thousands of ids are what the items are for."""
    return {"count": len(value)} if isinstance(value, list) and len(value) > SHOWN_IDS else value


def item_document(item: JobItem) -> Document:
    """What became of one subject."""
    return {"number": item.number, "subject": item.subject, "outcome": item.outcome, "detail": item.detail}


def _text(text: str | None) -> str | None:
    return None if text is None else admission.clean(text, what="a filter", limit=200)


Text = Annotated[str | None, Query(), AfterValidator(_text)]


@router.get("/audit", **needs(Scope.OPERATE))
def audit(
    desk: Desk,
    caller: Caller,
    workspace: Filter = None,
    actor: Text = None,
    action: Text = None,
    subject: Text = None,
    since: AwareDatetime | None = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Who did what to what, newest first. ``action=run.`` finds every action on runs."""
    store = desk.context.store
    place = caller.workspace_id
    if workspace is not None:
        place = workspaces.resolve(store, workspace, caller.workspace_id)
    found = store.audit_rows(
        AuditFilter(
            workspace_id=place, actor=actor, action=action, subject=subject, since=since, cursor=cursor, limit=limit
        )
    )
    return page(map(audit_document, found.items), found.next_cursor)


def audit_document(row: AuditRow) -> Document:
    """One deed."""
    return {
        "id": row.id,
        "at": moment(row.at),
        "actor": row.actor,
        "action": row.action,
        "subject": row.subject,
        "workspace_id": row.workspace_id,
        "data": dict(row.data),
    }
