"""/v1/mailboxes/…/subscribe, /receive and /leases: all of a mailbox for everybody, or shared out in groups"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from oah.api.auth import Caller, Principal, needs_mail
from oah.api.mail import Address, Workspace, holder_of, most_readers, permission, readable, workspace_of
from oah.api.mail_render import BYTES, leased_document, payload_answer, position_of
from oah.api.posting import span
from oah.api.render import answer, seconds
from oah.api.schemas import Body, Named, Number
from oah.api.state import ApiState, Desk
from oah.api.subscriptions import Reading, Receiving
from oah.core.model.mailbox import Mailbox
from oah.core.model.message import Priority, priority_of
from oah.core.model.workspace import Scope
from oah.errors import Conflict, InvalidRequest, NotFound
from oah.ports.mailboxes import Leased, Watermarks
from oah.services.post import LONGEST_WORD

router = APIRouter(prefix="/v1/mailboxes", tags=["mailboxes"])

LONGEST_WAIT = 60
MOST_AT_ONCE = 100
LONGEST_HOLDER = 64

LastEventId = Annotated[str | None, Header(alias="Last-Event-ID")]
KeepAlive = Annotated[int | None, Query(ge=1, le=60, description="seconds between comments on an idle stream")]
Words = Annotated[list[str] | None, Query(max_length=len(Priority))]


class ReceiveBody(Body):
    """POST /mailboxes/{address}/receive. `holder`: a name of the member, to prolong its leases by."""

    group: str = Field(default="default", min_length=1, max_length=LONGEST_WORD)
    limit: int = Field(default=1, ge=1, le=MOST_AT_ONCE)
    wait_seconds: Number = Field(default=0, ge=0, le=LONGEST_WAIT)
    holder: str | None = Field(default=None, min_length=1, max_length=LONGEST_HOLDER)
    priorities: list[str] | None = Field(default=None, max_length=len(Priority))


class NackBody(Body):
    """POST /mailboxes/leases/{lease}/nack"""

    delay_seconds: Number = Field(default=0, ge=0)


class HolderBody(Body):
    """POST /mailboxes/leases/extend"""

    holder: str = Field(min_length=1, max_length=LONGEST_HOLDER)


@router.get("/{address}/subscribe", **needs_mail(Scope.READ))
async def subscribe(
    address: Address,
    desk: Desk,
    caller: Caller,
    *,
    workspace: Workspace = None,
    priority: Words = None,
    after: Annotated[str | None, Query(max_length=256)] = None,
    last_event_id: LastEventId = None,
    keep_alive: KeepAlive = None,
) -> Response:
    """Every message that is there, then each as it comes (SSE). `Last-Event-ID`, or `after`, goes on where it was; an
    event `gone` ends the stream when the mailbox has expired or was deleted."""
    mailbox = await run_in_threadpool(readable, desk, caller, workspace, address)
    asked = last_event_id if last_event_id is not None and last_event_id.strip() else after
    had = position_of(asked, mailbox.id)
    if had is None:
        raise InvalidRequest("Last-Event-ID is no position in a mailbox")
    pause = desk.context.keep_alive if keep_alive is None else timedelta(seconds=keep_alive)
    reading = _reading(desk, caller, mailbox, had=had, priorities=_priorities(priority), keep_alive=pause)
    desk.bells.admits(reading.by, most=reading.most)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(desk.subscriptions.open(reading), media_type="text/event-stream", headers=headers)


@router.post("/{address}/receive", **needs_mail(Scope.RUN))
async def receive(
    address: Address, body: ReceiveBody, request: Request, desk: Desk, caller: Caller, workspace: Workspace = None
) -> Response:
    """The next messages that nobody of the group has, each under a lease: acknowledge it, or delete the message,
    before the lease ends, or another member gets it. Waits up to `wait_seconds` (60 at most) for the first one. With
    `Accept: application/octet-stream` one message's payload, its lease in `OAH-Lease-Id`; 204 when there is none."""
    raw = BYTES in request.headers.get("accept", "")
    if raw and body.limit != 1:
        raise InvalidRequest("as plain bytes there is one message at a time", hint="leave limit out, or ask for JSON")
    mailbox = await run_in_threadpool(readable, desk, caller, workspace, address)
    priorities = _priorities(body.priorities)
    context = desk.context
    holder = holder_of(mailbox.workspace_id, body.holder or context.ids.nonce())
    reading = _reading(desk, caller, mailbox, had=Watermarks(), priorities=priorities, keep_alive=context.keep_alive)

    def take() -> list[Leased]:
        return context.post.receive(mailbox.id, body.group, holder, limit=body.limit, priorities=priorities)

    if not body.wait_seconds:
        taken = await run_in_threadpool(take)
    else:
        wait = timedelta(seconds=body.wait_seconds)
        receiving = Receiving(desk.bells, context.clock, reading, body.group)
        taken = await receiving.first(take, wait=wait, hung_up=lambda: _hung_up(request))
    if taken and await request.is_disconnected():
        await run_in_threadpool(_put_back, desk, mailbox, taken)
    if raw:
        return payload_answer(taken[0].message, taken[0]) if taken else Response(status_code=204)
    document = {
        "items": [leased_document(one) for one in taken],
        "group": body.group,
        "lease_seconds": seconds(context.post.rules.lease),
    }
    return answer(document, headers={"cache-control": "no-store"})


