"""Runs: one unit of work on a session, and what can be said about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from oah.core.model.home import SessionHome
from oah.core.model.ids import ClaimToken, RunId, SessionId, WorkerId, WorkspaceId


class RunStatus(StrEnum):
    """Where a run is in its life. The transitions are in ``core/lifecycle.py``."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING_TOOL = "waiting_tool"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"

    @property
    def active(self) -> bool:
        """A worker owns the run now."""
        return self in (RunStatus.RUNNING, RunStatus.WAITING_TOOL)

    @property
    def terminal(self) -> bool:
        """Nothing more will happen without an operator."""
        return self in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.TIMED_OUT)


class RunClass(StrEnum):
    """The class a run is submitted in."""

    INTERACTIVE = "interactive"
    SUBAGENT = "subagent"
    BACKGROUND = "background"


class ReadyClass(StrEnum):
    """The class a session waits in: that of the highest waiting run, or an internal one."""

    RESUME = "resume"
    INTERACTIVE = "interactive"
    SUBAGENT = "subagent"
    BACKGROUND = "background"
    SUSPECT = "suspect"
    """The first eligible run has a recovery behind it; never raised out of it by a further run."""


class RunKind(StrEnum):
    """Where a run's text comes from."""

    PROMPT = "prompt"
    """It was submitted."""
    WAKE = "wake"
    """It has none of its own: it gives the session's messages to its agent."""


class OnBusy(StrEnum):
    """What a submit does when its session has a run already."""

    ENQUEUE = "enqueue"
    REJECT = "reject"
    INTERRUPT = "interrupt"
    ROLLBACK = "rollback"
    STEER = "steer"

    @property
    def stops(self) -> bool:
        """The active run is asked to stop, and the new one goes before all others."""
        return self in (OnBusy.INTERRUPT, OnBusy.ROLLBACK)


class OrderMode(StrEnum):
    """What later runs of the session do while this one waits for its retry."""

    STRICT = "strict"
    """They wait: the session is held, the retry keeps its place."""
    SKIP_FAILED = "skip_failed"
    """They go on: the retry gets a new place when it is due."""


class StopReason(StrEnum):
    """Why an active run was asked to stop; ``runs.stop_reason``, set with the cancel mark."""

    CANCEL = "cancel"
    """Somebody asked for it."""
    PARENT = "parent"
    """The run that had started it was cancelled."""
    INTERRUPT = "interrupt"
    """A new run wants its place (``on_busy=interrupt``)."""
    ROLLBACK = "rollback"
    """As interrupt; what it did is void (``on_busy=rollback``)."""
    STEP_TIMEOUT = "step_timeout"
    MODEL_TIMEOUT = "model_timeout"
    WAIT_TIMEOUT = "wait_timeout"
    """What it waited for did not come in time."""

    @property
    def of_one_attempt(self) -> bool:
        """A limit asked for it: the run may be tried again."""
        return self in (StopReason.STEP_TIMEOUT, StopReason.MODEL_TIMEOUT, StopReason.WAIT_TIMEOUT)


class RecoveryStrategy(StrEnum):
    """What is wanted for a run whose worker is lost; the values of `OAH_STALE_RUN_RECOVERY_STRATEGY`."""

    FAIL = "fail"
    REQUEUE_RUNNING = "requeue_running"
    REQUEUE_ALL = "requeue_all"


class RecoveryState(StrEnum):
    """What recovery did with a run last."""

    REQUEUED = "requeued"
    FAILED = "failed"
    QUARANTINED = "quarantined"


class StartReason(StrEnum):
    """Why an attempt was started. Every start but the first has a recorded reason."""

    FIRST = "first"
    RECOVERED = "recovered"
    RELEASED = "released"
    RETRIED = "retried"
    REQUEUED = "requeued"


COMMAND = "oah.command"
"""In a run's metadata: its text may be a command of the agent's program. Submits set it, and nobody else."""


