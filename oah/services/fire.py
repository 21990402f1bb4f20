"""Fire: the leader's duty to make runs of schedules whose time has come."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count

from oah.core.model.run import RunStatus
from oah.core.model.schedule import Firing, FiringOutcome, Schedule, refused
from oah.core.policy.schedules import Plan, Rules, View, plan
from oah.errors import InvalidRequest, NotFound, RequestError
from oah.ports.schedules import DueRun, DueSchedule
from oah.ports.telemetry import Telemetry
from oah.services.cancel import cancel
from oah.services.schedules import Clerk

log = logging.getLogger(__name__)

LIMIT = 25
"""Schedules of one pass: short enough for a slow database not to look like a leader that hangs."""

KEPT = 1_000
"""Firings that are kept of each schedule."""

COUNTED = 1_000
"""Missed fire times that are counted one by one; beyond it is "more than"."""


@dataclass(slots=True)
class Backlog:
    """The moments at which full passes in a row began: the first, and the last."""

    first: datetime | None = None
    last: datetime | None = None

    def since(self, now: datetime, longest: timedelta) -> datetime:
        """Of a pass that begins now. One that comes so much later than the one before follows on nothing."""
        if self.first is None or self.last is None or now - self.last > longest:
            self.first = now
        self.last = now
        return self.first


@dataclass(frozen=True, slots=True)
class FireSchedules:
    """One pass. Of several that pass at the same moment one writes, the others find it done. Raises Unavailable."""

    clerk: Clerk
    telemetry: Telemetry
    rules: Rules = field(default_factory=Rules)
    backlog: Backlog = field(default_factory=Backlog)

    def __call__(self, going_on: Callable[[], bool] = lambda: True) -> bool:
        """Whether there may be more to fire at once."""
        now, due = self.clerk.store.due_schedules(limit=LIMIT)
        since = self.backlog.since(now, self.rules.catch_up)
        more = len(due) == LIMIT
        for each in due:
            if not going_on():
                more = False
                break
            self._fire(each, now, since)
        if not more:
            self.backlog.first = None
        return more

    def _fire(self, found: DueSchedule, now: datetime, since: datetime) -> None:
        """`since`: from when on somebody has been at it. However many are due in one second, none is late for that."""
        schedule, times = found.schedule, self.clerk.times
        assert schedule.next_at is not None  # it is due
        try:
            latest = times.latest(schedule.cron, schedule.timezone, at=now) or schedule.next_at
            following = times.next(schedule.cron, schedule.timezone, after=max(latest, schedule.next_at, now))
        except InvalidRequest as error:  # it could be read when it was written: another zone database, another release
            log.warning("schedule %s fires no more: %s", schedule.name, error.message)
            self._write(schedule, [refused(schedule, schedule.next_at, error)], None, following=None)
            return
        view = View(schedule.next_at, max(latest, schedule.next_at), since, schedule.overlap, self._previous(found))
        decided = plan(view, self.rules)
        firings, due = self._missed(schedule, decided, view), None
        if decided.skip is not None:
            firings.append(_firing(schedule, decided.skip, FiringOutcome.SKIPPED, f"{found.previous} has not ended"))
        if decided.fire is not None:
            by = f"schedule:{schedule.name}"
            if decided.cancel and found.previous is not None:
                with contextlib.suppress(NotFound):  # it is gone meanwhile
                    cancel(self.clerk.store, self.clerk.broker, self.clerk.epoch(), found.previous, None, by=by)
            try:
                due = self.clerk.due(schedule, decided.fire, by=by)
            except RequestError as error:
                firings.append(refused(schedule, decided.fire, error))
        self._write(schedule, firings, due, following=following)

    def _write(
        self, schedule: Schedule, firings: Sequence[Firing], due: DueRun | None, *, following: datetime | None
    ) -> None:
        fired = self.clerk.store.fire(
            schedule, firings, due=due, next_at=following, limits=self.clerk.limits, keep=KEPT
        )
        if fired is None:
            return
        if fired.accepted is not None:
            self.clerk.hear(fired.accepted)
        for firing in fired.firings:
            self.telemetry.count("oah_schedule_firings_total", outcome=str(firing.outcome))
            log.info("schedule %s at %s: %s", schedule.name, firing.fire_at.isoformat(), firing.outcome)

    def _previous(self, found: DueSchedule) -> RunStatus | None:
        if found.previous is None:
            return None
        try:
            return self.clerk.store.run(found.previous, None).status
        except NotFound:
            return None

    def _missed(self, schedule: Schedule, decided: Plan, view: View) -> list[Firing]:
        if decided.missed is None:
            return []
        last = view.latest if decided.fire is None and decided.skip is None else None
        missed, at, over = 0, decided.missed, False
        for missed in count(1):
            following = self.clerk.times.next(schedule.cron, schedule.timezone, after=at)
            over = following is None or following > view.latest or (last is None and following == view.latest)
            if over or missed == COUNTED:
                break
            assert following is not None
            at = following
        told = "1 fire time" if missed == 1 else f"{missed} fire times"
        told = f"{told}, the last at {at.isoformat()}" if over else f"more than {told}"
        return [_firing(schedule, decided.missed, FiringOutcome.MISSED, told)]


def _firing(schedule: Schedule, fire_at: datetime, outcome: FiringOutcome, detail: str) -> Firing:
    return Firing(schedule_id=schedule.id, fire_at=fire_at, outcome=outcome, detail=detail)
