"""Workspaces: create, change, find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oah.core.model.home import worktree_of
from oah.core.model.ids import WorkspaceId
from oah.core.model.run import RecoveryStrategy
from oah.core.model.workspace import DEFAULT_WORKSPACE, Workspace
from oah.core.policy import admission
from oah.errors import InvalidRequest, NotFound
from oah.ports.clock import Ids
from oah.ports.store import Store
from oah.services.sessions import check_worktree

_LARGEST = 1_000_000_000
_MOST_OFTEN = 1_000_000
_BOUNDS = {
    "recovery_max_attempts": (0, 1_000),
    "runs_per_minute": (1, _MOST_OFTEN),
    "runs_burst": (1, _MOST_OFTEN),
}


def create(
    store: Store,
    ids: Ids,
    name: str,
    *,
    weight: int = 1,
    max_active_runs: int | None = None,
    max_queued_runs: int | None = None,
    runs_per_minute: int | None = None,
    runs_burst: int | None = None,
    recovery_strategy: RecoveryStrategy | None = None,
    recovery_max_attempts: int | None = None,
    by: str = "system",
) -> Workspace:
    """A new workspace. Raises InvalidRequest; Conflict when the name is taken."""
    admission.name(name, what="workspace")
    _bounds(
        {
            "weight": weight,
            "max_active_runs": max_active_runs,
            "max_queued_runs": max_queued_runs,
            "runs_per_minute": runs_per_minute,
            "runs_burst": runs_burst,
            "recovery_max_attempts": recovery_max_attempts,
        }
    )
    return store.create_workspace(
        WorkspaceId(ids.new("ws")),
        name,
        weight=weight,
        max_active_runs=max_active_runs,
        max_queued_runs=max_queued_runs,
        runs_per_minute=runs_per_minute,
        runs_burst=runs_burst,
        recovery_strategy=recovery_strategy,
        recovery_max_attempts=recovery_max_attempts,
        by=by,
    )


def change(store: Store, workspace: WorkspaceId, changes: Mapping[str, Any], *, by: str = "system") -> Workspace:
    """Change weight, caps, rates and what it says about recovery. Raises NotFound, InvalidRequest."""
    _bounds(
        {name: value for name, value in changes.items() if name not in ("recovery_strategy", "answers", "worktree")}
    )
    worktree = worktree_of(changes.get("worktree"))
    if worktree is not None:
        check_worktree(worktree)
        changes = {**changes, "worktree": worktree.document()}
    return store.update_workspace(workspace, dict(changes), by=by)


def _bounds(values: Mapping[str, int | None]) -> None:
    for name, value in values.items():
        if name == "weight" and (value is None or not 1 <= value <= 1000):
            raise InvalidRequest("weight must be 1 to 1000")
        least, largest = _BOUNDS.get(name, (0, _LARGEST))
        if name != "weight" and value is not None and not least <= value <= largest:
            raise InvalidRequest(f"{name} must be {least} to {largest}, or null for no word of its own")


def resolve(store: Store, named: str | None, bound_to: WorkspaceId | None) -> WorkspaceId:
    """The workspace that a request speaks of, by id or name; the caller's own (else ``default``) when not said.

    Raises NotFound, also for a workspace that is not the caller's.
    """
    if named is None:
        return bound_to or DEFAULT_WORKSPACE
    if named == bound_to:
        return bound_to
    found = store.workspace(named)
    if bound_to is not None and found.id != bound_to:
        raise NotFound(f"no workspace '{named[:80]}'")
    return found.id
