"""/v1/mailboxes: make them, send to them, look into them"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import AwareDatetime
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from oah.api.auth import Caller, demand, needs, needs_mail, own_origin
from oah.api.mail import Address, Workspace, readable, sender_of, workspace_of
from oah.api.mail_render import BYTES, about_message, mailbox_document, message_document, payload_answer, sent_document
from oah.api.posting import declared_json, outgoing, request_body, span
from oah.api.render import answer, page
from oah.api.schemas import Body, Cursor, Limit, Number
from oah.api.state import ApiState, Desk
from oah.core.model.workspace import Scope
from oah.errors import NotFound, RequestError
from oah.ports.mailboxes import Outgoing, Sent
from oah.services.post import LONGEST_WORD

router = APIRouter(prefix="/v1/mailboxes", tags=["mailboxes"])

LAST = 2**62

Seq = Annotated[int, Path(ge=1, le=LAST)]
Word = Annotated[str | None, Query(max_length=LONGEST_WORD)]


SENDING = needs_mail(Scope.RUN)
SENDING["openapi_extra"]["requestBody"] = request_body()


class MailboxBody(Body):
    """POST /mailboxes. With an `address` it is public, without it is private and given one that nobody can guess."""

    address: str | None = None
    ttl_seconds: Number | None = None
    description: str = ""


@router.post("", status_code=201, **needs_mail(Scope.RUN))
def create_mailbox(body: MailboxBody, desk: Desk, caller: Caller, workspace: Workspace = None) -> Response:
    """A mailbox, public under a chosen address or private. One that is there stays as it is: 200, `new` false."""
    made = desk.context.post.create(
        workspace_of(desk, caller, workspace),
        address=body.address,
        public=body.address is not None,
        ttl=span(body.ttl_seconds, "ttl_seconds"),
        description=body.description,
    )
    headers = {"location": f"/v1/mailboxes/{made.mailbox.address}", "cache-control": "no-store"}
    return answer({**mailbox_document(made.mailbox), "new": made.new}, 201 if made.new else 200, headers)


@router.get("", **needs_mail(Scope.READ))
def list_mailboxes(
    desk: Desk,
    caller: Caller,
    *,
    workspace: Workspace = None,
    private: Annotated[bool, Query()] = False,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Public mailboxes, by address; with `private=true` also those with secret addresses (scope `operate`)."""
    if private:
        demand(caller, Scope.OPERATE)
    found = desk.context.post.mailboxes(
        workspace_of(desk, caller, workspace), cursor=cursor, limit=limit, public=not private
    )
    return page(map(mailbox_document, found.items), found.next_cursor)


@router.get("/{address}", **needs_mail(Scope.READ))
def show_mailbox(address: Address, desk: Desk, caller: Caller, workspace: Workspace = None) -> Response:
    """One mailbox. 404 `mailbox_not_found`, or `mailbox_expired` as long as its end is remembered."""
    return answer(mailbox_document(readable(desk, caller, workspace, address)))


@router.delete("/{address}", **needs(Scope.RUN))
def delete_mailbox(address: Address, desk: Desk, caller: Caller, workspace: Workspace = None) -> Response:
    """Delete a mailbox with its messages; who reads it is told. 409 for a session's."""
    where = workspace_of(desk, caller, workspace)
    if not desk.context.post.delete_mailbox(where, address):
        raise NotFound(f"no mailbox '{address}'", code="mailbox_not_found")
    return answer({"address": address, "deleted": True})


@router.post("/{address}/messages", status_code=201, **SENDING)
async def send_message(
    address: Address, request: Request, desk: Desk, caller: Caller, workspace: Workspace = None
) -> Response:
    """Store a message. As JSON, or the payload itself as the body (any other content type) with `OAH-Priority`,
    `OAH-TTL-Seconds`, `OAH-Delay-Seconds`, `OAH-Key`, `OAH-Tags` and `OAH-Header-NAME`. Repeated under the same
    `Idempotency-Key` it is answered by the first one (200). 413, 429 `mailbox_full`."""
    if not declared_json(request):
        # JSON a page of another origin cannot send without asking us first; everything else it can.
        own_origin(request, desk.context.auth)
    where = await run_in_threadpool(workspace_of, desk, caller, workspace)
    letter = await outgoing(request, where, address, sender_of(caller))
    sent = await run_in_threadpool(_sent, desk, letter)
    headers = {"idempotent-replayed": "true"} if sent.duplicate else {}
    if sent.seq is not None:
        headers["location"] = f"/v1/mailboxes/{address}/messages/{sent.seq}"
    return answer(sent_document(address, sent), 200 if sent.duplicate else 201, headers)


def _sent(desk: ApiState, letter: Outgoing) -> Sent:
    [found] = desk.context.post.send([letter])
    if isinstance(found, RequestError):
        raise found
    return found


@router.get("/{address}/messages", **needs_mail(Scope.READ))
def list_messages(
    address: Address,
    desk: Desk,
    caller: Caller,
    *,
    workspace: Workspace = None,
    key: Word = None,
    tag: Word = None,
    since: Annotated[AwareDatetime | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """What is in it, in the order in which it is read, without payloads; it disturbs nobody."""
    mailbox = readable(desk, caller, workspace, address)
    found = desk.context.post.listing(mailbox.id, cursor=cursor, limit=limit, key=key, tag=tag, since=since)
    return page(map(about_message, found.items), found.next_cursor)


@router.delete("/{address}/messages", **needs(Scope.RUN))
def purge_mailbox(address: Address, desk: Desk, caller: Caller, workspace: Workspace = None) -> Response:
    """Delete all messages, delayed ones too; the mailbox stays. 409 for a session's."""
    mailbox = readable(desk, caller, workspace, address)
    return answer({"address": address, "deleted": desk.context.post.purge(mailbox.id)})


@router.get("/{address}/messages/{seq}", **needs_mail(Scope.READ))
def read_message(
    address: Address, seq: Seq, request: Request, desk: Desk, caller: Caller, workspace: Workspace = None
) -> Response:
    """One message, whole; it stays. With `Accept: application/octet-stream` its payload as it was sent, and the rest
    in headers."""
    mailbox = readable(desk, caller, workspace, address)
    message = desk.context.post.peek(mailbox.id, seq)
    if BYTES in request.headers.get("accept", ""):
        return payload_answer(message)
    return answer(message_document(message))


@router.delete("/{address}/messages/{seq}", **needs_mail(Scope.RUN))
def delete_message(address: Address, seq: Seq, desk: Desk, caller: Caller, workspace: Workspace = None) -> Response:
    """Delete one message for everybody; `deleted` says whether there was something to delete."""
    mailbox = readable(desk, caller, workspace, address)
    return answer({"address": address, "seq": seq, "deleted": desk.context.post.delete(mailbox.id, seq)})
