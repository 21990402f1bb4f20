"""Caps and pauses: tell the broker weights, caps and pauses as SQL has them, and take out of the count what runs
nowhere (HN18).

A pause is a cap of none: the broker hands out no session of a paused group, what runs goes on. A session that is
claimed but not yet started runs nowhere in SQL and counts rightly: only what is missing twice in a row goes, and the
broker keeps what it has leased.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from oah.core.model.group import ALL, Group, GroupKind, of_workspace
from oah.core.model.ids import EpochId, SessionId
from oah.errors import LeaseError, Unavailable
from oah.ports.broker import Broker, GroupCap, WorkspaceLimit
from oah.ports.pauses import PauseStore
from oah.ports.store import CatalogStore, Store
from oah.ports.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Governed:
    """What the broker is told."""

    workspaces: tuple[WorkspaceLimit, ...]
    groups: tuple[GroupCap, ...]

    @classmethod
    def read(cls, catalog: CatalogStore, pauses: PauseStore) -> Governed:
        """As SQL has it. Raises Unavailable."""
        paused = {pause.group for pause in pauses.pauses()}
        workspaces = tuple(
            WorkspaceLimit(w.id, w.weight, 0 if of_workspace(w.id) in paused else w.max_active_runs)
            for w in catalog.workspaces()
        )
        caps = {cap.group: cap.max_active_runs for cap in pauses.caps()}
        caps |= {group: 0 for group in paused if group.kind is not GroupKind.WORKSPACE}
        return cls(workspaces, tuple(GroupCap(group, most) for group, most in sorted(caps.items())))


def tell(store: Store, broker: Broker, epoch: EpochId) -> Governed:
    """All of it. Raises Unavailable, EpochMismatch."""
    governed = Governed.read(store, store)
    broker.limits(epoch, governed.workspaces)
    broker.caps(epoch, governed.groups)
    return governed


def tell_now(store: Store, broker: Broker, epoch: EpochId | None) -> bool:
    """After a change, best effort: what the broker was not told, reconcile tells it within seconds."""
    if epoch is not None:
        with contextlib.suppress(Unavailable, LeaseError):
            tell(store, broker, epoch)
            return True
    return False


@dataclass(slots=True)
class KeepGoverned:
    """A broker that was away while something was paused or capped hears of it soon after its return. One pass costs two
    small reads while nothing has changed. Raises Unavailable, EpochMismatch: the next pass tells it."""

    store: Store
    broker: Broker
    _told: object = None

    def __call__(self, epoch: EpochId) -> bool:
        """Whether there was something to tell."""
        rows = (epoch, self.store.pauses(), self.store.caps())
        if rows == self._told:
            return False
        self._told = None
        tell(self.store, self.broker, epoch)
        self._told = rows
        return True


@dataclass(slots=True)
class RecomputeCaps:
    """One pass a reconcile. Raises Unavailable, EpochMismatch."""

    store: Store
    broker: Broker
    telemetry: Telemetry
    _missing: dict[Group, frozenset[SessionId]] = field(default_factory=dict)

    def __call__(self, epoch: EpochId) -> int:
        """How many sessions stopped counting."""
        governed = tell(self.store, self.broker, epoch)
        groups = [ALL, *(of_workspace(w.workspace_id) for w in governed.workspaces)]
        groups += [cap.group for cap in governed.groups if cap.group.kind is GroupKind.PROFILE]
        counted = dict(zip(groups, self.broker.active(groups), strict=True))
        everywhere = sorted({session for sessions in counted.values() for session in sessions})
        owned = {row.session_id for row in self.store.owners_of(everywhere)} if everywhere else set()
        missing = {group: frozenset(sessions) - owned for group, sessions in counted.items() if sessions}
        dropped: set[SessionId] = set()
        for group, sessions in missing.items():
            twice = sessions & self._missing.get(group, frozenset())
            if twice and self.broker.drop_active(epoch, group, sorted(twice)):
                dropped |= twice
        self._missing = missing
        if dropped:
            self.telemetry.count("oah_reconcile_repairs_total", len(dropped), repair="cap")
        return len(dropped)
