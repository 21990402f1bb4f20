"""Where a message has been, as hops with their times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from oah.core.model.event import EventType
from oah.ports.traces import MessageTrace


@dataclass(frozen=True, slots=True)
class Hop:
    """One thing that happened to it."""

    at: datetime
    hop: str
    data: Mapping[str, Any] = field(default_factory=dict)


def hops(trace: MessageTrace) -> list[Hop]:
    """All of them, in the order of their times."""
    found = [*_mailbox(trace), *_agent(trace), *_letters(trace)]
    return sorted(found, key=lambda hop: hop.at)


def _mailbox(trace: MessageTrace) -> Iterator[Hop]:
    message, mailbox = trace.message, trace.mailbox
    if message is None:
        return
    where = None if mailbox is None else mailbox.address
    facts = {"mailbox": where, "seq": message.seq or None, "priority": message.priority.word, "sender": message.sender}
    yield Hop(message.sent_at, "sent", {**facts, "size": message.size})
    if trace.due_at is not None:
        yield Hop(trace.due_at, "due", {"seq": message.seq or None})
    if message.expires_at is not None and trace.settled_at is None:
        yield Hop(message.expires_at, "expires", {})


def _agent(trace: MessageTrace) -> Iterator[Hop]:
    """The events; where retention has taken them, what the row of the message says."""
    for event in trace.events:
        data = {name: value for name, value in event.data.items() if name not in ("message_id", "seq")}
        yield Hop(event.at, event.type, {"session": event.session_id, "run": event.run_id, **data})
    agent = trace.for_agent
    if agent is None:
        return
    told = {event.type for event in trace.events}
    if EventType.MESSAGE_QUEUED.value not in told:
        yield Hop(agent.created_at, EventType.MESSAGE_QUEUED.value, {"session": agent.session_id, "mode": agent.mode})
    if agent.delivered_at is not None and EventType.MESSAGE_DELIVERED.value not in told:
        facts = {"session": agent.session_id, "run": agent.run_id, "outcome": agent.outcome}
        yield Hop(agent.delivered_at, EventType.MESSAGE_DELIVERED.value, facts)
    ended = f"message.{agent.state}"
    if agent.ended_at is not None and ended not in told:
        yield Hop(agent.ended_at, ended, {"session": agent.session_id, "reason": agent.reason})


def _letters(trace: MessageTrace) -> Iterator[Hop]:
    for letter in trace.letters:
        yield Hop(letter.last_at, "dead_letter", {"id": letter.id, "code": letter.code, "attempts": letter.attempts})
        if letter.redriven_at is not None:
            yield Hop(letter.redriven_at, "redriven", {"id": letter.id, "by": letter.redriven_by})