@dataclass(frozen=True, slots=True)
class RunError:
    """Why a run did not complete: a stable code and words for a person."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Run:
    """A row of ``runs`` as everybody but the hot path sees it."""

    id: RunId
    session_id: SessionId
    workspace_id: WorkspaceId
    position: int
    run_class: RunClass
    status: RunStatus
    input: str
    created_at: datetime
    queued_at: datetime
    deferred: bool = False
    due_at: datetime | None = None
    attempt: int = 0
    recovery_attempts: int = 0
    failed_attempts: int = 0
    max_retries: int | None = None
    """Further attempts after a failed one; None: nobody has said so for this run, its profile's rules hold."""
    timeout: timedelta | None = None
    deadline_at: datetime | None = None
    parent_run_id: RunId | None = None
    worker_id: WorkerId | None = None
    claim_token: ClaimToken | None = None
    cancel_requested_at: datetime | None = None
    cancel_requested_by: str | None = None
    result: str | None = None
    result_blob: str | None = None
    exit_code: int | None = None
    error: RunError | None = None
    recovery: Mapping[str, Any] | None = None
    recovery_state: RecoveryState | None = None
    note: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    """Among the runs of its class and workspace that are next in their sessions: higher ones start first."""
    order_mode: OrderMode = OrderMode.STRICT
    start_by: datetime | None = None
    """A run that is still queued then ends as timed out (``start_timeout``)."""
    idle_timeout: timedelta | None = None
    """Of an attempt: without any progress for so long it is timed out (``idle_timeout``)."""
    step_timeout: timedelta | None = None
    """Of one step that names no time-out of its own."""
    retry: Mapping[str, Any] | None = None
    """What the submit said about retries besides ``max_retries``; None: the profile's rules."""
    recovery_strategy: str | None = None
    recovery_max_attempts: int | None = None
    """What the submit said about recovery; None: the profile's, workspace's or deployment's."""
    stop_reason: StopReason | None = None
    voided: bool = False
    """Rolled back: its result is not to be used."""
    kind: RunKind = RunKind.PROMPT
    started_at: datetime | None = None
    ended_at: datetime | None = None
    heartbeat_at: datetime | None = None
    """The owner row's ``seen_at`` while the run is active."""

    @property
    def command(self) -> bool:
        """Whether its text may be a command of the agent's program; else such a text is refused, or given as a text."""
        return self.metadata.get(COMMAND) is True


@dataclass(frozen=True, slots=True)
class Attempt:
    """The n-th execution of a run, as recorded in ``run_attempts``."""

    run_id: RunId
    attempt: int
    reason: StartReason
    worker_id: WorkerId
    agent: str
    """``warm``, ``resumed``, ``fresh`` or ``repaired``."""
    home: str | None
    recording_blob: str | None
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    agent_reason: str | None = None
    """Why it is not the agent that was there before: ``first``, ``home_lost``, ``cwd_changed``, ``no_record``,
    ``transcript_broken``, ``refused``; of one that went on: ``record_cut``, ``forked``."""


@dataclass(frozen=True, slots=True)
class Step:
    """A row of ``run_steps``: something that was done to a run or in it. ``kind`` is ``system`` for what OAH did."""

    run_id: RunId
    number: int
    attempt: int
    kind: str
    name: str
    data: Mapping[str, Any]
    at: datetime
    """When it began."""
    deadline_at: datetime | None = None
    ended_at: datetime | None = None
    """None: it goes on, or its attempt was over before it; a system step has none."""
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, as the worker saw it."""

    status: RunStatus
    output: str = ""
    """The agent's answer as text, at most 1 MiB; the rest is in ``result_blob``."""
    result_blob: str | None = None
    exit_code: int | None = None
    error: RunError | None = None
    recording_blob: str | None = None
    agent: str = "fresh"
    agent_reason: str | None = None
    session_ref: str | None = None
    """The program's name of the conversation, where it is another one than the session's; None: unchanged."""
    home_mode: str | None = None
    """What the attempt had for a home."""
    home: SessionHome | None = None
    """Where the session's home is now, where that has changed; None: unchanged."""
    output_cut: bool = False
    """The beginning of the answer had scrolled off the program's screen; the end event says so."""


PRIORITY = (ReadyClass.RESUME, ReadyClass.INTERACTIVE, ReadyClass.SUBAGENT, ReadyClass.BACKGROUND, ReadyClass.SUSPECT)
"""Classes from the highest to the lowest."""
