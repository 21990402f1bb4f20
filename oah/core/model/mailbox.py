"""Mailboxes: ordered durable inboxes of a name, of nobody in particular, or of a session."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from oah.core.model.ids import MailboxId, SessionId, WorkspaceId
from oah.errors import InvalidRequest

LONGEST_ADDRESS = 128
"""Characters, as in the published protocol."""
PRIVATE_PREFIX = "m-"
SESSION_PREFIX = "ses_"
RESERVED = frozenset({"normal", "urgent", "critical"})
"""An address may not end with one of these as its last token: subjects name priorities there."""

_TOKEN = re.compile(r"[a-z0-9_-]+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mailbox:
    """A row of ``mailboxes``."""

    id: MailboxId
    workspace_id: WorkspaceId
    address: str
    """What senders know: a chosen name, 128 random bits, or the id of a session."""
    public: bool
    created_at: datetime
    description: str = ""
    session_id: SessionId | None = None
    ttl: timedelta | None = None
    """As asked for first; None: it lives until it is deleted."""
    expires_at: datetime | None = None
    max_messages: int = 0
    """Refuse further messages beyond so many."""
    last_seq: int = 0
    """The number of the newest message it has ever had."""
    messages: int = 0
    """How many it has, by the last count."""
    turn: int = 0
    """How often something that it had could be read again."""


def require_public_address(address: str) -> None:
    """Whether a name may be chosen for a mailbox. Raises InvalidRequest ``invalid_address`` that says what is wrong."""
    if not address or len(address) > LONGEST_ADDRESS:
        raise _invalid(f"an address has 1 to {LONGEST_ADDRESS} characters, this one has {len(address)}")
    tokens = address.split(".")
    for token in tokens:
        if not _TOKEN.match(token):
            raise _invalid(f"'{address}': between its dots an address has a-z, 0-9, - and _, not {token!r}")
    if tokens[-1] in RESERVED:
        raise _invalid(f"'{address}': the last part '{tokens[-1]}' names a priority")
    if address.startswith((PRIVATE_PREFIX, SESSION_PREFIX)):
        raise _invalid(f"'{address}': addresses that begin with {PRIVATE_PREFIX} or {SESSION_PREFIX} are given by us")


def _invalid(text: str) -> InvalidRequest:
    return InvalidRequest(text, code="invalid_address", hint="for example: team.reviews")
