"""A publish as a letter for the mailboxes, and a message as what a subscriber gets. Pure."""

from __future__ import annotations

from datetime import timedelta

from oah.core.model.ids import WorkspaceId
from oah.core.model.mailbox import SESSION_PREFIX
from oah.core.model.message import Message, MessageMode, Priority, Sender, priority_of
from oah.errors import InvalidRequest
from oah.gateway import headers
from oah.gateway.commands import Publish
from oah.gateway.subjects import Asked
from oah.ports.mailboxes import ForAgent, Outgoing

LONGEST_SECONDS = 10**9


def outgoing(
    asked: Asked, command: Publish, *, workspace_id: WorkspaceId, sender: str, agent: Sender | None = None
) -> Outgoing:
    """What is to be sent. The subject's priority counts before the header's. ``agent``: who sends, if it is one.
    Raises InvalidRequest."""
    said = headers.fields(command.headers) if command.headers else []
    priority = asked.priority
    if priority is None:
        word = headers.first(said, headers.PRIORITY)
        priority = Priority.NORMAL if word is None else priority_of(word)
    tags = headers.first(said, headers.TAGS)
    to_agent = asked.address.startswith(SESSION_PREFIX)
    return Outgoing(
        workspace_id=workspace_id,
        address=asked.address,
        payload=command.payload,
        priority=priority,
        headers=headers.kept(command.headers) if command.headers else b"",
        sender=sender,
        dedup_key=headers.first(said, headers.DEDUP),
        key=headers.first(said, headers.KEY),
        tags=tuple(filter(None, (tag.strip() for tag in tags.split(",")))) if tags else (),
        ttl=_duration(headers.first(said, headers.TTL), headers.TTL),
        delay=_duration(headers.first(said, headers.DELAY), headers.DELAY),
        for_agent=ForAgent(mode=MessageMode.WAIT, sender=agent) if agent is not None and to_agent else None,
    )


def _duration(text: str | None, name: str) -> timedelta | None:
    """Seconds; zero says nothing."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_SECONDS:
        raise InvalidRequest(f"header {name}: '{text}' is no number of seconds")
    return timedelta(seconds=seconds) if seconds else None


def block(message: Message, *, attempt: int = 1) -> bytes:
    """The headers that a message is delivered with: ours, then the sender's. The payload is untouched."""
    ours = [
        (headers.MSG_ID, str(message.seq)),
        (headers.PRIORITY, message.priority.word),
        (headers.TIME, message.sent_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")),
    ]
    if attempt > 1:
        ours.append((headers.ATTEMPT, str(attempt)))
    return headers.block(headers.theirs(message.headers), ours)
