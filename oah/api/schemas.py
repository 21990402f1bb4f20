"""Shapes of request bodies and of what stands in paths and queries. Types here, judgements in core/policy/admission."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from oah.core.model.drain import AtDeadline, Drain
from oah.core.model.ids import KeyId, RunId, SessionId
from oah.core.model.message import WakeMode
from oah.core.model.run import OnBusy, OrderMode, RunClass
from oah.core.model.workspace import Scope
from oah.core.policy.recovery import Strategy
from oah.errors import InvalidRequest, NotFound
from oah.services.submit import Asked

_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z")
_CURSOR = re.compile(r"^[\x21-\x7e]{1,512}\Z")


def _named(text: str) -> str:
    """What cannot be an id is the id of nothing."""
    if not _ID.match(text):
        raise NotFound("there is nothing of that id")
    return text


def _cursor(text: str | None) -> str | None:
    if text is not None and not _CURSOR.match(text):
        raise InvalidRequest("the cursor is none that was handed out", code="invalid_cursor")
    return text


def _filter(text: str | None) -> str | None:
    if text is not None and not _ID.match(text):
        raise InvalidRequest("a filter contains characters that no id or name has")
    return text


Named = Annotated[str, Path(), AfterValidator(_named)]
Cursor = Annotated[str | None, Query(), AfterValidator(_cursor)]
Filter = Annotated[str | None, Query(), AfterValidator(_filter)]
Limit = Annotated[int, Query(ge=1, le=500)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Body(BaseModel):
    """Base of all bodies: unknown members are faults, so that a typo is seen."""

    model_config = ConfigDict(extra="forbid", populate_by_name=False)


class SecretRef(BaseModel):
    """A value that is looked up when the agent starts."""

    model_config = ConfigDict(extra="forbid")
    secret: str


class WorktreeBody(Body):
    """A working directory that is a git worktree of a repository which the workers have."""

    repo: str
    ref: str | None = None


class SessionBody(Body):
    """POST /sessions. ``agent`` and ``pool``: with the key of a run those of its own session when left out."""

    agent: str | None = None
    pool: str | None = None
    workspace: str | None = None
    title: str | None = None
    wake: WakeMode = WakeMode.LAZY
    cwd: str | None = None
    worktree: WorktreeBody | None = None
    env: dict[str, str | SecretRef] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)


class SessionChanges(Body):
    """PATCH /sessions/{id}; what is absent stays."""

    title: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
    wake: WakeMode = WakeMode.LAZY


class RetryBody(Body):
    """How a failed attempt is repeated; what is absent is the profile's."""

    initial_seconds: Number | None = Field(default=None, gt=0)
    factor: Number | None = Field(default=None, ge=1)
    max_seconds: Number | None = Field(default=None, gt=0)
    jitter: Number | None = Field(default=None, ge=0, le=1)
    on: list[str] | None = None


class RecoveryBody(Body):
    """What recovery may do with the run; what is absent is the profile's, workspace's or deployment's."""

    strategy: Strategy | None = None
    max_attempts: int | None = Field(default=None, ge=0, le=1_000)


