"""Caps: tell the broker weights and caps as SQL has them, and take out of the count what runs nowhere (HN18).

A session that is claimed but not yet started runs nowhere in SQL and counts rightly: only what is missing twice in a
row goes, and the broker keeps what it has leased.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from oah.core.model.ids import EpochId, SessionId, WorkspaceId
from oah.ports.broker import Broker, WorkspaceLimit
from oah.ports.store import Store
from oah.ports.telemetry import Telemetry


@dataclass(slots=True)
class RecomputeCaps:
    """One pass a reconcile. Raises Unavailable, EpochMismatch."""

    store: Store
    broker: Broker
    telemetry: Telemetry
    _missing: dict[WorkspaceId, frozenset[SessionId]] = field(default_factory=dict)

    def __call__(self, epoch: EpochId) -> int:
        """How many sessions stopped counting."""
        workspaces = self.store.workspaces()
        self.broker.limits(epoch, [WorkspaceLimit(w.id, w.weight, w.max_active_runs) for w in workspaces])
        dropped = 0
        missing: dict[WorkspaceId, frozenset[SessionId]] = {}
        for workspace in workspaces:
            counted = self.broker.active(workspace.id)
            if not counted:
                continue
            owned = {row.session_id for row in self.store.owners_of(counted)}
            missing[workspace.id] = frozenset(counted) - owned
            twice = missing[workspace.id] & self._missing.get(workspace.id, frozenset())
            if twice:
                dropped += self.broker.drop_active(epoch, workspace.id, sorted(twice))
        self._missing = missing
        if dropped:
            self.telemetry.count("oah_reconcile_repairs_total", dropped, repair="cap")
        return dropped
