"""/v1/dead-letters: what failed finally, and what to do about it."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, Field
from starlette.responses import Response

from oah.api.auth import Caller, Principal, needs
from oah.api.render import Document, answer, moment, page
from oah.api.schemas import Body, Cursor, Filter, Limit, Named
from oah.api.state import ApiState, Desk
from oah.core.model.ids import SessionId
from oah.core.model.workspace import Scope
from oah.errors import InvalidRequest
from oah.ports.dead_letters import NO_WORKSPACE, DeadLetter, LetterDone, LetterFilter, LetterKind, LetterState
from oah.ports.jobs import Job
from oah.services import workspaces
from oah.services.redrive import MOST, Act, Done, ManageLetters

router = APIRouter(prefix="/v1", tags=["dead letters"])

Since = AwareDatetime | None
TEXT_SHOWN = 64 * 1024
"""Bytes of an unreadable value that are also shown as text."""


class LetterFilterBody(Body):
    """Which letters; what is absent restricts nothing."""

    workspace: str | None = None
    kind: LetterKind | None = None
    session: str | None = None
    code: str | None = None
    since: Since = None
    state: LetterState | None = None


class RedriveBody(Body):
    """POST /dead-letters/redrive: ids, or a filter ({} = all that are dead)."""

    ids: list[str] | None = Field(default=None, max_length=MOST)
    filter: LetterFilterBody | None = None
    dry_run: bool = False


@router.get("/dead-letters", **needs(Scope.READ))
def listing(
    desk: Desk,
    caller: Caller,
    workspace: Filter = None,
    kind: LetterKind | None = None,
    session: Filter = None,
    code: Filter = None,
    since: Since = None,
    state: LetterState | None = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Dead letters without their payloads, those that died last first."""
    asked = LetterFilterBody(workspace=workspace, kind=kind, session=session, code=code, since=since, state=state)
    found = desk.context.store.dead_letters(replace(_where(desk, caller, asked), cursor=cursor, limit=limit))
    return page(map(letter_document, found.items), found.next_cursor)


@router.get("/dead-letters/{dead_letter}", **needs(Scope.READ))
def show(dead_letter: Named, desk: Desk, caller: Caller) -> Response:
    """One letter, whole."""
    return answer(whole_document(desk.context.store.dead_letter(dead_letter, caller.workspace_id)))


@router.post("/dead-letters/redrive", **needs(Scope.OPERATE))
def redrive(body: RedriveBody, desk: Desk, caller: Caller) -> Response:
    """Let what they are about go on: a run is queued again as itself. Many at a time become a job (202)."""
    if (body.ids is None) == (body.filter is None):
        raise InvalidRequest("give ids or a filter", hint='{"ids": [...]} or {"filter": {...}}; {} is all')
    which: list[str] | LetterFilter
    if body.filter is not None:
        which = replace(_where(desk, caller, body.filter), state=body.filter.state or LetterState.DEAD)
    else:
        which = body.ids or []
    return _handle(desk, caller, Act.REDRIVE, which, dry_run=body.dry_run)


@router.delete("/dead-letters", **needs(Scope.OPERATE))
def purge(
    desk: Desk,
    caller: Caller,
    ids: Annotated[list[str] | None, Query(alias="id", max_length=500)] = None,
    workspace: Filter = None,
    kind: LetterKind | None = None,
    session: Filter = None,
    code: Filter = None,
    since: Since = None,
    state: LetterState | None = None,
    everything: Annotated[bool, Query(alias="all")] = False,  # noqa: FBT002 - a query parameter is named by its alias
    dry_run: bool = False,  # noqa: FBT001, FBT002
) -> Response:
    """Delete letters by id, or by a filter (`all=true` for one that restricts nothing). Many at a time become a job."""
    asked = LetterFilterBody(workspace=workspace, kind=kind, session=session, code=code, since=since, state=state)
    restricts = bool(asked.model_dump(exclude_none=True))
    if ids is not None and restricts:
        raise InvalidRequest("give ids or a filter, not both")
    if ids is None and not restricts and not everything:
        raise InvalidRequest("nothing says which letters", hint="id=…, a filter, or all=true")
    which = ids if ids is not None else _where(desk, caller, asked)
    return _handle(desk, caller, Act.PURGE, which, dry_run=dry_run)


def _where(desk: ApiState, caller: Principal, asked: LetterFilterBody) -> LetterFilter:
    store = desk.context.store
    return LetterFilter(
        workspace_id=caller.workspace_id
        if asked.workspace is None
        else workspaces.resolve(store, asked.workspace, caller.workspace_id),
        kind=asked.kind,
        session_id=None if asked.session is None else SessionId(asked.session),
        code=asked.code,
        since=asked.since,
        state=asked.state,
    )


def _handle(desk: ApiState, caller: Principal, act: Act, which: list[str] | LetterFilter, *, dry_run: bool) -> Response:
    context = desk.context
    manage = ManageLetters(context.store, context.broker, context.jobs, context.ids)
    done = manage(act, which, caller.workspace_id, epoch=desk.epoch, by=caller.by, dry_run=dry_run)
    return answer(_done_document(act, done, dry_run=dry_run), 200 if done.job is None else 202)


def _done_document(act: Act, done: Done, *, dry_run: bool) -> Document:
    failed = sum(each.code is not None for each in done.items)
    return {
        "dry_run": dry_run,
        "done": len(done.items) - failed,
        "failed": failed,
        "items": [_item(act, each) for each in done.items],
        "job": None if done.job is None else _job(done.job),
        "more": done.more,
    }


def _item(act: Act, each: LetterDone) -> Document:
    outcome = {Act.REDRIVE: "redriven", Act.PURGE: "purged"}[act]
    return {
        "id": each.id,
        "kind": each.kind,
        "outcome": outcome if each.code is None else "refused",
        "run_id": None if each.accepted is None else each.accepted.run.id,
        "error": None if each.code is None else {"code": each.code, "message": each.message, "hint": each.hint},
    }


def _job(job: Job) -> Document:
    return {"id": job.id, "kind": job.kind, "state": job.state, "total": job.total}


def letter_document(letter: DeadLetter) -> Document:
    """A letter in a list. Poison belongs to no workspace."""
    return {
        "id": letter.id,
        "workspace_id": None if letter.workspace_id == NO_WORKSPACE else letter.workspace_id,
        "kind": letter.kind,
        "state": letter.state,
        "subject": letter.subject,
        "session_id": letter.session_id,
        "code": letter.code,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "first_at": moment(letter.first_at),
        "last_at": moment(letter.last_at),
        "redriven_at": moment(letter.redriven_at),
        "redriven_by": letter.redriven_by,
        "note": letter.note,
    }


def whole_document(letter: DeadLetter) -> Document:
    """With its payload; bytes in base64, and as text as far as they are."""
    document: dict[str, Any] = {**letter_document(letter), "payload": dict(letter.payload), "bytes": None, "text": None}
    if letter.payload_bytes is not None:
        document["bytes"] = base64.b64encode(letter.payload_bytes).decode()
        document["text"] = letter.payload_bytes[:TEXT_SHOWN].decode("utf-8", "backslashreplace")
    return document
