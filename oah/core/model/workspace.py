"""Workspaces (tenancy) and the keys that open them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from oah.core.model.home import Worktree
from oah.core.model.ids import KeyId, WorkspaceId
from oah.core.model.run import RecoveryStrategy

DEFAULT_WORKSPACE = WorkspaceId("default")


class Scope(StrEnum):
    """What a key may do. ``admin`` sees every workspace and includes the others."""

    READ = "read"
    RUN = "run"
    OPERATE = "operate"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Workspace:
    """A boundary of quotas, fairness and keys."""

    id: WorkspaceId
    name: str
    created_at: datetime
    weight: int = 1
    max_active_runs: int | None = None
    max_queued_runs: int | None = None
    runs_per_minute: int | None = None
    """Submits; None: any."""
    runs_burst: int | None = None
    """Of them at once; None: a minute's worth."""
    recovery_strategy: RecoveryStrategy | None = None
    recovery_max_attempts: int | None = None
    """What it says about recovery; None: the deployment's."""
    answers: tuple[Mapping[str, Any], ...] = ()
    """Which questions of agents are answered without a person (``core/policy/answers.py``)."""
    worktree: Worktree | None = None
    """Of sessions that are made without a working directory of their own."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A bearer key without its secret; ``workspace_id`` None only with scope ``admin``."""

    id: KeyId
    name: str
    workspace_id: WorkspaceId | None
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def may(self, scope: Scope) -> bool:
        """Whether the key carries ``scope``; every key may read, ``operate`` may run, ``admin`` may all."""
        if Scope.ADMIN in self.scopes or scope is Scope.READ:
            return True
        return scope in self.scopes or (scope is Scope.RUN and Scope.OPERATE in self.scopes)
