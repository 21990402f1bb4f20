"""What a rolling restart does next.

Guarantees: never more than a batch under way, and the next batch only when every worker of the last has a successor
that served for a while; a worker that is not in the registry is not taken for ended because of that alone, its
successor is what counts; one failure ends the rollout, and what has not been restarted goes on serving. Whom an
operator has cordoned by name has a cordoned successor without doing of this; any other cordon ends with its worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from oah.core.model.drain import AtDeadline
from oah.core.model.ids import WorkerId
from oah.core.model.rollout import Member, Rollout, RolloutRules, RolloutState, Stage
from oah.core.model.worker import WorkerReport, WorkerState

ENDS_WITHIN = timedelta(minutes=2)
"""Beyond the deadline of its drain a worker has this long to end its agents, record what has ended, and go."""
UNKNOWN_DEADLINE = timedelta(hours=1)
"""What is believed of the deadline that a worker's own settings have."""
MISSING = timedelta(seconds=60)
"""A worker that nobody drained and that is in no registry for this long is gone, as by a smaller pool. So long, or as
long as the first one has to come up, a successor that has served may be missing."""
SAY_AGAIN = timedelta(seconds=5)
"""A worker that does not report its drain after this is told again."""
SERVING = (WorkerState.IDLE, WorkerState.BUSY)


@dataclass(frozen=True, slots=True)
class Step:
    """What to write, and whom to tell what in the same transaction."""

    rollout: Rollout
    drain: tuple[WorkerId, ...] = ()
    cordon: tuple[WorkerId, ...] = ()
    uncordon: tuple[WorkerId, ...] = ()


def members_of(reports: Iterable[WorkerReport]) -> tuple[Member, ...]:
    """The members of a rollout of these workers, in the order of their names; of a name the latest incarnation."""
    latest: dict[tuple[str, str], WorkerReport] = {}
    for report in sorted(reports, key=lambda each: each.started_at):
        latest[report.host, report.name] = report
    return tuple(_member(latest[key]) for key in sorted(latest, key=lambda key: (key[1], key[0])))


def _member(report: WorkerReport) -> Member:
    reason = "it lives inside an API process, which does not end by a drain" if report.embedded else None
    return Member(
        report.id,
        report.name,
        report.host,
        report.version,
        report.profiles,
        cordoned=_of_its_life(report) and not report.draining,
        stage=Stage.SKIPPED if report.embedded else Stage.PENDING,
        reason=reason,
    )


def _of_its_life(report: WorkerReport) -> bool:
    """Cordoned, and not by an operator for its name."""
    return report.cordoned and report.cordon is None


def advance(rollout: Rollout, alive: Sequence[WorkerReport], now: datetime) -> Step:
    """The next step of a rollout that is open. ``alive``: all workers of the registry; ``now``: SQL's clock."""
    world = _World(rollout.rules, alive, now)
    members = tuple(world.moved(member) for member in rollout.members)
    failed = next((member for member in members if member.stage is Stage.FAILED), None)
    if failed is not None:
        error = f"{failed.name} on {failed.host}: {failed.reason}"
        return end(replace(rollout, members=members), RolloutState.FAILED, error, alive, now)
    if not any(member.stage.under_way for member in members):
        members = world.next_batch(members)
    grown = replace(rollout, members=members)
    if all(member.stage in (Stage.DONE, Stage.SKIPPED) for member in members):
        grown = replace(grown, state=RolloutState.COMPLETED, ended_at=now)
    return Step(grown, drain=tuple(world.drain))


def end(rollout: Rollout, state: RolloutState, error: str, alive: Sequence[WorkerReport], now: datetime) -> Step:
    """No more of it: drains that have not ended their workers yet are taken back, the rest is left as it is."""
    there = {report.id: report for report in alive}

    def can_go_on(member: Member) -> bool:
        report = there.get(member.worker_id)
        return member.stage is Stage.DRAINING and report is not None and report.state is not WorkerState.STOPPING

    back = [member for member in rollout.members if can_go_on(member)]
    members = tuple(
        replace(member, stage=Stage.RELEASED, since=now) if member in back else member for member in rollout.members
    )
    ended = replace(rollout, members=members, state=state, error=error, ended_at=now)
    return Step(
        ended,
        uncordon=tuple(member.worker_id for member in back),
        cordon=tuple(member.worker_id for member in back if member.cordoned),
    )