class RunBody(Body):
    """POST /sessions/{id}/runs"""

    input: str
    run_class: RunClass | None = Field(default=None, alias="class")
    """None: interactive, subagent for a child."""
    delay_seconds: Number | None = None
    run_at: AwareDatetime | None = None
    timeout_seconds: Number | None = None
    deadline: AwareDatetime | None = None
    start_timeout_seconds: Number | None = None
    idle_timeout_seconds: Number | None = None
    step_timeout_seconds: Number | None = None
    max_retries: int | None = None
    """None: the profile's."""
    retry: RetryBody | None = None
    recovery: RecoveryBody | None = None
    order: OrderMode = OrderMode.STRICT
    priority: int = 0
    """Higher ones start first among runs of their class and workspace; -100 to 100."""
    on_busy: OnBusy = OnBusy.ENQUEUE
    parent_run_id: str | None = None
    command: bool = False
    """Its text may be a command of the agent's program; otherwise such a text is refused."""
    metadata: dict[str, Any] = Field(default_factory=dict)

    def asked(self, session_id: str, key: str | None) -> Asked:
        """The wish as the service takes it. Raises NotFound for a parent that cannot be a run's id."""
        return Asked(
            session_id=SessionId(session_id),
            input=self.input,
            run_class=self.run_class or (RunClass.INTERACTIVE if self.parent_run_id is None else RunClass.SUBAGENT),
            delay_seconds=self.delay_seconds,
            run_at=self.run_at,
            timeout_seconds=self.timeout_seconds,
            deadline=self.deadline,
            start_timeout_seconds=self.start_timeout_seconds,
            idle_timeout_seconds=self.idle_timeout_seconds,
            step_timeout_seconds=self.step_timeout_seconds,
            max_retries=self.max_retries,
            retry=None if self.retry is None else self.retry.model_dump(exclude_none=True),
            recovery_strategy=None if self.recovery is None else self.recovery.strategy,
            recovery_max_attempts=None if self.recovery is None else self.recovery.max_attempts,
            order=self.order,
            priority=self.priority,
            on_busy=self.on_busy,
            parent_run_id=None if self.parent_run_id is None else RunId(_named(self.parent_run_id)),
            command=self.command,
            metadata=self.metadata,
            idempotency_key=key,
        )


class BatchItem(RunBody):
    """One run of a batch."""

    session_id: str
    idempotency_key: str | None = None


class BatchBody(Body):
    """POST /runs:batch; each item is judged by itself."""

    items: list[dict[str, Any]]


class CancelBody(Body):
    """POST /runs/{id}/cancel; without a body the agent gets the graces of the worker's ladder."""

    grace_seconds: Number | None = Field(default=None, ge=0, le=3600)
    force: bool = False

    @property
    def kill_after(self) -> timedelta | None:
        """How long after the cancel the agent is killed, whatever the ladder says."""
        if self.force:
            return timedelta(0)
        return None if self.grace_seconds is None else timedelta(seconds=self.grace_seconds)


class CordonBody(Body):
    """POST /workers/{id}/cordon and /pools/{pool}/cordon; without a body until somebody uncordons it."""

    for_seconds: Number | None = Field(default=None, gt=0, le=2_592_000)


class DrainBody(Body):
    """POST /workers/{id}/drain and /pools/{pool}/drain; without a body as the worker's settings have it."""

    deadline_seconds: Number | None = Field(default=None, ge=0, le=604_800)
    then: AtDeadline | None = None
    stay: bool = False

    @property
    def drain(self) -> Drain:
        """What is wished."""
        seconds = self.deadline_seconds
        return Drain(None if seconds is None else timedelta(seconds=seconds), self.then, self.stay)


class RunChanges(Body):
    """PATCH /runs/{id}"""

    note: str


class InputBody(Body):
    """POST /runs/{id}/input. ``question``: the number of the question that is meant; without it the one that stands."""

    input: str
    question: int | None = Field(default=None, ge=1, le=2**31 - 1)


class WorkspaceBody(Body):
    """POST /workspaces"""

    name: str
    weight: int = 1
    max_active_runs: int | None = None
    max_queued_runs: int | None = None
    runs_per_minute: int | None = None
    runs_burst: int | None = None
    recovery_strategy: Strategy | None = None
    recovery_max_attempts: int | None = None


class WorkspaceChanges(Body):
    """PATCH /workspaces/{id}; what is absent stays, null lifts a cap or a rate or leaves recovery to the deployment."""

    weight: int = 1
    max_active_runs: int | None = None
    max_queued_runs: int | None = None
    runs_per_minute: int | None = None
    runs_burst: int | None = None
    recovery_strategy: Strategy | None = None
    recovery_max_attempts: int | None = None
    answers: list[dict[str, Any]] | None = None
    worktree: WorktreeBody | None = None


class KeyBody(Body):
    """POST /keys"""

    name: str
    workspace: str | None = None
    scopes: list[Scope] = Field(default_factory=lambda: [Scope.READ, Scope.RUN])
    expires_at: AwareDatetime | None = None


def session_id(text: str) -> SessionId:
    """A session's id from a body. Raises NotFound."""
    return SessionId(_named(text))


def key_id(text: str) -> KeyId:
    """A key's id from a path."""
    return KeyId(text)
