"""Sessions: durable conversations with one agent program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from oah.core.model.home import SessionHome, Worktree
from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.message import WakeMode

EnvValue = str | Mapping[str, str]
"""A value of an agent's environment, or ``{"secret": NAME}``: what it stands for is known to workers alone."""


_SECRET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")


def is_secret_name(text: str) -> bool:
    """Whether a secret may be called so: the name is also one of a file."""
    return _SECRET.match(text) is not None


class SessionState(StrEnum):
    """Whether a session takes runs."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class HoldReason(StrEnum):
    """Why no run of a session may start."""

    BACKOFF = "backoff"
    PAUSED = "paused"
    UNKILLABLE = "unkillable"


class Place(StrEnum):
    """The state of a session in the broker; absent means idle."""

    IDLE = "idle"
    READY = "ready"
    LEASED = "leased"
    PARKED = "parked"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Session:
    """A row of ``sessions``."""

    id: SessionId
    workspace_id: WorkspaceId
    lane: Lane
    state: SessionState
    created_at: datetime
    queued_count: int = 0
    event_seq: int = 0
    holds: Mapping[HoldReason, datetime | None] = field(default_factory=dict)
    """Reason → when it ends by itself (None: only by somebody's decision)."""
    session_ref: str | None = None
    """The agent program's own name of the conversation."""
    home: SessionHome | None = None
    """Where its files were last."""
    cwd: str | None = None
    worktree: Worktree | None = None
    """Its working directory is one of these, made by the worker."""
    env: Mapping[str, EnvValue] = field(default_factory=dict)
    title: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    closed_at: datetime | None = None
    wake: WakeMode = WakeMode.LAZY
    """Whether a message starts the agent."""
    wake_failures: int = 0
    """Wakes in a row that failed."""
    wake_after: datetime | None = None
    """No wake starts an agent before."""
    wake_stopped: str | None = None
    """Why messages start it no more."""
    wake_run_id: RunId | None = None
    """The wake that is under way."""
    unsettled: int = 0
    """Messages that are neither acknowledged nor given up."""
    parent_run_id: RunId | None = None
    """The run whose agent opened it, for children of that run."""
