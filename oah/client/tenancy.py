"""Workspaces and keys."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from oah.client.calls import Calls, given, moment, part
from oah.client.transport import Json


class TenancyCalls(Calls):
    """Who may do what, and how much."""

    def workspaces(self) -> list[Json]:
        """The workspaces this key sees."""
        return self._list("/v1/workspaces", {})

    def workspace(self, id_or_name: str) -> Json:
        """One workspace. Raises NotFound."""
        return self._one("GET", f"/v1/workspaces/{part(id_or_name)}")

    def create_workspace(
        self,
        name: str,
        *,
        weight: int | None = None,
        max_active_runs: int | None = None,
        max_queued_runs: int | None = None,
        runs_per_minute: int | None = None,
        runs_burst: int | None = None,
        recovery_strategy: str | None = None,
        recovery_max_attempts: int | None = None,
    ) -> Json:
        """A new workspace. Raises Conflict when the name is taken."""
        body = given(
            name=name,
            weight=weight,
            max_active_runs=max_active_runs,
            max_queued_runs=max_queued_runs,
            runs_per_minute=runs_per_minute,
            runs_burst=runs_burst,
            recovery_strategy=recovery_strategy,
            recovery_max_attempts=recovery_max_attempts,
        )
        return self._one("POST", "/v1/workspaces", body=body, once=True)

    def update_workspace(self, id_or_name: str, **changes: Any) -> Json:
        """Change ``weight``, ``max_active_runs``, ``max_queued_runs``, ``recovery_strategy``,
        ``recovery_max_attempts``, ``answers``, ``worktree``; None takes what was said back."""
        return self._one("PATCH", f"/v1/workspaces/{part(id_or_name)}", body=changes)

    def keys(self, *, workspace: str | None = None) -> list[Json]:
        """Keys without their secrets."""
        return self._list("/v1/keys", {"workspace": workspace})

    def create_key(
        self,
        name: str,
        *,
        workspace: str | None = None,
        scopes: Iterable[str] = ("read", "run"),
        expires_at: datetime | None = None,
    ) -> Json:
        """A new key; its ``secret`` is in this answer and nowhere else."""
        body = given(name=name, workspace=workspace, scopes=list(scopes), expires_at=moment(expires_at))
        return self._one("POST", "/v1/keys", body=body, once=True)

    def revoke_key(self, key_id: str) -> Json:
        """End a key."""
        return self._one("DELETE", f"/v1/keys/{part(key_id)}")
