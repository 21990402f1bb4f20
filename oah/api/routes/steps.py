"""Inside a run: /v1/runs/{id}/steps, /progress, /wait, /resume, /input

The first four are for the agent itself: they are opened by the key of its run, and by ordinary keys that may run.
"""

from __future__ import annotations

import threading
from enum import StrEnum
from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from oah.api.auth import Caller, Principal, needs, needs_run
from oah.api.render import Document, answer, step_document
from oah.api.schemas import Body, InputBody, Named, Number
from oah.api.state import ApiState, Desk
from oah.core.model.ids import RunId
from oah.core.model.run import Run
from oah.core.model.workspace import Scope
from oah.errors import Conflict, InvalidRequest
from oah.ports.steps import Inside, StepKind
from oah.services import steer
from oah.services.inside import LOOK_EVERY, Speaking, as_agent
from oah.services.questions import Answering

router = APIRouter(prefix="/v1/runs/{run_id}", tags=["steps"])


class StepState(StrEnum):
    """What is told of a step."""

    STARTED = "started"
    FINISHED = "finished"


class StepBody(Body):
    """POST /runs/{id}/steps. ``number`` names the step that is finished; without it the step begins and ends now."""

    state: StepState = StepState.STARTED
    name: str | None = None
    kind: StepKind = StepKind.STEP
    number: int | None = Field(default=None, ge=1, le=2**31 - 1)
    timeout_seconds: Number | None = None
    failed: bool = False
    data: dict[str, Any] = Field(default_factory=dict)


class ProgressBody(Body):
    """POST /runs/{id}/progress"""

    text: str | None = None
    percent: Number | None = None


class WaitBody(Body):
    """POST /runs/{id}/wait. ``children``: until no child of the run lives any more; its slot is free meanwhile."""

    reason: str | None = None
    children: bool = False
    timeout_seconds: Number | None = None


def _speaking(desk: ApiState, caller: Principal, run_id: str) -> Speaking:
    context = desk.context
    workspace_id = None if caller.fence is not None else caller.workspace_id
    inside = as_agent(Inside(RunId(run_id), workspace_id, caller.fence, by=caller.by))
    return Speaking(context.store, context.broker, context.rules, inside)


@router.post("/steps", status_code=201, **needs_run())
def step(run_id: Named, body: StepBody, desk: Desk, caller: Caller) -> Response:
    """A step of the run begins (a call of a tool or a model, or anything else), or has ended."""
    speaking = _speaking(desk, caller, run_id)
    number = body.number
    if body.state is StepState.STARTED and number is not None:
        raise InvalidRequest("a step that starts is given its number by the answer")
    if number is None:
        if body.name is None:
            raise InvalidRequest("a step needs a name")
        begun = speaking.begin(body.kind, body.name, timeout=body.timeout_seconds, data=body.data)
        if body.state is StepState.STARTED:
            return answer(step_document(begun), 201)
        number = begun.number
    return answer(step_document(speaking.end(number, failed=body.failed, data=body.data)), 201)


@router.post("/progress", status_code=202, **needs_run())
def progress(run_id: Named, body: ProgressBody, desk: Desk, caller: Caller) -> Response:
    """A sign of life, for the idle time-out; at most four a second become events."""
    told = _speaking(desk, caller, run_id).progress(body.text, body.percent)
    return answer({**_status(told.run), "event": told.event_number or None}, 202)


@router.post("/wait", status_code=202, **needs_run())
def wait(run_id: Named, body: WaitBody, desk: Desk, caller: Caller) -> Response:
    """The run waits for a person or for something outside: its slot stays occupied. With `children` it waits for its
    child runs, its slot is free, and it is `running` again when they have ended and a slot of its worker is; where
    none lives it does not wait at all."""
    reason = body.reason if body.reason is not None or not body.children else "child runs"
    if reason is None:
        raise InvalidRequest("a wait needs a reason")
    told = _speaking(desk, caller, run_id).wait(reason, timeout=body.timeout_seconds, children=body.children)
    return answer(_status(told.run), 202)


@router.post("/resume", status_code=202, **needs_run())
def resume(run_id: Named, desk: Desk, caller: Caller) -> Response:
    """What the run waited for is over."""
    return answer(_status(_speaking(desk, caller, run_id).resume().run), 202)


@router.post("/input", status_code=202, **needs(Scope.RUN))
def give_input(run_id: Named, body: InputBody, desk: Desk, caller: Caller) -> Response:
    """Answer a run that waits. What its program asks is answered by the key or the words of a choice, or by any text
    where it takes that, and the run goes on when a slot is free for it. What the run itself has said that it waits for
    is typed to its agent at once. 409 for one that does not wait."""
    answering = _answering(desk, caller, run_id)
    asked = answering.question()
    if asked is not None:
        run = answering.answer(asked, body.input, number=body.question)
        return answer({**_status(run), "delivery": "accepted", "question": body.question or asked.number}, 202)
    if body.question is not None:
        raise Conflict(f"the run does not ask question {body.question} (any more)", code="question_over")
    request = RunId(desk.context.ids.new("run"))
    pause = LOOK_EVERY.total_seconds()
    with desk.steering():
        run, delivery = _speaking(desk, caller, run_id).answer(
            body.input, request, lambda: threading.Event().wait(pause), tries=steer.PATIENCE // LOOK_EVERY
        )
    return answer({**_status(run), "delivery": delivery, "question": None}, 202)


def _answering(desk: ApiState, caller: Principal, run_id: str) -> Answering:
    context = desk.context
    inside = Inside(RunId(run_id), caller.workspace_id, by=caller.by)
    return Answering(context.store, context.broker, context.rules, inside)


def _status(run: Run) -> Document:
    return {"id": run.id, "session_id": run.session_id, "status": run.status, "attempt": run.attempt}
