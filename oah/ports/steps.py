"""What a run says of itself while it runs (steps, progress, waits), and what a limit ends that no worker watches.

Every write is fenced: it passes while the run is active, and under a key of the run only while that very attempt is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol

from oah.core.model.ids import RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.run import Run, Step, StopReason
from oah.core.model.timeout import TimeoutReason
from oah.ports.commands import Delivery
from oah.ports.rows import AfterRun, RunFence

MOST_STEPS = 10_000
"""Of one run; more are refused (``too_many_steps``)."""
PROGRESS_PAUSE = timedelta(seconds=0.25)
"""What comes sooner after the last word of a run is a sign of life, but no event (source: architecture, Bounds)."""


class StepKind(StrEnum):
    """What a step inside a run is; ``system`` is what OAH did."""

    TOOL = "tool"
    MODEL = "model"
    STEP = "step"
    WAIT = "wait"


class StepOutcome(StrEnum):
    """How a step ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    ABANDONED = "abandoned"
    """Its attempt was over before it."""


@dataclass(frozen=True, slots=True)
class Inside:
    """Who speaks for a run: ``fence`` for the agent of an attempt, ``workspace_id`` (None: all) for an ordinary key."""

    run_id: RunId
    workspace_id: WorkspaceId | None = None
    fence: RunFence | None = None
    by: str = ""


@dataclass(frozen=True, slots=True)
class NewStep:
    """A step that begins. ``timeout`` None: the run's ``step_timeout``."""

    kind: StepKind
    name: str
    timeout: timedelta | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Told:
    """A run after a wait, a resume or progress. ``event_number`` 0: nothing new was said."""

    run: Run
    event_number: int = 0


@dataclass(frozen=True, slots=True)
class Expired:
    """A queued run that is over. ``unheld``: its session was held for it, and is no more."""

    run: Run
    reason: TimeoutReason
    after: AfterRun
    unheld: bool = False


@dataclass(frozen=True, slots=True)
class Overdue:
    """An active run that is to stop because of one of its steps, and whose it is."""

    run_id: RunId
    session_id: SessionId
    step: int
    reason: StopReason
    owner: WorkerId | None


class StepStore(Protocol):
    """Rows of ``run_steps``, waits, and what a limit ends."""

    def active_fence(self, run_id: RunId) -> RunFence | None:
        """The fence of the attempt that is under way; None: there is none."""
        ...

    def active_fences(self, runs: Collection[RunId]) -> Mapping[RunId, RunFence]:
        """The same of many, in one statement; those that have one."""
        ...

    def begin_step(self, inside: Inside, step: NewStep) -> Step:
        """Raises NotFound, Conflict ``run_not_active`` or ``attempt_over``, LimitReached ``too_many_steps``."""
        ...

    def end_step(self, inside: Inside, number: int, outcome: StepOutcome, data: Mapping[str, Any]) -> Step:
        """Of a step that ended already nothing changes. Raises as ``begin_step``."""
        ...

    def note_progress(self, inside: Inside, data: Mapping[str, Any]) -> Told:
        """A sign of life, and a ``run.progress`` event unless the last was a moment ago. Raises as ``begin_step``."""
        ...

    def wait_run(self, inside: Inside, reason: str, *, timeout: timedelta | None, children: bool = False) -> Told:
        """``running`` → ``waiting_tool``; of one that waits nothing changes. Raises as ``begin_step``.

        ``children``: until none of its children lives any more; the owner row is parked and its worker told (``lend``).
        Of a run without live children nothing changes."""
        ...

    def resume_run(self, inside: Inside) -> Told:
        """``waiting_tool`` → ``running``; of one that runs nothing changes. Raises as ``begin_step``."""
        ...

    def waits_for(self, runs: Sequence[RunId]) -> Mapping[RunId, Step]:
        """The open wait of each of these runs: why it waits, and since when."""
        ...

    def ask_input(self, inside: Inside, text: str, *, request_id: RunId) -> WorkerId | None:
        """A command for the owner of a run that waits, found again by ``request_id``; whose it is. Raises NotFound,
        Conflict ``run_not_waiting``."""
        ...

    def input_given(self, inside: Inside, command_id: int, delivery: Delivery, *, resumed: bool) -> Told:
        """Answer the command, once; when nothing was typed and the run was ``resumed`` for it, it waits again."""
        ...

    def notice(self, session_id: SessionId, run_id: RunId, attempt: int, data: Mapping[str, Any]) -> int:
        """A ``hook.notice`` event; its number. Not fenced: it also tells of what follows a run's end."""
        ...

    def expire_queued(self, *, limit: int) -> list[Expired]:
        """End queued runs whose start time-out (first attempt only) or deadline has passed, by the database's clock."""
        ...

    def stop_overdue(self, *, limit: int) -> list[Overdue]:
        """Ask the runs to stop of which a step is past its deadline; close such steps."""
        ...
