"""/v1/sessions/{session_id}/messages: for the agent of a session, and what became of it; wakes"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header
from pydantic import Field
from starlette.responses import Response

from oah.api.auth import Caller, Principal, demand, needs, needs_mail
from oah.api.mail import sender_of, workspace_of
from oah.api.posting import span
from oah.api.render import Document, answer, json_bytes, moment
from oah.api.schemas import Body, Cursor, Limit, Named, Number
from oah.api.state import ApiState, Desk
from oah.core.model.event import Event, EventType
from oah.core.model.ids import MessageId, SessionId
from oah.core.model.message import AgentMessage, MessageMode, MessageState, priority_of
from oah.core.model.session import Session
from oah.core.model.workspace import Scope
from oah.errors import InvalidRequest, NotFound, RequestError
from oah.ports.mailboxes import ForAgent, Outgoing, Sent
from oah.ports.messages import MessageFilter
from oah.services import steer, wake

router = APIRouter(prefix="/v1/sessions", tags=["messages"])

LAST = 2**62
IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key")]


class AgentMessageBody(Body):
    """POST /sessions/{id}/messages. ``callback``: a webhook of the workspace that is told of each later change."""

    text: str
    mode: MessageMode = MessageMode.WAIT
    priority: str | None = None
    ttl_seconds: Number | None = None
    delay_seconds: Number | None = None
    callback: str | None = None


class AckBody(Body):
    """POST /sessions/{id}/messages/ack"""

    up_to: int = Field(ge=0, le=LAST)


@router.post("/{session_id}/messages", status_code=202, **needs_mail(Scope.RUN))
def send(session_id: Named, body: AgentMessageBody, desk: Desk, caller: Caller, key: IdempotencyKey = None) -> Response:
    """A message for the session's agent: when this is answered, it is stored. The answer says how far it has come; with
    `mode=steer` it waits for what the terminal shows. The key of a run may send, not make runs."""
    session = _session(desk, caller, session_id)
    if body.mode is MessageMode.RUN:
        demand(caller, Scope.RUN)
    if body.callback is not None:
        desk.context.store.webhook(body.callback, session.workspace_id)
    sender = sender_of(caller)
    letter = Outgoing(
        workspace_id=session.workspace_id,
        address=session.id,
        payload=_bytes(body.text),
        priority=priority_of(body.priority),
        sender=sender.by,
        dedup_key=key,
        ttl=span(body.ttl_seconds, "ttl_seconds"),
        delay=span(body.delay_seconds, "delay_seconds"),
        for_agent=ForAgent(mode=body.mode, sender=sender, callback=body.callback),
    )
    [sent] = desk.context.post.send([letter])
    if isinstance(sent, RequestError):
        raise sent
    headers = {"location": f"/v1/sessions/{session.id}/messages/{sent.message_id}"}
    if sent.duplicate:
        headers["idempotent-replayed"] = "true"
    if sent.look is not None and not sent.duplicate:
        with desk.steering():
            _await_answer(desk, sent, session.id)
    found = desk.context.store.agent_message(sent.message_id, None)
    document = message_document(found, whole=False)
    return answer({**document, "wake_run_id": None if sent.wake is None else sent.wake.run.id}, 202, headers)


def _await_answer(desk: ApiState, sent: Sent, session_id: SessionId) -> None:
    """Until the worker has said it, or cannot, or patience is at its end."""

    def about_it(event: Event) -> bool:
        return event.type == EventType.RUN_STEERED and event.data.get("message_id") == sent.message_id

    with desk.waiters.waiting(session_id, about_it) as waiter:
        desk.streams.tailer.tail(session_id, sent.event_number)
        try:
            waiter.wait(steer.PATIENCE)
        finally:
            desk.streams.tailer.leave(session_id)


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("the text has a lone surrogate", code="not_text") from None


@router.get("/{session_id}/messages", **needs_mail(Scope.READ))
def listing(
    session_id: Named,
    desk: Desk,
    caller: Caller,
    state: MessageState | None = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Messages for the session's agent, newest first, without their texts; how far they have come. The key of a run
    sees those of its own session."""
    session = _own(desk, caller, session_id)
    store = desk.context.store
    found = store.agent_messages(MessageFilter(session_id=session.id, state=state, cursor=cursor, limit=limit))
    cursors = store.cursors(session.id)
    document = {
        "items": [message_document(each, whole=False) for each in found.items],
        "next_cursor": found.next_cursor,
        "cursors": {"received": cursors.received, "acked": cursors.acked, "last": cursors.last},
    }
    return Response(json_bytes(document), media_type="application/json")


