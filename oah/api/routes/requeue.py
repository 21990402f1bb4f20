"""/v1/runs/{id}/requeue, /v1/runs/requeue: ended runs wait again"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import AwareDatetime, Field
from starlette.responses import Response

from oah.api.auth import Caller, Principal, needs
from oah.api.render import Document, answer, receipt_document, run_document
from oah.api.routes.jobs import job_document
from oah.api.schemas import Body, Named
from oah.api.state import ApiState, Desk
from oah.core.model.ids import RunId, SessionId
from oah.core.model.run import RecoveryState, RunStatus
from oah.core.model.workspace import Scope
from oah.core.policy import admission
from oah.errors import InvalidRequest
from oah.ports.requeue import Requeued, RequeueFilter, RequeueOutcome
from oah.services import requeue, workspaces

router = APIRouter(prefix="/v1", tags=["runs"])


class ReasonBody(Body):
    """POST /runs/{id}/requeue; may be left out."""

    reason: str | None = None


class WhichBody(Body):
    """Which ended runs; what is absent does not matter. ``since`` and ``until``: when they ended."""

    status: list[RunStatus] | RunStatus | None = None
    error_code: str | None = None
    recovery_state: RecoveryState | None = None
    workspace: str | None = None
    agent: str | None = None
    session: str | None = None
    created_after: AwareDatetime | None = None
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None


class RequeueBody(Body):
    """POST /runs/requeue: by id, or by filter."""

    run_ids: Annotated[list[str], Field(max_length=requeue.MOST)] | None = None
    filter: WhichBody | None = None
    dry_run: bool = False
    reason: str | None = None


@router.post("/runs/{run_id}/requeue", status_code=202, **needs(Scope.OPERATE))
def requeue_run(run_id: Named, desk: Desk, caller: Caller, body: ReasonBody | None = None) -> Response:
    """A terminal run becomes eligible again now, with a new place; its counters restart."""
    context = desk.context
    reason = _reason(desk, None if body is None else body.reason)
    accepted = requeue.requeue(
        context.store, context.broker, desk.epoch(), RunId(run_id), caller.workspace_id, by=caller.by, reason=reason
    )
    return answer(receipt_document(accepted), 202)


@router.post("/runs/requeue", **needs(Scope.OPERATE))
def requeue_runs(body: RequeueBody, desk: Desk, caller: Caller) -> Response:
    """Some by id: answered one by one. Many, or what a filter finds: 202 with a job to poll. Dry: what would happen."""
    if (body.run_ids is None) == (body.filter is None):
        raise InvalidRequest("give run_ids or a filter")
    reason = _reason(desk, body.reason)
    if body.filter is not None:
        return _by_filter(desk, caller, body.filter, reason, dry_run=body.dry_run)
    run_ids = [RunId(run_id) for run_id in dict.fromkeys(body.run_ids or ())]
    if len(run_ids) > requeue.AT_ONCE and not body.dry_run:
        context = desk.context
        job = requeue.ask_requeue(
            context.store,
            context.jobs,
            context.ids,
            workspace_id=caller.workspace_id,
            run_ids=run_ids,
            by=caller.by,
            reason=reason,
        )
        return _asked(job_document(job))
    return _by_id(desk, caller, run_ids, reason, dry_run=body.dry_run)


def _by_id(desk: ApiState, caller: Principal, run_ids: list[RunId], reason: str | None, *, dry_run: bool) -> Response:
    context = desk.context
    done: list[Requeued] = []
    for begin in range(0, len(run_ids), requeue.AT_ONCE):
        done += requeue.requeue_some(
            context.store,
            context.broker,
            desk.epoch(),
            run_ids[begin : begin + requeue.AT_ONCE],
            caller.workspace_id,
            by=caller.by,
            reason=reason,
            dry_run=dry_run,
        )
    total = sum(each.outcome is RequeueOutcome.REQUEUED for each in done)
    items = [requeued_document(each) for each in done]
    return answer({"dry_run": dry_run, "total": total, "items": items, "job": None})


def _by_filter(desk: ApiState, caller: Principal, which: WhichBody, reason: str | None, *, dry_run: bool) -> Response:
    context = desk.context
    where = requeue.checked(_where(desk, caller, which))
    if dry_run:
        found = context.store.count_requeue(where)
        sample = [run_document(run, excerpt=True) for run in found.sample]
        return answer({"dry_run": True, "total": found.total, "items": [], "sample": sample, "job": None})
    job = requeue.ask_requeue(
        context.store,
        context.jobs,
        context.ids,
        workspace_id=caller.workspace_id,
        where=where,
        by=caller.by,
        reason=reason,
    )
    return _asked(job_document(job))


def _where(desk: ApiState, caller: Principal, which: WhichBody) -> RequeueFilter:
    fields: dict[str, Any] = {}
    if which.status is not None:
        fields["status"] = tuple(which.status) if isinstance(which.status, list) else (which.status,)
    place = caller.workspace_id
    if which.workspace is not None:
        place = workspaces.resolve(desk.context.store, which.workspace, caller.workspace_id)
    return RequeueFilter(
        workspace_id=place,
        session_id=None if which.session is None else SessionId(which.session),
        agent=which.agent,
        error_code=which.error_code,
        recovery_state=which.recovery_state,
        created_after=which.created_after,
        since=which.since,
        until=which.until,
        **fields,
    )


def _asked(job: Document) -> Response:
    return answer({"dry_run": False, "job": job}, 202, {"location": f"/v1/jobs/{job['id']}"})


def requeued_document(each: Requeued) -> Document:
    """What became of one run."""
    run = each.accepted.run if each.accepted is not None else each.run
    return {
        "id": each.run_id,
        "outcome": each.outcome,
        "session_id": None if run is None else run.session_id,
        "status": None if run is None else run.status,
        "position": None if each.accepted is None else each.accepted.run.position,
    }


def _reason(desk: ApiState, text: str | None) -> str | None:
    return None if text is None else admission.clean(text, what="reason", limit=desk.context.rules.note_bytes)
