"""Whether the owner of a session is gone: the judgement of the two witnesses (I5).

An owner row is an orphan when *both* witnesses are stale for a whole lease, the broker has been telling one story for
a whole lease, and no clock has been seen to jump. The caller reads SQL first and the lease second, and names the
`seen_at` that it read when it acts: then no later confirmation can be overlooked, however slow the caller is.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.session import Place


@dataclass(frozen=True, slots=True)
class Rules:
    """`lease`: L, the life of a lease and of a mark."""

    lease: timedelta


@dataclass(frozen=True, slots=True)
class View:
    """One owner row and what the broker says of its session.

    `mark_age` by the database's clock when the row was read; `place`, `same_token`, `life` (remaining; negative when
    passed) by the broker, read after the row; `open_for`: how long the shard has been open under this epoch, None
    while it is not; `on_hold`: a clock stepped or the leader is new.
    """

    mark_age: timedelta
    place: Place
    same_token: bool
    life: timedelta | None
    open_for: timedelta | None
    on_hold: bool


@dataclass(frozen=True, slots=True)
class Orphan:
    """Both witnesses are stale: recovery may decide about the run."""


@dataclass(frozen=True, slots=True)
class Restore:
    """The lease is gone, the mark is not: leased again, only until the mark becomes stale."""

    life: timedelta


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do now."""

    why: str


Decision = Orphan | Restore | Wait


def judge(view: View, rules: Rules) -> Decision:
    """The decision about one owner row. A lease in another's name does not witness for this one."""
    mine = view.place in (Place.LEASED, Place.PARKED) and view.same_token
    if mine and view.life is not None and view.life > timedelta(0):
        return Wait("leased")
    if view.mark_age < rules.lease:
        return Restore(rules.lease - view.mark_age)
    if view.on_hold:
        return Wait("on_hold")
    if view.open_for is None or view.open_for < rules.lease:
        return Wait("shard_young")
    return Orphan()
