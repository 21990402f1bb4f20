"""Secrets that agents are given: known to workers alone, named by sessions."""

from __future__ import annotations

from typing import Protocol

from oah.core.model.ids import WorkspaceId


class Secrets(Protocol):
    """Where a worker's secrets come from."""

    def secret(self, name: str, workspace_id: WorkspaceId) -> str | None:
        """What the name stands for in this workspace; None: nothing."""
        ...


class NoSecrets:
    """There are none."""

    def secret(self, name: str, workspace_id: WorkspaceId) -> str | None:
        """None."""
        return None
