"""Events: what happened to a session, numbered without gaps under the session's row lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from oah.core.model.ids import RunId, SessionId


class EventType(StrEnum):
    """The types that the outside interface names."""

    RUN_QUEUED = "run.queued"
    RUN_STARTED = "run.started"
    RUN_OUTPUT = "run.output"
    RUN_WAITING_TOOL = "run.waiting_tool"
    RUN_RESUMED = "run.resumed"
    RUN_ANSWERED = "run.answered"
    """A policy has answered what the program asked; the run did not wait."""
    RUN_RECOVERED = "run.recovered"
    RUN_RELEASED = "run.released"
    RUN_COMPLETED = "run.completed"
    RUN_FAILED = "run.failed"
    RUN_CANCELLED = "run.cancelled"
    RUN_TIMED_OUT = "run.timed_out"
    RUN_QUARANTINED = "run.quarantined"
    RUN_RETRYING = "run.retrying"
    """A failed attempt that is followed by another; the run is not over."""
    RUN_PROGRESS = "run.progress"
    RUN_STEERED = "run.steered"
    RUN_VOIDED = "run.voided"
    RUN_AGENT = "run.agent"
    """The agent of an attempt was opened: it went on with the conversation, or began anew, and why."""
    TERMINAL_ATTACHED = "terminal.attached"
    """Somebody types into the terminal."""
    TERMINAL_TAKEN_OVER = "terminal.taken_over"
    TERMINAL_DETACHED = "terminal.detached"
    HOOK_NOTICE = "hook.notice"
    DEAD_LETTER_ADDED = "dead_letter.added"
    DEAD_LETTER_EVICTED = "dead_letter.evicted"
    DEAD_LETTER_REDRIVEN = "dead_letter.redriven"
    DEAD_LETTER_PURGED = "dead_letter.purged"
    QUEUE_UPDATED = "queue.updated"
    MESSAGE_QUEUED = "message.queued"
    MESSAGE_DELIVERED = "message.delivered"
    """Typed to the agent; ``outcome`` says what its terminal showed of it."""
    MESSAGE_ACKED = "message.acked"
    MESSAGE_RETURNED = "message.returned"
    """Its delivery came to nothing: it is queued again."""
    MESSAGE_EXPIRED = "message.expired"
    MESSAGE_DEAD = "message.dead"
    MESSAGE_FAILED = "message.failed"
    """In the stream of the session that sent it: it expired, or is dead."""
    MESSAGE_OVERDUE = "message.overdue"
    """Its recipient is ready, and nobody delivers it."""
    WAKE_STOPPED = "wake.stopped"
    """Starting the agent for its messages failed too often: they start it no more."""
    WAKE_RESUMED = "wake.resumed"

    @property
    def ends_run(self) -> bool:
        """The last event of a run, after which its stream ends."""
        return self in (
            EventType.RUN_COMPLETED,
            EventType.RUN_FAILED,
            EventType.RUN_CANCELLED,
            EventType.RUN_TIMED_OUT,
        )


@dataclass(frozen=True, slots=True)
class Event:
    """One row of ``run_events``; ``number`` is the session's sequence."""

    session_id: SessionId
    number: int
    run_id: RunId | None
    attempt: int
    type: str
    data: Mapping[str, Any]
    at: datetime
