"""What is asked of one worker: a row in SQL that is handed out once; the broker's control list only says "look".

A command about a run (steer, input) names its attempt. Its answer is written beside it, with an event of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from oah.core.model.ids import RunId, SessionId, WorkerId


class CommandKind(StrEnum):
    """What is asked."""

    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"
    STEER = "steer"
    """Say ``data.text`` to the agent of the run, into its live turn."""
    INPUT = "input"
    """Say ``data.text`` to the agent of a run that waits for it; then the run goes on."""
    CLOSE = "close"
    """The session ``data.session_id`` takes no more runs: its warm agent has nothing to wait for."""
    LEND = "lend"
    """Its run waits for its children (``data.number``: of the wait): the slot is free meanwhile."""
    KILL = "kill"
    """Of a run that is asked to stop: kill its agent ``data.after_ms`` after the worker heard of it, if need be."""


KEPT = "kept"
"""In the data of a cordon: there is a row of it, which is also for who comes after this worker."""


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """A row of ``worker_commands`` that the worker has not seen yet."""

    id: int
    worker_id: WorkerId
    kind: CommandKind
    by: str
    run_id: RunId | None = None
    attempt: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)


class Delivery(StrEnum):
    """What became of a text for a live run."""

    DELIVERED = "delivered"
    """The agent's terminal has shown it."""
    UNVERIFIED = "unverified"
    """It was typed; whether the agent has read it is not known."""
    UNSUPPORTED = "unsupported"
    """This agent cannot be spoken to while it works. Nothing was typed."""
    MISSED = "missed"
    """The run was over, or about to be. Nothing was typed."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A command about a run as its asker finds it again. ``answer`` None: nobody has answered yet."""

    command_id: int
    run_id: RunId
    taken: bool
    answer: Delivery | None


class CommandStore(Protocol):
    """Writing, taking and answering commands."""

    def command_worker(
        self, worker_id: WorkerId, kind: CommandKind, *, by: str, data: Mapping[str, Any] | None = None
    ) -> None:
        """Write a command (and an audit row). ``data``: what it carries, see ``core.model.drain`` for a drain."""
        ...

    def command_run(
        self,
        worker_id: WorkerId,
        kind: CommandKind,
        run_id: RunId,
        attempt: int,
        *,
        by: str,
        data: Mapping[str, Any],
    ) -> int:
        """Write a command about a run; its id."""
        ...

    def command_session(self, session_id: SessionId, kind: CommandKind, *, by: str) -> WorkerId | None:
        """Write a command to whoever owns the session; None: nobody does."""
        ...

    def take_commands(self, worker_id: WorkerId) -> list[WorkerCommand]:
        """Commands for this worker, oldest first, each handed out once."""
        ...

    def answer_command(self, command_id: int, delivery: Delivery) -> int:
        """Once; with the event ``run.steered``. The event's number, 0 when it was answered before. Raises NotFound."""
        ...

    def spoken(self, request_id: RunId) -> Spoken | None:
        """The command that a steer has become, by the id that its run would have had."""
        ...

    def withdraw_command(self, command_id: int) -> bool:
        """No worker will take it any more. False: one has."""
        ...
