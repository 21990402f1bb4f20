"""Pause and cap groups of sessions. SQL first; the broker is told at once, or by the next reconcile.

What was claimed a moment before may still start; what runs goes on, and so does what waited for an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from oah.core.model.group import ALL, Cap, Group, GroupKind, Pause, of_workspace
from oah.core.model.ids import EpochId, WorkspaceId
from oah.core.policy import admission
from oah.errors import Forbidden, InvalidRequest
from oah.ports.broker import Broker
from oah.ports.store import Store
from oah.services import caps, workspaces

REASON_BYTES = 2_000
LARGEST = 1_000_000_000


def named(store: Store, kind: GroupKind, name: str | None, *, bound_to: WorkspaceId | None) -> Group:
    """The group that a request speaks of. ``bound_to``: the caller's workspace, which is all that it governs.

    Raises InvalidRequest, NotFound, Forbidden.
    """
    if kind is GroupKind.WORKSPACE:
        return of_workspace(workspaces.resolve(store, name, bound_to))
    if bound_to is not None:
        raise Forbidden(f"a key of one workspace governs no {kind}", hint="ask an admin")
    if kind is GroupKind.ALL:
        if name:
            raise InvalidRequest("all has no name")
        return ALL
    return Group(kind, admission.name(name or "", what=kind))


@dataclass(frozen=True, slots=True)
class Govern:
    """One operator's deeds. Raises Unavailable (the store)."""

    store: Store
    broker: Broker
    epoch: EpochId | None
    by: str

    def pause(self, group: Group, reason: str | None) -> Pause:
        """Start no run of the group. Raises NotFound, InvalidRequest."""
        if reason is not None:
            admission.clean(reason, what="reason", limit=REASON_BYTES)
        made = self.store.pause_group(group, by=self.by, reason=reason)
        self.tell()
        return made

    def resume(self, group: Group) -> bool:
        """Undo it; whether it was paused."""
        was = self.store.resume_group(group, by=self.by)
        self.tell()
        return was

    def cap(self, group: Group, most: int | None) -> Cap | None:
        """So many runs at once; None: any. Raises InvalidRequest."""
        if most is not None and not 1 <= most <= LARGEST:
            raise InvalidRequest(f"max_active_runs must be 1 to {LARGEST}, or null for no cap", hint="0: pause it")
        if most is None:
            self.store.drop_cap(group, by=self.by)
            made = None
        else:
            made = self.store.set_cap(group, most, by=self.by)
        self.tell()
        return made

    def tell(self) -> None:
        """The broker, as SQL has it now."""
        caps.tell_now(self.store, self.broker, self.epoch)
