"""Where the broker ought to have a session, as SQL sees it, and whether it has it there (I11)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.run import ReadyClass
from oah.core.model.session import HoldReason, Place


@dataclass(frozen=True, slots=True)
class Rules:
    """`lease`: a mark younger than this is a valid owner's."""

    lease: timedelta


@dataclass(frozen=True, slots=True)
class View:
    """One session with queued runs. `mark_age` None: it has no owner row."""

    eligible: ReadyClass | None
    holds: tuple[HoldReason, ...]
    mark_age: timedelta | None
    place: Place


@dataclass(frozen=True, slots=True)
class InPlace:
    """Nothing to repair."""


@dataclass(frozen=True, slots=True)
class PutReady:
    """An eligible run and no place."""

    ready_class: ReadyClass


@dataclass(frozen=True, slots=True)
class PutHeld:
    """Held in SQL, not in the broker."""


@dataclass(frozen=True, slots=True)
class PutLeased:
    """A valid owner that the broker does not know: leased again until the mark becomes stale."""

    life: timedelta


Decision = InPlace | PutReady | PutHeld | PutLeased


def judge(view: View, rules: Rules) -> Decision:
    """Compare. An owner comes before holds, holds before eligible runs.

    A lease in another's name is a claim in flight or one that will pass: starting and the sweep see to it. An owner
    row whose mark is stale is recovery's, not ours.
    """
    leased = view.place in (Place.LEASED, Place.PARKED)
    if view.mark_age is not None:
        if leased or view.mark_age >= rules.lease:
            return InPlace()
        return PutLeased(rules.lease - view.mark_age)
    if leased:
        return InPlace()
    if view.holds:
        return InPlace() if view.place is Place.HELD else PutHeld()
    if view.eligible is not None and view.place is not Place.READY:
        return PutReady(view.eligible)
    return InPlace()
