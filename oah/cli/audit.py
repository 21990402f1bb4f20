"""SQL against Redis: what SQL says must run or wait, and whether the broker knows it (invariant I11).

Reads only. What looks wrong is looked at again two seconds later: a run on its way between the stores is no fault, the
same fault twice is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from oah.cli.findings import Finding, bad, ok, warn
from oah.core.model.ids import EpochId, SessionId
from oah.core.model.session import Place

if TYPE_CHECKING:
    from oah.ports.broker import Broker
    from oah.ports.dispatch import LeaseView
    from oah.ports.store import OwnerRow, QueuedSession, Store

T = TypeVar("T")

PAGE = 1_000
SECOND_LOOK_SECONDS = 2.0
_NAMED = 5


class Fault(StrEnum):
    """What can be wrong with one session."""

    NO_PLACE = "no_place"
    """It has an eligible run and is in no set of the broker: it would wait for ever."""
    READY_WHILE_OWNED = "ready_while_owned"
    """SQL names a live owner, the broker offers it to everybody."""
    OWNER_WITHOUT_LEASE = "owner_without_lease"
    """SQL names a live owner whose lease the broker does not have."""
    LEASE_WITHOUT_OWNER = "lease_without_owner"
    """The broker has leased it; SQL names no owner."""
    STALE_OWNER = "stale_owner"
    """The owner has marked nothing for more than a lease: recovery should have moved it."""
    READY_WHILE_HELD = "ready_while_held"
    """SQL holds it (paused, backoff), the broker offers it."""


_WORDS = {
    Fault.NO_PLACE: "session(s) with eligible runs have no place in the broker",
    Fault.READY_WHILE_OWNED: "owned session(s) are offered to everybody",
    Fault.OWNER_WITHOUT_LEASE: "session(s) have an owner in SQL and no lease",
    Fault.LEASE_WITHOUT_OWNER: "leased session(s) have no owner in SQL",
    Fault.STALE_OWNER: "owner(s) are stale for more than a lease and not recovered",
    Fault.READY_WHILE_HELD: "held session(s) are offered",
}


@dataclass(frozen=True, slots=True)
class Audit:
    """What was looked at, and the faults that were there twice."""

    epoch: EpochId | None
    queued: int = 0
    owners: int = 0
    faults: dict[Fault, tuple[SessionId, ...]] = field(default_factory=dict)

    def findings(self) -> Iterator[Finding]:
        """As doctor tells it."""
        yield ok("audit", f"{self.queued} session(s) with queued runs, {self.owners} owner(s) looked at")
        for fault, sessions in self.faults.items():
            named = ", ".join(sessions[:_NAMED]) + (" …" if len(sessions) > _NAMED else "")
            yield bad(
                f"audit_{fault}",
                f"{len(sessions)} {_WORDS[fault]}: {named}",
                "the leader repairs this within a minute; is there one? oah controller show",
            )


def audit(store: Store, broker: Broker, *, lease: timedelta, pause: Callable[[float], None]) -> Audit:
    """Both looks. Raises Unavailable, EpochMismatch (a rebuild began meanwhile)."""
    epoch = store.current_epoch()
    if epoch is None:
        return Audit(None)
    queued = _all_queued(store, epoch)
    owners = _all_owners(store)
    suspects = _look(broker, epoch, queued, owners, lease=lease)
    faults: dict[Fault, tuple[SessionId, ...]] = {}
    if suspects:
        pause(SECOND_LOOK_SECONDS)
        names = sorted({session for sessions in suspects.values() for session in sessions})
        again: dict[Fault, set[SessionId]] = {}
        for part in _pieces(names):
            seen = _look(broker, epoch, store.queued_sessions_of(part, epoch), store.owners_of(part), lease=lease)
            for fault, sessions in seen.items():
                again.setdefault(fault, set()).update(sessions)
        faults = {f: tuple(sorted(s & again.get(f, set()))) for f, s in suspects.items() if s & again.get(f, set())}
    return Audit(epoch, len(queued), len(owners), faults)


def _all_queued(store: Store, epoch: EpochId) -> list[QueuedSession]:
    found: list[QueuedSession] = []
    while True:
        page = store.queued_sessions(epoch, after=found[-1].session_id if found else None, limit=PAGE)
        found += page
        if len(page) < PAGE:
            return found


def _all_owners(store: Store) -> list[OwnerRow]:
    found: list[OwnerRow] = []
    while True:
        page = store.owners(after=found[-1].session_id if found else None, limit=PAGE)
        found += page
        if len(page) < PAGE:
            return found


def _pieces(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), PAGE):
        yield items[start : start + PAGE]


def _look(
    broker: Broker,
    epoch: EpochId,
    queued: Sequence[QueuedSession],
    owners: Sequence[OwnerRow],
    *,
    lease: timedelta,
) -> dict[Fault, set[SessionId]]:
    """One look: SQL was read first, leases are read now."""
    names = list(dict.fromkeys([*(row.session_id for row in owners), *(each.session_id for each in queued)]))
    leases: dict[SessionId, LeaseView] = {}
    for part in _pieces(names):
        leases |= {view.session_id: view for view in broker.leases(epoch, part)}
    found: dict[Fault, set[SessionId]] = {}
    owned = {row.session_id for row in owners}
    for row in owners:
        fault = judge_owner(row, leases[row.session_id], lease=lease)
        if fault is not None:
            found.setdefault(fault, set()).add(row.session_id)
    for each in queued:
        if each.session_id not in owned and each.owner is None:
            fault = judge_queued(each, leases[each.session_id])
            if fault is not None:
                found.setdefault(fault, set()).add(each.session_id)
    return found


def judge_owner(row: OwnerRow, view: LeaseView, *, lease: timedelta) -> Fault | None:
    """An owner row against the broker's view of its session."""
    if row.age > lease:
        return Fault.STALE_OWNER
    match view.place:
        case Place.LEASED | Place.PARKED:
            return None if view.token == row.token else Fault.OWNER_WITHOUT_LEASE
        case Place.READY:
            return Fault.READY_WHILE_OWNED
        case _:
            return Fault.OWNER_WITHOUT_LEASE


def judge_queued(each: QueuedSession, view: LeaseView) -> Fault | None:
    """A session with queued runs and no owner against the broker's view of it."""
    if each.holds:
        return Fault.READY_WHILE_HELD if view.place is Place.READY else None
    if each.ready_class is None:
        return None
    match view.place:
        case Place.IDLE:
            return Fault.NO_PLACE
        case Place.LEASED | Place.PARKED:
            return Fault.LEASE_WITHOUT_OWNER
        case _:
            return None


def epoch_findings(store: Store, broker: Broker) -> Iterator[Finding]:
    """Whether both stores speak of the same epoch."""
    wanted, view = store.current_epoch(), broker.view()
    if wanted is None:
        yield warn(
            "epoch", "SQL has none yet: no leader has ever run", "start oah-controller, or oah-api without --api-only"
        )
    elif view.id is None:
        yield bad(
            "epoch", "the broker is empty; a leader rebuilds it from SQL", "is there a leader? oah controller show"
        )
    elif view.id != wanted:
        yield bad("epoch", f"SQL is at {wanted}, the broker at {view.id}", "is there a leader? oah controller show")
    else:
        yield ok("epoch", f"{wanted} {view.state}")