@router.get("/{session_id}/messages/{message_id}", **needs_mail(Scope.READ))
def show(session_id: Named, message_id: Named, desk: Desk, caller: Caller) -> Response:
    """One message, whole."""
    session = _own(desk, caller, session_id)
    found = desk.context.store.agent_message(MessageId(message_id), None)
    if found.session_id != session.id:
        raise NotFound(f"no message {message_id} for session {session.id}")
    return answer(message_document(found, whole=True))


@router.post("/{session_id}/messages/ack", **needs_mail(Scope.RUN))
def ack(session_id: Named, body: AckBody, desk: Desk, caller: Caller) -> Response:
    """The agent has everything up to a number: cumulative; what was never delivered is not skipped. With the key of the
    session's own run."""
    session = _own(desk, caller, session_id)
    cursors, number = desk.context.store.ack_messages(session.id, up_to=body.up_to, by=caller.by)
    if number:
        desk.context.broker.publish([(session.id, number)])
    return answer({"received": cursors.received, "acked": cursors.acked, "last": cursors.last})


@router.post("/{session_id}/wake", status_code=202, **needs(Scope.RUN))
def wake_up(session_id: Named, desk: Desk, caller: Caller) -> Response:
    """Start the agent for the messages that wait, whatever failed before; also where the session is lazy."""
    context = desk.context
    woken = wake.wake(
        context.store, context.broker, desk.epoch(), SessionId(session_id), caller.workspace_id, by=caller.by
    )
    document = {
        "session_id": woken.session_id,
        "mode": woken.mode,
        "waiting": woken.waiting,
        "run_id": woken.run_id,
        "why_not": woken.why_not,
    }
    return answer(document, 202)


def _session(desk: ApiState, caller: Principal, session_id: str) -> Session:
    own = None if caller.admin and caller.fence is None else workspace_of(desk, caller, None)
    return desk.context.store.session(SessionId(session_id), own)


def _own(desk: ApiState, caller: Principal, session_id: str) -> Session:
    """Of a run's key its own session alone."""
    if caller.fence is not None and caller.fence.session_id != session_id:
        raise NotFound(f"no session {session_id}")
    return _session(desk, caller, session_id)


def message_document(message: AgentMessage, *, whole: bool) -> Document:
    """A message for an agent. ``whole``: with its text."""
    document: Document = {
        "id": message.message_id,
        "session_id": message.session_id,
        "seq": message.seq,
        "mode": message.mode,
        "state": message.state,
        "outcome": message.outcome,
        "delivery_id": message.delivery_id,
        "attempts": message.attempts,
        "redelivered": message.redelivered,
        "reason": message.reason,
        "sender": {
            "by": message.sender.by,
            "session_id": message.sender.session_id,
            "run_id": message.sender.run_id,
        },
        "run_id": message.run_id,
        "callback": message.callback,
        "created_at": moment(message.created_at),
        "delivered_at": moment(message.delivered_at),
        "expires_at": moment(message.expires_at),
        "ended_at": moment(message.ended_at),
    }
    if whole:
        document |= {"text": message.payload.decode("utf-8", "replace"), "priority": message.priority.word}
    return document
