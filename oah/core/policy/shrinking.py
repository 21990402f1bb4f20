"""Who goes when a pool shrinks, and when one may.

Nobody's work is interrupted: whoever goes takes nothing new, and is let go once it is known to be empty: by its own
report and by the store, or, of one that reports no more, by the store and by time. What is not known is no reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

from oah.core.model.scaling import Going
from oah.core.model.worker import WorkerReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """`missing`: a member that has been silent so long is believed to be gone. `patience`: one that is going and still
    at work after so long stays after all, when another is idle and can go instead."""

    missing: timedelta = timedelta(seconds=60)
    patience: timedelta = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A unit that the target has. `report` None: it does not report, and has not for `silent`. `chosen`: for how long
    it has been going."""

    name: str
    report: WorkerReport | None = None
    silent: timedelta = timedelta(0)
    going: Going | None = None
    chosen: timedelta = timedelta(0)

    @property
    def stays_out(self) -> bool:
        """It takes nothing new."""
        return self.report is not None and (self.report.cordoned or self.report.draining)

    @property
    def idle(self) -> bool:
        """Nothing runs there, by its report."""
        return self.report is not None and not self.report.busy


class _Rank(IntEnum):
    """Lower goes first."""

    REMOVING = 0
    SICK = 1
    GOING = 2
    OUT = 3
    """Cordoned by somebody: no capacity is lost with it."""
    IDLE = 4
    STUCK = 5
    BUSY = 6


def order(members: Sequence[Member], rules: Rules) -> list[str]:
    """Names, whoever had best go first. Those of whom nothing is known yet are not among them. Of a rank: fewest busy
    slots, fewest parked sessions, youngest."""
    known = [(rank, member) for member in members if (rank := _rank(member, rules)) is not None]
    return [member.name for _, member in sorted(known, key=lambda each: (each[0], *_weight(each[1])))]


def may_go(member: Member, rules: Rules, *, owns: bool, works: bool) -> bool:
    """Whether it is empty. `owns`: the store knows of sessions that its incarnation has; `works`: of runs among them.
    Parked agents without a run are no work: they end, their sessions go on elsewhere."""
    if member.going is None:
        return False
    if member.report is None:
        return member.silent >= rules.missing and not owns
    return member.stays_out and member.idle and not works


def _rank(member: Member, rules: Rules) -> _Rank | None:
    if member.going is not None:
        return _of_going(member, member.going, rules)
    if member.report is None:
        return _Rank.SICK if member.silent >= rules.missing else None
    if member.stays_out:
        return _Rank.OUT
    return _Rank.IDLE if member.idle else _Rank.BUSY


def _of_going(member: Member, going: Going, rules: Rules) -> _Rank:
    if going.removing:
        return _Rank.REMOVING
    if member.report is not None and not member.idle and member.chosen >= rules.patience:
        return _Rank.STUCK
    return _Rank.GOING


def _weight(member: Member) -> tuple[int, int, float, str]:
    report = member.report
    if report is None:
        return 0, 0, 0.0, member.name
    return report.taken, report.parked, -report.started_at.timestamp(), member.name
