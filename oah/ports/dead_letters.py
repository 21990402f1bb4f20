"""Dead letters: what failed finally, whole, until somebody redrives or purges it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from oah.core.model.ids import SessionId, WorkspaceId
from oah.ports.jobs import JobFence
from oah.ports.rows import Accepted, Page

NO_WORKSPACE = WorkspaceId("")
"""Of what belongs to no workspace (poison): only keys of all workspaces see it."""


class LetterKind(StrEnum):
    """What failed finally."""

    RUN = "run"
    """A quarantined run; ``subject`` is its id."""
    MESSAGE = "message"
    OUTBOX = "outbox"
    POISON = "poison"
    """A value in Redis that nobody could read; ``payload_bytes`` has it."""


class LetterState(StrEnum):
    """Purged and evicted ones are no rows any more."""

    DEAD = "dead"
    REDRIVEN = "redriven"
    """What it is about went on; a letter of the past, which nothing brings back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A row of ``dead_letters``. In lists ``payload`` is empty and the bytes are left out."""

    id: str
    workspace_id: WorkspaceId
    kind: LetterKind
    subject: str
    code: str
    reason: str
    attempts: int
    first_at: datetime
    last_at: datetime
    state: LetterState = LetterState.DEAD
    session_id: SessionId | None = None
    payload: Mapping[str, Any] = field(default_factory=dict)
    payload_bytes: bytes | None = None
    redriven_at: datetime | None = None
    redriven_by: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLetter:
    """A letter to write. ``subject`` is the identity of what failed: a subject that is dead already gets no second
    letter, its ``attempts`` are added to the first one. ``failing_for``: how long ago it failed first."""

    id: str
    workspace_id: WorkspaceId
    kind: LetterKind
    subject: str
    code: str
    reason: str
    session_id: SessionId | None = None
    payload: Mapping[str, Any] = field(default_factory=dict)
    payload_bytes: bytes | None = None
    attempts: int = 1
    failing_for: timedelta = timedelta(0)
    note: str | None = None


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which letters. ``workspace_id`` None: all, also of no workspace. ``since``: those that died last after it."""

    workspace_id: WorkspaceId | None = None
    ids: tuple[str, ...] | None = None
    kind: LetterKind | None = None
    session_id: SessionId | None = None
    code: str | None = None
    since: datetime | None = None
    state: LetterState | None = None
    cursor: str | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class LetterDone:
    """What became of one letter. ``code`` None: as asked; else why not (``not_found``, ``already_redriven``,
    ``not_redrivable`` …). ``accepted``: the run that is queued again, for the broker to hear of."""

    id: str
    code: str | None = None
    message: str | None = None
    accepted: Accepted | None = None
    kind: LetterKind | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Evicted:
    """A letter that had to give way to newer ones; ``number``: the last event of its session."""

    id: str
    workspace_id: WorkspaceId
    kind: LetterKind
    session_id: SessionId | None
    number: int = 0


class DeadLetterStore(Protocol):
    """Rows of ``dead_letters``."""

    def add_dead_letter(self, letter: NewLetter) -> bool:
        """Write a letter, with event ``dead_letter.added`` in its session's stream if it has one. False: its subject
        was dead already. Raises InvalidRequest for what cannot be stored."""
        ...

    def dead_letters(self, where: LetterFilter) -> Page[DeadLetter]:
        """Those that died last first, without their payloads."""
        ...

    def dead_letter(self, letter_id: str, workspace_id: WorkspaceId | None) -> DeadLetter:
        """The whole of it. Raises NotFound, also for another workspace's letter."""
        ...

    def redrive_chunk(
        self, ids: Sequence[str], workspace_id: WorkspaceId | None, *, by: str, fence: JobFence | None = None
    ) -> list[LetterDone]:
        """In one transaction: what each is about goes on, each behind a savepoint. ``fence``: the job that this chunk
        belongs to; its ``done`` and ``failed`` are counted in the same transaction. Raises LeaseError ``job_lost``."""
        ...

    def purge_chunk(
        self, ids: Sequence[str], workspace_id: WorkspaceId | None, *, by: str, fence: JobFence | None = None
    ) -> list[LetterDone]:
        """The same, deleting them; events ``dead_letter.purged``."""
        ...

    def evict_dead_letters(self, *, keep: int, since: timedelta | None, limit: int = 500) -> list[Evicted]:
        """Delete the oldest dead letters of each workspace and kind that has more than ``keep``, with event
        ``dead_letter.evicted`` and an audit row, at most ``limit``. ``since``: look only where letters were written in
        this time; None: everywhere."""
        ...

    def count_dead_letters(self) -> Mapping[LetterKind, int]:
        """Dead ones by kind, of all workspaces."""
        ...
