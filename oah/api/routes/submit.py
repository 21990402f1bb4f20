"""Giving work to a session: one run or many, and what becomes of a session that is busy."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header
from pydantic import ValidationError
from starlette.responses import Response

from oah.api import problems
from oah.api.auth import Caller, Principal, needs_family
from oah.api.family import lineage
from oah.api.render import Document, answer, receipt_document
from oah.api.schemas import BatchBody, BatchItem, Named, RunBody
from oah.api.schemas import session_id as parse_session_id
from oah.api.state import ApiState, Desk
from oah.core.model.event import Event, EventType
from oah.core.model.ids import RunId
from oah.core.model.run import OnBusy
from oah.core.model.workspace import Scope
from oah.errors import Conflict, InvalidRequest, PayloadTooLarge, RequestError
from oah.ports.commands import Delivery
from oah.ports.store import Accepted, NewRun
from oah.services import interrupt, steer
from oah.services.submit import prepare

router = APIRouter(prefix="/v1", tags=["runs"])

IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key")]


@router.post("/sessions/{session_id}/runs", status_code=202, **needs_family(Scope.RUN))
def submit(session_id: Named, body: RunBody, desk: Desk, caller: Caller, key: IdempotencyKey = None) -> Response:
    """Accept a run: when this is answered, its row is committed. With `on_busy=steer` the text may be said into the
    session's live run instead. With the key of a run it is a child of that run, in a session that the run has
    opened."""
    new = _prepare(desk, caller, body, session_id, key)
    if new.on_busy is OnBusy.STEER:
        with desk.steering():
            return _steer(desk, new)
    return _answer(_accept(desk, new), {})


def _steer(desk: ApiState, new: NewRun) -> Response:
    accepted = _accept(desk, new)
    if accepted.steer is not None:
        delivery = _say(desk, accepted, accepted.steer)
        if not accepted.replayed:
            desk.context.telemetry.count("oah_steers_total", delivery=str(delivery))
        if delivery is Delivery.UNSUPPORTED:
            raise steer.refusal(new.session_id)
        if delivery is not Delivery.MISSED:
            return _answer(accepted, {"run_id": accepted.run.id, "delivery": delivery})
        accepted = _run_instead(desk, new, accepted.steer)
    return _answer(accepted, {"run_id": accepted.run.id, "delivery": "queued"})


def _answer(accepted: Accepted, extra: Document) -> Response:
    headers = {"location": f"/v1/runs/{accepted.run.id}"}
    if accepted.replayed:
        headers["idempotent-replayed"] = "true"
    return answer({**receipt_document(accepted), **extra}, 202, headers)


def _accept(desk: ApiState, new: NewRun) -> Accepted:
    [accepted] = desk.batches.submit([new])
    if isinstance(accepted, RequestError):
        desk.context.telemetry.count("oah_submits_refused_total", code=accepted.code)
        raise accepted
    if new.on_busy.stops:
        _make_way(desk, new, accepted)
    return accepted


def _make_way(desk: ApiState, new: NewRun, accepted: Accepted) -> None:
    interrupt.make_way(desk.context.store, desk.context.broker, desk.epoch(), new, accepted)
    if accepted.stopped is not None and not accepted.replayed:
        desk.context.telemetry.count("oah_runs_stopped_total", on_busy=str(new.on_busy))


def _say(desk: ApiState, accepted: Accepted, request: RunId) -> Delivery:
    """What became of the text: known at once when it was asked before, else when the worker's event comes."""
    context, session_id = desk.context, accepted.run.session_id

    def about_it(event: Event) -> bool:
        return event.type == EventType.RUN_STEERED and event.data.get("request_id") == request

    number = steer.call(context.store, context.broker, accepted)
    with desk.waiters.waiting(session_id, about_it) as waiter:
        desk.streams.tailer.tail(session_id, number)
        try:
            delivery = steer.answer(context.store, request)
            if delivery is None:
                waiter.wait(steer.PATIENCE)
        finally:
            desk.streams.tailer.leave(session_id)
    return delivery or steer.last_answer(context.store, request)


def _run_instead(desk: ApiState, new: NewRun, request: RunId) -> Accepted:
    """The live run was over before it could be said: the text becomes a run, once."""
    try:
        return _accept(desk, steer.instead(new, request))
    except Conflict:
        run = desk.context.store.run(request, new.workspace_id)  # a repetition of this request was faster
        session = desk.context.store.session(run.session_id, None)
        return steer.made_before(run, session)


def _prepare(desk: ApiState, caller: Principal, body: RunBody, session_id: str, key: str | None) -> NewRun:
    context = desk.context
    judged = partial(prepare, context.store, context.clock, context.ids, rules=context.rules, by=caller.by)
    if caller.fence is None:
        asked = body.asked(session_id, key)
        return judged(asked, workspace_id=caller.workspace_id or desk.workspace_of(asked.session_id))
    below = lineage(desk, caller.fence)
    own = body.model_copy(update={"parent_run_id": body.parent_run_id or caller.fence.run_id})
    return judged(below.adopt(own.asked(session_id, key)), workspace_id=below.workspace_id, parent=below.parent)


@router.post("/runs:batch", status_code=202, **needs_family(Scope.RUN))
def submit_many(body: BatchBody, desk: Desk, caller: Caller) -> Response:
    """Accept many runs; each item is answered by its run or by its problem, in the order given."""
    if len(body.items) > desk.context.batch_runs:
        raise PayloadTooLarge(f"a batch has at most {desk.context.batch_runs} runs", code="batch_too_large")
    prepared = [_item(desk, caller, item) for item in body.items]
    news = [one for one in prepared if isinstance(one, NewRun)]
    accepted = desk.batches.submit(news)
    for new, one in zip(news, accepted, strict=True):
        if isinstance(one, Accepted) and new.on_busy.stops:
            _make_way(desk, new, one)
    answers = iter(accepted)
    results = [next(answers) if isinstance(one, NewRun) else one for one in prepared]
    return answer({"items": [_result(index, one) for index, one in enumerate(results)]}, 202)


def _item(desk: ApiState, caller: Principal, item: dict[str, Any]) -> NewRun | RequestError:
    try:
        parsed = BatchItem.model_validate(item)
        if parsed.on_busy is OnBusy.STEER:
            return InvalidRequest("a text is said on its own, not in a batch", code="on_busy_unsupported")
        return _prepare(desk, caller, parsed, parse_session_id(parsed.session_id), parsed.idempotency_key)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        return InvalidRequest(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}")
    except RequestError as error:
        return error


def _result(index: int, one: Accepted | RequestError) -> Document:
    if isinstance(one, RequestError):
        return {"index": index, "error": problems.member(one)}
    return {"index": index, **receipt_document(one), "replayed": one.replayed}
