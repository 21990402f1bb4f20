"""/v1/runs, and submitting to a session"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import AwareDatetime
from starlette.responses import Response, StreamingResponse

from oah.api.auth import Caller, needs, needs_family
from oah.api.family import seen_run, where_to_look
from oah.api.render import (
    answer,
    attempt_document,
    error_document,
    page,
    question_document,
    run_document,
    step_document,
)
from oah.api.schemas import (
    CancelBody,
    Cursor,
    Filter,
    Limit,
    Named,
    RunChanges,
)
from oah.api.state import Desk
from oah.core.model.ids import RunId, SessionId
from oah.core.model.run import RecoveryState, RunClass, RunStatus
from oah.core.model.workspace import Scope
from oah.core.policy import admission
from oah.core.policy.children import parent_of
from oah.errors import NotFound
from oah.ports.store import RunFilter
from oah.services import cancel, explain, workspaces

router = APIRouter(prefix="/v1", tags=["runs"])


@router.get("/runs", **needs_family(Scope.READ))
def listing(
    desk: Desk,
    caller: Caller,
    workspace: Filter = None,
    session: Filter = None,
    parent: Filter = None,
    status: Annotated[list[RunStatus] | None, Query()] = None,
    error_code: Filter = None,
    recovery_state: RecoveryState | None = None,
    run_class: Annotated[RunClass | None, Query(alias="class")] = None,
    created_after: AwareDatetime | None = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Runs, newest first; with the key of a run its children."""
    store = desk.context.store
    where = caller.workspace_id if workspace is None else workspaces.resolve(store, workspace, caller.workspace_id)
    if caller.fence is not None:
        where, parent = None, parent_of(parent, caller.fence.run_id)
    found = store.runs(
        RunFilter(
            workspace_id=where,
            parent_run_id=None if parent is None else RunId(parent),
            session_id=None if session is None else SessionId(session),
            status=tuple(status or ()),
            error_code=error_code,
            recovery_state=recovery_state,
            run_class=run_class,
            created_after=created_after,
            cursor=cursor,
            limit=limit,
        )
    )
    reasons = explain.wait_reasons(store, desk.look, found.items)
    documents = (run_document(run, wait_reason=reasons.get(run.id), excerpt=True) for run in found.items)
    return page(documents, found.next_cursor)


@router.get("/runs/{run_id}", **needs_family(Scope.READ))
def show(run_id: Named, desk: Desk, caller: Caller) -> Response:
    """One run, with the reason why it waits."""
    run = seen_run(desk, caller, run_id)
    reasons = explain.wait_reasons(desk.context.store, desk.look, [run])
    question = question_document(explain.question_of(desk.context.store, run))
    return answer({**run_document(run, wait_reason=reasons.get(run.id)), "question": question})


@router.get("/runs/{run_id}/result", **needs_family(Scope.READ))
def result(run_id: Named, desk: Desk, caller: Caller) -> Response:
    """The agent's answer as text; null until the run has one."""
    run = seen_run(desk, caller, run_id)
    return answer(
        {
            "id": run.id,
            "status": run.status,
            "output": run.result,
            "output_complete": run.result_blob is None,
            "exit_code": run.exit_code,
            "error": error_document(run),
        }
    )


@router.get("/runs/{run_id}/output", **needs_family(Scope.READ))
def output(run_id: Named, desk: Desk, caller: Caller) -> Response:
    """The whole answer as plain text, also where the result shows only a part of it."""
    run = seen_run(desk, caller, run_id)
    blobs, key = desk.context.blobs, run.result_blob
    if key is not None and blobs.size(key) is not None:
        return StreamingResponse(blobs.chunks(key), media_type="text/plain; charset=utf-8")
    if run.result is None:
        raise NotFound("the run has no output (yet)", code="no_output")
    return Response(run.result.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8")


@router.get("/runs/{run_id}/attempts", **needs_family(Scope.READ))
def attempts(run_id: Named, desk: Desk, caller: Caller) -> Response:
    """Every execution, and why it was started."""
    run = seen_run(desk, caller, run_id)
    return page(map(attempt_document, desk.context.store.attempts(run.id)))


@router.get("/runs/{run_id}/steps", **needs_family(Scope.READ))
def steps(run_id: Named, desk: Desk, caller: Caller) -> Response:
    """What the run did in steps, and what was done to it, e.g. the system step `run.requeued`."""
    run = seen_run(desk, caller, run_id)
    return page(step_document(step, run) for step in desk.context.store.steps(run.id))


@router.get("/runs/{run_id}/transcript", **needs_family(Scope.READ))
def transcript(
    run_id: Named,
    desk: Desk,
    caller: Caller,
    attempt: Annotated[int | None, Query(ge=1, le=2**31)] = None,
    form: Annotated[Literal["cast", "text"], Query(alias="format")] = "cast",
) -> Response:
    """The recording of an attempt (the last one by default): as asciicast v2, or as plain text."""
    run = seen_run(desk, caller, run_id)
    recorded = [one for one in desk.context.store.attempts(run.id) if attempt is None or one.attempt == attempt]
    key = next((one.recording_blob for one in reversed(recorded) if one.recording_blob), None)
    if key is None or desk.context.blobs.size(key) is None:
        raise NotFound("there is no recording of it (yet)", code="no_recording")
    chunks = desk.context.blobs.chunks(key)
    if form == "text":
        return StreamingResponse(desk.context.written(chunks), media_type="text/plain; charset=utf-8")
    name = f"{run.id}.cast"
    return StreamingResponse(
        chunks,
        media_type="application/x-asciicast",
        headers={"content-disposition": f'inline; filename="{name}"'},
    )


@router.post("/runs/{run_id}/cancel", status_code=202, **needs_family(Scope.RUN))
def cancel_run(run_id: Named, desk: Desk, caller: Caller, body: CancelBody | None = None) -> Response:
    """A queued run ends now, an active one is ended by its worker; of an ended one nothing changes. Its live children
    go with it."""
    context = desk.context
    found = cancel.cancel(
        context.store,
        context.broker,
        desk.epoch(),
        RunId(run_id),
        where_to_look(desk, caller, run_id),
        by=caller.by,
        kill_after=None if body is None else body.kill_after,
    )
    context.telemetry.count("oah_cancels_total", result=str(found.result))
    return answer({"id": found.run.id, "status": found.run.status, "result": found.result}, 202)


@router.patch("/runs/{run_id}", **needs(Scope.OPERATE))
def annotate(run_id: Named, body: RunChanges, desk: Desk, caller: Caller) -> Response:
    """Write an operator's note."""
    note = admission.clean(body.note, what="note", limit=desk.context.rules.note_bytes)
    return answer(run_document(desk.context.store.annotate_run(RunId(run_id), caller.workspace_id, note, by=caller.by)))
