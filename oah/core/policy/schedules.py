"""What is to be done about a schedule whose time has come.

Guarantees: of all fire times that have passed at most one becomes a run, the latest, and only while it is young enough;
the others are missed and told of. Nothing here knows a clock: the moment is the database's.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from oah.core.model.run import RunStatus
from oah.core.model.schedule import Overlap


@dataclass(frozen=True, slots=True)
class Rules:
    """`catch_up`: how late a fire time still becomes a run."""

    catch_up: timedelta = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class View:
    """`due`: the fire time that stands in the schedule; `latest`: the last one that has passed (`due` itself, or a
    later one). `now`: when somebody began to look after what is due. `previous`: the status of the run of the firing
    before; None: there is none, or it is gone."""

    due: datetime
    latest: datetime
    now: datetime
    overlap: Overlap
    previous: RunStatus | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """`missed`: the first fire time that nobody met, None: none was. `fire`: the one that becomes a run. `skip`: the
    one that does not, because of its predecessor. `cancel`: the predecessor is asked to stop first."""

    missed: datetime | None = None
    fire: datetime | None = None
    skip: datetime | None = None
    cancel: bool = False


def plan(view: View, rules: Rules) -> Plan:
    """Judge a schedule that is due."""
    late = view.now - view.latest > rules.catch_up
    missed = view.due if late or view.latest > view.due else None
    if late:
        return Plan(missed=missed)
    busy = view.previous is not None and not view.previous.terminal
    if busy and view.overlap is Overlap.SKIP:
        return Plan(missed=missed, skip=view.latest)
    return Plan(missed=missed, fire=view.latest, cancel=busy and view.overlap is Overlap.CANCEL_PREVIOUS)