class _World:
    """The registry as one step sees it, and what it makes of it."""

    def __init__(self, rules: RolloutRules, alive: Sequence[WorkerReport], now: datetime) -> None:
        self._rules = rules
        self._now = now
        self._by_id: Mapping[str, WorkerReport] = {report.id: report for report in alive}
        self._latest: dict[tuple[str, str], WorkerReport] = {}
        for report in sorted(alive, key=lambda each: each.started_at):
            self._latest[report.host, report.name] = report
        self.drain: list[WorkerId] = []

    def moved(self, member: Member) -> Member:
        """Where a member stands now."""
        match member.stage:
            case Stage.DRAINING:
                return self._draining(member)
            case Stage.STARTING:
                return self._starting(member)
            case Stage.SETTLING:
                return self._settling(member)
            case Stage.PENDING if member.since is not None and member.worker_id in self._by_id:
                return replace(member, since=None)  # the registry had lost it for a moment
            case _:
                return member

    def next_batch(self, members: tuple[Member, ...]) -> tuple[Member, ...]:
        """The next of those that wait: first those that are there, then what became of the others."""
        left = self._rules.batch
        chosen = []
        for member in members:
            begun = self._begun(member) if member.stage is Stage.PENDING and left else member
            left -= begun.stage.under_way
            chosen.append(begun)
        return tuple(chosen)

    def _begun(self, member: Member) -> Member:
        report = self._by_id.get(member.worker_id)
        if report is not None and report.draining:
            seen = member.told_at or self._now  # it may have been taken back a moment ago, and not be reported yet
            if self._for_longer_than(seen, SAY_AGAIN):
                return replace(member, stage=Stage.SKIPPED, since=self._now, reason="somebody else drains it")
            return replace(member, told_at=seen)
        if self._successor(member) is not None:  # it was restarted meanwhile, by whomever
            return self._starting(replace(member, stage=Stage.STARTING, since=self._now, gone_at=self._now))
        if report is not None:
            self.drain.append(member.worker_id)
            now = self._now
            return replace(member, stage=Stage.DRAINING, since=now, told_at=now, cordoned=_of_its_life(report))
        if member.since is None:
            return replace(member, since=self._now)
        if self._for_longer_than(member.since, MISSING):
            return replace(member, stage=Stage.SKIPPED, since=self._now, reason="it is gone")
        return member

    def _draining(self, member: Member) -> Member:
        report, since = self._by_id.get(member.worker_id), member.since or self._now
        if self._successor(member) is not None or report is None:
            gone = replace(member, stage=Stage.STARTING, since=self._now, gone_at=member.gone_at or self._now)
            return self._starting(gone)
        drain = self._rules.drain
        longest = (UNKNOWN_DEADLINE if drain.deadline is None else drain.deadline) + ENDS_WITHIN
        if drain.then is not AtDeadline.WAIT and self._for_longer_than(since, longest):
            return self._failed(member, "it does not end")
        if not report.draining and self._for_longer_than(member.told_at or since, SAY_AGAIN):
            self.drain.append(member.worker_id)
            return replace(member, told_at=self._now)
        return member

    def _starting(self, member: Member) -> Member:
        successor = self._successor(member)
        if successor is None and member.worker_id in self._by_id:  # the registry had lost it for a moment
            return replace(member, stage=Stage.DRAINING, gone_at=None)
        wrong = "nobody has started it again" if successor is None else self._wrong(member, successor)
        late = self._for_longer_than(member.gone_at or self._now, self._rules.health)
        if late and successor is not None and member.successor not in (None, successor.id):
            return self._failed(member, "its successors do not last")
        if wrong is None and successor is not None:
            return replace(
                member,
                stage=Stage.SETTLING,
                since=self._now,
                successor=successor.id,
                successor_version=successor.version,
                reason=None,
            )
        missing = self._for_longer_than(member.since or self._now, min(self._rules.health, MISSING))
        if late and (successor is not None or missing):
            return self._failed(member, f"no healthy successor in time: {wrong}")
        if successor is None:
            return replace(member, reason=None)
        return replace(member, reason=wrong, successor=successor.id, successor_version=successor.version)

    def _settling(self, member: Member) -> Member:
        successor = self._successor(member)
        if successor is None or successor.id != member.successor or self._wrong(member, successor) is not None:
            return self._starting(replace(member, stage=Stage.STARTING, since=self._now))
        if self._for_longer_than(member.since or self._now, self._rules.settle):
            return replace(member, stage=Stage.DONE, since=self._now)
        return member

    def _successor(self, member: Member) -> WorkerReport | None:
        latest = self._latest.get((member.host, member.name))
        return None if latest is None or latest.id == member.worker_id else latest

    def _wrong(self, member: Member, successor: WorkerReport) -> str | None:
        """What its successor lacks; None: it is healthy."""
        if successor.state not in SERVING:
            return f"it is {successor.state}"
        if successor.draining or _of_its_life(successor):
            return "it takes no runs"
        lost = sorted(set(member.profiles) - set(successor.profiles))
        if lost:
            why = "; ".join(f"{each} ({successor.withdrawn.get(each, 'unknown to it')})" for each in lost)
            return f"it does not serve {why}"
        if self._rules.version is not None and successor.version != self._rules.version:
            return f"its version is {successor.version}, not {self._rules.version}"
        return None

    def _failed(self, member: Member, reason: str) -> Member:
        return replace(member, stage=Stage.FAILED, since=self._now, reason=reason)

    def _for_longer_than(self, since: datetime, limit: timedelta) -> bool:
        return self._now - since >= limit
