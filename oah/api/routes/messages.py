"""/v1/messages: one message, wherever it was sent"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from oah.api.auth import Caller, needs
from oah.api.mail_render import trace_document
from oah.api.render import answer
from oah.api.schemas import Named
from oah.api.state import Desk
from oah.core.model.ids import MessageId
from oah.core.model.workspace import Scope

router = APIRouter(prefix="/v1/messages", tags=["messages"])


@router.get("/{message_id}/trace", **needs(Scope.READ))
def trace_message(message_id: Named, desk: Desk, caller: Caller) -> Response:
    """Where a message has been: every hop with its time, and what the queue groups did with it. What was deleted from
    a mailbox leaves no trace; messages for agents do, until retention takes them."""
    found = desk.context.store.trace_message(MessageId(message_id), caller.workspace_id)
    return answer(trace_document(found))
