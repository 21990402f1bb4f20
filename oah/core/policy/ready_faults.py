"""What can be wrong between SQL and the broker about one session, judged by one look at both (I11)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from oah.core.model.ids import ClaimToken
from oah.core.model.session import Place


class Fault(StrEnum):
    """What is wrong."""

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
    STALE = "stale"
    """The broker offers it; nothing of it may start, as SQL has it."""
    FOREIGN = "foreign"
    """The broker offers it; SQL has no such session: another deployment's, or deleted."""
    STRAY = "stray"
    """A ready set names it; its own record in the broker says that it is elsewhere or nowhere."""
    TORN = "torn"
    """It is ready, and in one index of several: counted and never taken, or the other way round."""


WORDS = {
    Fault.NO_PLACE: "session(s) with eligible runs have no place in the broker",
    Fault.READY_WHILE_OWNED: "owned session(s) are offered to everybody",
    Fault.OWNER_WITHOUT_LEASE: "session(s) have an owner in SQL and no lease",
    Fault.LEASE_WITHOUT_OWNER: "leased session(s) have no owner in SQL",
    Fault.STALE_OWNER: "owner(s) are stale for more than a lease and not recovered",
    Fault.READY_WHILE_HELD: "held session(s) are offered",
    Fault.STALE: "session(s) are offered with nothing to start",
    Fault.FOREIGN: "session(s) are offered that SQL does not know",
    Fault.STRAY: "entries of ready sets are confirmed by no session",
    Fault.TORN: "ready session(s) stand in one index of several",
}

LEADERS = frozenset({Fault.READY_WHILE_OWNED, Fault.OWNER_WITHOUT_LEASE, Fault.LEASE_WITHOUT_OWNER, Fault.STALE_OWNER})
"""What only the leader puts right, who judges owners."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A session with an owner row. `token` None: the broker has no lease."""

    mark_age: timedelta
    owner: ClaimToken
    place: Place
    token: ClaimToken | None


def of_owner(seen: Owned, *, lease: timedelta) -> Fault | None:
    """An owner row against the broker's view of its session."""
    if seen.mark_age > lease:
        return Fault.STALE_OWNER
    match seen.place:
        case Place.LEASED | Place.PARKED:
            return None if seen.token == seen.owner else Fault.OWNER_WITHOUT_LEASE
        case Place.READY:
            return Fault.READY_WHILE_OWNED
        case _:
            return Fault.OWNER_WITHOUT_LEASE


def of_queued(place: Place, *, held: bool, eligible: bool) -> Fault | None:
    """A session with queued runs and no owner against the broker's view of it."""
    if held:
        return Fault.READY_WHILE_HELD if place is Place.READY else None
    if not eligible:
        return None
    match place:
        case Place.IDLE:
            return Fault.NO_PLACE
        case Place.LEASED | Place.PARKED:
            return Fault.LEASE_WITHOUT_OWNER
        case _:
            return None


def of_ready(*, known: bool, eligible: bool, held: bool, owned: bool) -> Fault | None:
    """A session that the broker offers against SQL."""
    if not known:
        return Fault.FOREIGN
    if owned:
        return Fault.READY_WHILE_OWNED
    if held:
        return Fault.READY_WHILE_HELD
    return None if eligible else Fault.STALE