@router.post("/leases/extend", **needs_mail(Scope.RUN))
def extend(body: HolderBody, desk: Desk, caller: Caller, workspace: Workspace = None) -> Response:
    """What a holder has is its for another lease. `extended`: how many messages that are; 0 when all were over."""
    holder = holder_of(workspace_of(desk, caller, workspace), body.holder)
    post = desk.context.post
    return answer({"extended": post.extend(holder), "lease_seconds": seconds(post.rules.lease)})


@router.post("/leases/{lease_id}/ack", **needs_mail(Scope.RUN))
def ack(lease_id: Named, desk: Desk, caller: Caller) -> Response:
    """The group is done with the message. 404 or 409 when the lease is over: another member may have it by now."""
    return _settled(desk, caller, lease_id, ack=True)


@router.post("/leases/{lease_id}/nack", **needs_mail(Scope.RUN))
def nack(lease_id: Named, desk: Desk, caller: Caller, body: NackBody | None = None) -> Response:
    """Give the message back, for the next member, after `delay_seconds`."""
    delay = span(body.delay_seconds if body else 0, "delay_seconds") or timedelta(0)
    return _settled(desk, caller, lease_id, ack=False, delay=delay)


def _settled(
    desk: ApiState, caller: Principal, lease_id: str, *, ack: bool, delay: timedelta = timedelta(0)
) -> Response:
    mailbox = desk.context.post.leased_mailbox(lease_id)
    own = caller.workspace_id if caller.fence is None else workspace_of(desk, caller, None)
    if own is not None and mailbox.workspace_id != own:
        raise NotFound(f"no lease {lease_id}", code="lease_not_found")
    if not desk.context.post.settle(mailbox.id, lease_id, ack=ack, delay=delay):
        raise Conflict(
            "the lease is over: another member may have the message", code="lease_over", hint="receive it again"
        )
    return answer({"lease_id": lease_id, "address": mailbox.address, "settled": "ack" if ack else "nack"})


def _put_back(desk: ApiState, mailbox: Mailbox, taken: list[Leased]) -> None:
    for leased in taken:
        desk.context.post.settle(mailbox.id, leased.lease_id, ack=False, untried=True)


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _priorities(words: list[str] | None) -> tuple[Priority, ...]:
    return tuple(sorted({priority_of(word) for word in words})) if words else tuple(Priority)


def _reading(
    desk: ApiState,
    caller: Principal,
    mailbox: Mailbox,
    *,
    had: Watermarks,
    priorities: tuple[Priority, ...],
    keep_alive: timedelta,
) -> Reading:
    return Reading(
        mailbox=mailbox,
        by=caller.by,
        most=most_readers(caller),
        had=had,
        priorities=priorities,
        keep_alive=keep_alive,
        allowed=permission(desk, caller),
    )
