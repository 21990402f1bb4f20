"""Live terminals for those who watch them: a worker shows its own, an API process reaches those of others.

A viewer is a number, the offset up to which it has read; the terminal never waits for one. Who may type is a lease that
one writer has at a time; it lasts as long as the connection that asked for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol

from oah.core.dialogue.frames import Frame, Snapshot
from oah.core.dialogue.screen import Screen
from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.errors import Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """What is known of a terminal besides its bytes. `version` grows with every change. `run_id` None: between runs;
    `since`: the offset from which on it is at that run, or at none. `ended`: the agent is gone, no more bytes come."""

    version: int
    rows: int
    columns: int
    run_id: str | None = None
    attempt: int = 0
    since: int = 0
    ended: bool = False


class LiveTerminal(Protocol):
    """The terminal of one agent. Safe from any thread; nothing here waits for the agent's slot thread longer than
    told."""

    @property
    def session_id(self) -> SessionId: ...

    def state(self) -> ViewState: ...

    @property
    def end(self) -> int:
        """Offset of the byte that comes next."""

    def read(self, offset: int, limit: int) -> bytes | None:
        """Bytes from `offset` on, b'' when none are there yet. None: they are no longer kept."""

    def snapshot(self) -> Snapshot:
        """The screen as bytes that paint it; output from its offset on continues it."""

    def screen(self) -> Screen:
        """The screen as text."""

    def wait(self, offset: int, version: int, timeout: timedelta) -> None:
        """Until there are bytes after `offset`, the state is not of this version any more, or the time is up."""

    def type(self, data: bytes, timeout: timedelta) -> None:
        """A person's keys, whole: never inside a text that is being given to the program. Raises AgentError
        `agent_not_reading`, `agent_gone`, `line_too_long`, `typing_busy` (nothing was typed)."""

    def resize(self, *, rows: int, columns: int) -> None: ...

    def let_go(self) -> None:
        """The writer has gone: the size is the profile's again, a half-typed line of a line-wise program is cleared."""


class LiveTerminals(Protocol):
    """Those of a worker."""

    def find(self, session_id: SessionId) -> LiveTerminal | None:
        """The terminal of the session's agent: at work, waiting or parked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """Where a session's terminal is served."""

    worker_id: str
    address: str
    token: str = field(repr=False)
    session_id: SessionId


class Line(Protocol):
    """A connection to a worker's endpoint."""

    async def receive(self) -> Frame | None:
        """The next frame; None: the worker has ended it, or is gone."""

    async def note(self, kind: str, data: Mapping[str, Any]) -> None:
        """Send a JSON frame. Raises Unavailable."""

    async def keys(self, data: bytes) -> None:
        """Send typed bytes. Raises Unavailable."""


class WorkerLines(Protocol):
    """How an API process reaches workers' endpoints. Opening raises NotFound `no_terminal`, Conflict
    `writer_present`, Unavailable `worker_unreachable`."""

    def terminal(self, place: WorkerPlace) -> AbstractAsyncContextManager[Line]:
        """What a terminal shows."""

    def keyboard(self, place: WorkerPlace, *, by: str, takeover: bool) -> AbstractAsyncContextManager[Line]:
        """The writer's lease, as long as the connection lives."""

    async def screen(self, place: WorkerPlace) -> Mapping[str, Any]:
        """The screen as a document."""


class WriterNote(StrEnum):
    """What is written of those who type."""

    ATTACHED = "terminal.attached"
    TAKEN_OVER = "terminal.taken_over"
    DETACHED = "terminal.detached"


class WriterStore(Protocol):
    """Events and rows of the audit about those who type."""

    def note_writer(
        self,
        session_id: SessionId,
        note: WriterNote,
        *,
        by: str,
        workspace_id: WorkspaceId,
        run_id: RunId | None,
        attempt: int,
        before: str | None = None,
    ) -> int:
        """An event of the session and a row of the audit, in one transaction; the event's number, 0 when the session
        is gone. ``before``: whose place was taken."""
        ...


class NoWorkerLines:
    """Where no workers are reached."""

    def terminal(self, place: WorkerPlace) -> AbstractAsyncContextManager[Line]:
        """See WorkerLines."""
        raise _nobody()

    def keyboard(self, place: WorkerPlace, *, by: str, takeover: bool) -> AbstractAsyncContextManager[Line]:
        """See WorkerLines."""
        raise _nobody()

    async def screen(self, place: WorkerPlace) -> Mapping[str, Any]:
        """See WorkerLines."""
        raise _nobody()


def _nobody() -> Unavailable:
    return Unavailable("this process reaches no workers", code="worker_unreachable")
