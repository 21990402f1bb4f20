"""The audit: who did what to what, when and why. Written in the transaction of the deed, never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from oah.core.model.ids import WorkspaceId
from oah.ports.rows import Page


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One deed. ``actor``: ``key:<id>``, ``cli:<user>``, ``local`` or ``system``. ``workspace_id`` None: it was about
    the deployment."""

    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    workspace_id: WorkspaceId | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which rows. ``workspace_id`` None: all. ``action``: one, or a kind of them (``run.`` finds ``run.requeued``)."""

    workspace_id: WorkspaceId | None = None
    actor: str | None = None
    action: str | None = None
    subject: str | None = None
    since: datetime | None = None
    cursor: str | None = None
    limit: int = 100


class AuditStore(Protocol):
    """Rows of ``audit``."""

    def audit_rows(self, where: AuditFilter) -> Page[AuditRow]:
        """Newest first. Raises InvalidRequest for a cursor that is none."""
        ...

    def note_action(self, by: str, action: str, subject: str, data: Mapping[str, Any]) -> None:
        """What an operator did about the deployment, where no row of another table says so."""
        ...
