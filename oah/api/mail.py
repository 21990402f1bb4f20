"""What the routes of mailboxes share: whose mailbox is spoken of, and what an agent may do with it.

The address is the key of a mailbox: who knows it may send, read and take. A session's mailbox is for its own agent: in
the eyes of other agents it can be sent to and nothing else.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import Path
from pydantic import AfterValidator

from oah.api.auth import Principal
from oah.api.bells import MOST_OF_ONE, MOST_OF_RUN
from oah.api.schemas import Filter
from oah.api.state import ApiState
from oah.api.subscriptions import Allowed, always, until_over
from oah.core.model.ids import WorkspaceId
from oah.core.model.mailbox import LONGEST_ADDRESS, Mailbox
from oah.core.model.message import Sender
from oah.errors import NotFound
from oah.services import workspaces


def _address(text: str) -> str:
    """What cannot be an address is the address of nothing."""
    if not 0 < len(text) <= LONGEST_ADDRESS or not all(c.isascii() and (c.isalnum() or c in "._-") for c in text):
        raise NotFound("there is no mailbox of that address", code="mailbox_not_found")
    return text


Address = Annotated[str, Path(), AfterValidator(_address)]
Workspace = Filter
"""Name or id; only a key of all workspaces needs it."""


def workspace_of(desk: ApiState, caller: Principal, named: str | None) -> WorkspaceId:
    """The workspace whose mailboxes are meant. Raises NotFound."""
    own = caller.workspace_id
    if caller.fence is not None:
        own = desk.workspace_of(caller.fence.session_id)
    return workspaces.resolve(desk.context.store, named, own)


def readable(desk: ApiState, caller: Principal, named: str | None, address: str) -> Mailbox:
    """A mailbox that the caller may read. Raises NotFound."""
    mailbox = desk.context.post.mailbox(workspace_of(desk, caller, named), address)
    fence = caller.fence
    if fence is not None and mailbox.session_id is not None and mailbox.session_id != fence.session_id:
        raise NotFound(f"no mailbox '{address}'", code="mailbox_not_found")
    return mailbox


def sender_of(caller: Principal) -> Sender:
    """Who sends, as far as we know it ourselves."""
    fence = caller.fence
    return (
        Sender(by=caller.by)
        if fence is None
        else Sender(by=caller.by, session_id=fence.session_id, run_id=fence.run_id)
    )


def permission(desk: ApiState, caller: Principal) -> Allowed:
    """Asked while somebody reads on and on."""
    fence, store = caller.fence, desk.context.store
    if fence is not None:
        return until_over(lambda: store.active_fence(fence.run_id) == fence)
    return always if caller.key is None else partial(desk.keyring.check, caller.digest)


def most_readers(caller: Principal) -> int:
    """How many streams and waiting receives the caller may have at once."""
    return MOST_OF_ONE if caller.fence is None else MOST_OF_RUN


def holder_of(workspace_id: WorkspaceId, name: str) -> str:
    """A member's name as leases have it: one workspace's members are not another's."""
    return f"{workspace_id}/{name}"
