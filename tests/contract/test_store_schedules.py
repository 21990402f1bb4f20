"""Schedules on both databases: exactly one run per fire time, whoever fires and dies in between."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from typing import Any

import pytest

from oah.adapters.cron.times import CronSimTimes
from oah.adapters.sql import firings
from oah.adapters.system.clock import SystemClock
from oah.adapters.system.ids import SystemIds
from oah.core.model.ids import SessionId
from oah.core.model.run import RunStatus
from oah.core.model.schedule import Firing, FiringOutcome, Overlap, Schedule
from oah.core.model.session import SessionState
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.core.policy.schedules import Rules
from oah.errors import Conflict, LimitReached, NotFound, Unavailable
from oah.ports.schedules import NewSchedule
from oah.ports.store import RunFilter, SubmitLimits
from oah.ports.telemetry import NullTelemetry
from oah.services import fire as fire_service
from oah.services.fire import FireSchedules
from oah.services.schedules import AskedSchedule
from oah.services.schedules import Clerk as Scheduler
from tests.support.servers_redis import FakeServer
from tests.support.store_clerk import Clerk
from tests.support.waiting import eventually

S1 = SessionId("s1")


class Skewed(SystemClock):
    """The clock of a machine that is so many seconds off."""

    def __init__(self, by: float) -> None:
        self._by = timedelta(seconds=by)

    def now(self) -> datetime:
        return super().now() + self._by


@pytest.fixture
def scheduler(clerk: Clerk) -> Callable[[float], Scheduler]:
    broker = FakeServer().broker()

    def make(skew: float = 0) -> Scheduler:
        return Scheduler(
            store=clerk.store,
            broker=broker,
            clock=Skewed(skew),
            ids=SystemIds(),
            times=CronSimTimes(),
            epoch=lambda: None,
        )

    return make


def asked(**more: Any) -> AskedSchedule:
    values: dict[str, Any] = {
        "workspace_id": DEFAULT_WORKSPACE,
        "name": "nightly",
        "cron": "* * * * *",
        "session_id": S1,
    }
    return AskedSchedule(**{**values, "run": {"input": "tick"}, **more})


def fire(scheduler: Scheduler, *, catch_up: float = 60) -> None:
    FireSchedules(scheduler, NullTelemetry(), Rules(timedelta(seconds=catch_up)))()


def overdue(clerk: Clerk, schedule: Schedule, *, minutes: int = 0) -> datetime:
    """Let its time have come: the last whole minute, or one so many before."""
    now = datetime.fromtimestamp(clerk.store.now(), UTC)
    due = now.replace(second=0, microsecond=0) - timedelta(minutes=minutes)
    clerk.store.update_schedule(schedule.id, None, {"next_at": due}, by="test")
    return due


def outcomes(clerk: Clerk, schedule: Schedule) -> list[FiringOutcome]:
    return [each.outcome for each in clerk.store.firings(schedule.id)]


def test_rows(clerk: Clerk, scheduler: Callable[..., Scheduler]) -> None:
    made = scheduler().create(asked(timezone="Europe/Berlin", overlap=Overlap.QUEUE), by="someone")
    assert made.next_at is not None and made.next_at > made.created_at
    assert clerk.store.schedule("nightly", DEFAULT_WORKSPACE) == clerk.store.schedule(made.id, None) == made
    assert clerk.store.schedules(DEFAULT_WORKSPACE).items == (made,)
    with pytest.raises(Conflict):
        scheduler().create(asked(), by="someone")
    with pytest.raises(NotFound):
        scheduler().create(asked(name="other", session_id=SessionId("s9")), by="someone")
    other = scheduler().create(asked(name="other"), by="someone")
    with pytest.raises(Conflict) as full:
        clerk.store.create_schedule(
            NewSchedule(
                id="sch_3",
                workspace_id=DEFAULT_WORKSPACE,
                name="third",
                cron="* * * * *",
                timezone="UTC",
                overlap=Overlap.SKIP,
                session_id=S1,
                next_at=None,
                by="someone",
            ),
            most=2,
        )
    assert full.value.code == "too_many_schedules"
    with pytest.raises(Conflict):
        clerk.store.update_schedule(other.id, None, {"name": "nightly"}, by="someone")
    changed = scheduler().change("nightly", None, {"cron": "0 0 1 1 *", "run": {"input": "tock"}}, by="someone")
    assert changed.next_at is not None and (changed.next_at.month, changed.next_at.day) == (12, 31), (
        "midnight in Berlin"
    )
    assert changed.template == {"run": {"input": "tock"}}
    clerk.store.delete_schedule(other.id, None, by="someone")
    with pytest.raises(NotFound):
        clerk.store.schedule("other", None)


def nothing_of_it(clerk: Clerk, schedule: Schedule, due: datetime) -> bool:
    """Whether no trace of a fire time is in the database."""
    others = [each for each in clerk.store.sessions(DEFAULT_WORKSPACE).items if each.id != S1]
    stands = clerk.store.schedule(schedule.id, None)
    traces = clerk.store.runs(RunFilter()).items, clerk.store.firings(schedule.id), others
    return not any(traces) and (stands.next_at, stands.last_at) == (due, None)


def dies(monkeypatch: pytest.MonkeyPatch, where: str, *, done: bool) -> Callable[[], None]:
    """Let the transaction of a firing break off before or after one of its parts. Returns what mends it."""
    part = getattr(firings, where)

    def die(*arguments: Any, **named: Any) -> Any:
        if done:
            part(*arguments, **named)
        raise Unavailable("killed")

    monkeypatch.setattr(firings, where, die)
    return lambda: monkeypatch.setattr(firings, where, part)


@pytest.mark.parametrize("session", [None, {"agent": "shell"}], ids=["in_one", "of_its_own"])
@pytest.mark.parametrize(
    ("where", "done"),
    [("submit_within", False), ("submit_within", True), ("_write", True), ("_forget_oldest", True)],
    ids=["before_the_run", "after_the_run", "after_the_firing", "before_the_commit"],
)
def test_a_leader_that_dies_leaves_nothing_and_another_makes_one_run(
    clerk: Clerk,
    scheduler: Callable[..., Scheduler],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    session: dict[str, str] | None,
    *,
    done: bool,
) -> None:
    mine = scheduler()
    of = {} if session is None else {"session_id": None, "session": session}
    made = mine.create(asked(**of), by="someone")
    due = overdue(clerk, made)
    mend = dies(monkeypatch, where, done=done)
    with pytest.raises(Unavailable):
        fire(mine)
    with pytest.raises(Unavailable):
        mine.trigger("nightly", None, by="someone") if where != "_forget_oldest" else fire(mine)
    assert nothing_of_it(clerk, made, due)
    mend()
    fire(mine)
    fire(mine)
    [run] = clerk.store.runs(RunFilter()).items
    [firing] = clerk.store.firings(made.id)
    assert (firing.fire_at, firing.outcome, firing.run_id) == (due, FiringOutcome.SUBMITTED, run.id)
    after = clerk.store.schedule(made.id, None)
    assert after.last_at == due and after.next_at is not None and after.next_at > due
    state = SessionState.OPEN if session is None else SessionState.CLOSING
    assert (clerk.store.session(run.session_id, None).state, run.session_id == S1) == (state, session is None)


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("change", [{"cron": "0 0 1 1 *"}, {"paused": True}])
def test_a_change_after_a_leader_died_leaves_no_run_without_its_firing(
    clerk: Clerk, scheduler: Callable[..., Scheduler], change: dict[str, Any], *, done: bool
) -> None:
    """Whether it died right before the commit or right after it, nobody comes back for this time."""
    mine = scheduler()
    made = mine.create(asked(), by="someone")
    due = overdue(clerk, made)

    class Dying:
        def __getattr__(self, name: str) -> Any:
            return getattr(clerk.store, name)

        def fire(self, *arguments: Any, **named: Any) -> Any:
            if done:
                clerk.store.fire(*arguments, **named)
            raise Unavailable("killed")

    with pytest.raises(Unavailable):
        fire(replace(mine, store=Dying()))  # type: ignore[arg-type]
    mine.change(made.id, None, change, by="somebody else")
    fire(mine)
    runs = [run.id for run in clerk.store.runs(RunFilter()).items]
    rows = [(each.fire_at, each.run_id) for each in clerk.store.firings(made.id)]
    assert rows == [(due, each) for each in runs]
    assert len(runs) == done


def test_a_second_leader_waits_and_finds_it_done(
    clerk: Clerk, scheduler: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stands between the run and its row when the other comes."""
    made = scheduler().create(asked(overlap=Overlap.QUEUE), by="someone")
    overdue(clerk, made)
    between, comes = threading.Event(), threading.Event()
    write, found, failures = firings._write, [], []

    def slow(*arguments: Any) -> None:
        between.set()
        assert comes.wait(30)
        write(*arguments)

    monkeypatch.setattr(firings, "_write", slow)

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(clerk.store, name)

        def fire(self, *arguments: Any, **named: Any) -> Any:
            comes.set()
            found.append(clerk.store.fire(*arguments, **named))
            return found[0]

    def lead(leader: Scheduler) -> None:
        try:
            fire(leader)
        except BaseException as error:
            failures.append(error)

    _, [seen] = clerk.store.due_schedules(limit=1)
    first = threading.Thread(target=lead, args=(scheduler(),))
    first.start()
    assert between.wait(30)

    class Late(Watched):
        def due_schedules(self, *, limit: int) -> Any:
            return datetime.fromtimestamp(clerk.store.now(), UTC), [seen]

    second = threading.Thread(target=lead, args=(replace(scheduler(), store=Late()),))  # type: ignore[arg-type]
    second.start()
    for thread in (first, second):
        thread.join(60)
    assert (found, failures) == ([None], [])
    [run] = clerk.store.runs(RunFilter()).items
    assert [each.run_id for each in clerk.store.firings(made.id)] == [run.id]


def test_overlap(clerk: Clerk, scheduler: Callable[..., Scheduler]) -> None:
    made = scheduler().create(asked(cron="* * * * * *"), by="someone")
    mine = scheduler()

    def until(outcome: FiringOutcome, count: int = 1) -> list[Firing]:
        def look() -> list[Firing]:
            fire(mine)
            found = [each for each in clerk.store.firings(made.id) if each.outcome is outcome]
            return found if len(found) >= count else []

        return eventually(look, within=20, every=0.05)

    [first] = until(FiringOutcome.SUBMITTED)
    until(FiringOutcome.SKIPPED)
    assert first.run_id is not None
    assert [run.id for run in clerk.store.runs(RunFilter()).items] == [first.run_id], "it has not ended"
    mine.change(made.id, None, {"overlap": Overlap.CANCEL_PREVIOUS}, by="test")
    second = until(FiringOutcome.SUBMITTED, 2)[0]
    assert second.run_id not in (None, first.run_id)
    assert clerk.store.run(first.run_id, None).status is RunStatus.CANCELLED
    triggered = mine.trigger("nightly", None, by="someone")
    assert triggered.run_id is not None and triggered in [
        replace(each, at=triggered.at) for each in clerk.store.firings(made.id)
    ], "by hand, although the one before waits"


def test_what_nobody_met_is_told_once(clerk: Clerk, scheduler: Callable[..., Scheduler]) -> None:
    made = scheduler().create(asked(overlap=Overlap.QUEUE), by="someone")
    due = overdue(clerk, made, minutes=10)
    fire(scheduler(), catch_up=3600)
    newest, missed = clerk.store.firings(made.id)
    assert (newest.outcome, missed.outcome, missed.fire_at) == (FiringOutcome.SUBMITTED, FiringOutcome.MISSED, due)
    assert missed.detail is not None and missed.detail.split(",")[0] in ("10 fire times", "11 fire times")
    assert len(clerk.store.runs(RunFilter()).items) == 1


def test_paused_closed_and_a_session_of_its_own(clerk: Clerk, scheduler: Callable[..., Scheduler]) -> None:
    own = {"agent": "shell", "labels": {"by": "cron"}}
    made = scheduler().create(asked(session_id=None, session=own, paused=True), by="someone")
    overdue(clerk, made)
    fire(scheduler())
    assert outcomes(clerk, made) == []
    clerk.store.update_schedule(made.id, None, {"paused": False}, by="test")
    fire(scheduler())
    [run] = clerk.store.runs(RunFilter()).items
    session = clerk.store.session(run.session_id, None)
    assert (session.id != S1, dict(session.labels), str(session.state)) == (True, {"by": "cron"}, "closing")
    closed = scheduler().create(asked(name="to-a-closed-one"), by="someone")
    clerk.store.close_session(S1, None)
    overdue(clerk, closed)
    fire(scheduler())
    [firing] = clerk.store.firings(closed.id)
    assert firing.outcome is FiringOutcome.REFUSED and firing.detail is not None and "session_closed" in firing.detail


def test_a_fire_time_that_has_a_firing_gets_no_other_run(clerk: Clerk, scheduler: Callable[..., Scheduler]) -> None:
    """Somebody has put the schedule back."""
    mine = scheduler()
    made = mine.create(asked(cron="0 0 1 1 *", overlap=Overlap.QUEUE), by="someone")
    due = overdue(clerk, made)
    fire(mine)
    clerk.store.update_schedule(made.id, None, {"next_at": due}, by="test")
    fire(mine)
    [run] = clerk.store.runs(RunFilter()).items
    assert [(each.fire_at, each.run_id) for each in clerk.store.firings(made.id)] == [(due, run.id)]
    assert clerk.store.schedule(made.id, None).next_at != due


@pytest.mark.parametrize(
    "broken",
    [{"cron": "61 * * * *"}, {"timezone": "Mars/Olympus"}, {"template": {"run": {"input": "x", "later": "release"}}},
     {"template": {"run": {"input": "x"}, "session": {"agent": "shell", "later": "release"}}}, {"template": {}},
     {"template": {"run": {"input": 5}, "session": {"agent": "shell"}}},
     {"template": {"run": {"input": "x"}, "session": {"agent": "shell", "env": {"A": 5}}}}],
)  # fmt: skip
def test_one_that_is_broken_keeps_no_other_from_firing(
    clerk: Clerk, scheduler: Callable[..., Scheduler], broken: dict[str, Any]
) -> None:
    own = {"agent": "shell"}
    bad, good = (scheduler().create(asked(name=name, session_id=None, session=own), by="x") for name in ("bad", "good"))
    overdue(clerk, bad, minutes=1)
    overdue(clerk, good)
    clerk.store.update_schedule(bad.id, None, broken, by="test")
    fire(scheduler(), catch_up=3600)
    assert outcomes(clerk, good) == [FiringOutcome.SUBMITTED]
    refused = clerk.store.firings(bad.id)[0]
    assert refused.outcome is FiringOutcome.REFUSED and refused.detail is not None and "_" in refused.detail
    assert (clerk.store.schedule(bad.id, None).next_at is None) == ("template" not in broken)
    assert [run.session_id for run in clerk.store.runs(RunFilter()).items] == [
        each.id for each in clerk.store.sessions(DEFAULT_WORKSPACE).items if each.id != S1
    ], "no session without a run is left"
    run = {"run": {"input": "y"}}
    mended = scheduler().change(
        "bad", None, {"cron": "* * * * *", "timezone": "UTC", "session": own, **run}, by="someone"
    )
    assert mended.next_at is not None


def test_a_run_that_is_refused_leaves_no_session(clerk: Clerk, scheduler: Callable[..., Scheduler]) -> None:
    clerk.submit(S1)
    clerk.submit(S1)
    mine = replace(scheduler(), limits=SubmitLimits(queued_per_session=100, queued_per_workspace=2))
    made = mine.create(asked(session_id=None, session={"agent": "shell"}), by="someone")
    overdue(clerk, made)
    fire(mine)
    with pytest.raises(LimitReached):
        mine.trigger("nightly", None, by="someone")
    assert outcomes(clerk, made) == [FiringOutcome.REFUSED]
    assert [each.id for each in clerk.store.sessions(DEFAULT_WORKSPACE).items] == [S1]
    assert len(clerk.store.runs(RunFilter()).items) == 2


@pytest.mark.parametrize("change", [{"cron": "0 0 1 1 *"}, {"paused": True}, {"name": "other"}, {"session_id": None}])
def test_a_change_while_it_fires_hides_no_run(
    clerk: Clerk, scheduler: Callable[..., Scheduler], change: dict[str, Any]
) -> None:
    """The leader has read it, then somebody changes the schedule, then the leader would fire it as it was. What is due
    still is fired as it is now."""
    mine = scheduler()
    made = mine.create(asked(overlap=Overlap.CANCEL_PREVIOUS), by="someone")
    due = overdue(clerk, made)
    changes = {**change, "session": {"agent": "shell"}} if "session_id" in change else change

    class Slow:
        def __getattr__(self, name: str) -> Any:
            if name == "fire":
                mine.change(made.id, None, changes, by="somebody else")
            return getattr(clerk.store, name)

    fire(replace(mine, store=Slow()))  # type: ignore[arg-type]
    if change.get("paused"):
        mine.change(made.id, None, {"paused": False}, by="somebody else")
    fire(mine)
    fire(mine)
    runs = clerk.store.runs(RunFilter()).items
    rows = [(each.fire_at, each.run_id) for each in clerk.store.firings(made.id)]
    assert rows == [(due, run.id) for run in runs]
    assert [(run.status, run.session_id == S1) for run in runs] == (
        [] if {"cron", "paused"} & change.keys() else [(RunStatus.QUEUED, "session_id" not in change)]
    )


def test_two_that_change_it_at_once_lose_nothing(clerk: Clerk, scheduler: Callable[..., Scheduler]) -> None:
    mine = scheduler()
    made = mine.create(asked(cron="0 12 * * *"), by="someone")
    meanwhile = iter([{"timezone": "Asia/Tokyo"}, {"run": {"input": "tock"}}, *[{"name": f"n{i}"} for i in range(5)]])

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(clerk.store, name)

        def update_schedule(self, *arguments: Any, **named: Any) -> Schedule:
            if (change := next(meanwhile, None)) is not None:
                mine.change(made.id, None, change, by="somebody else")
            return clerk.store.update_schedule(*arguments, **named)

    slow = replace(mine, store=Slow())  # type: ignore[arg-type]
    with pytest.raises(Conflict, match="changed meanwhile"):
        slow.change(made.id, None, {"cron": "30 7 * * *", "session": {"agent": "shell"}}, by="someone")
    changed = slow.change(made.id, None, {"cron": "30 7 * * *", "session": {"agent": "shell"}}, by="someone")
    assert changed.next_at == CronSimTimes().next("30 7 * * *", "Asia/Tokyo", after=changed.updated_at)
    assert changed.template == {"run": {"input": "tock"}, "session": {"agent": "shell"}}


def test_those_that_wait_for_their_turn_are_not_late(
    clerk: Clerk, scheduler: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More are due in one second than a leader fires within the time in which it catches up."""
    monkeypatch.setattr(fire_service, "LIMIT", 2)
    mine = scheduler()
    made = [mine.create(asked(name=f"n{number}", cron="0 0 1 1 *"), by="someone") for number in range(6)]
    for each in made[:5]:
        overdue(clerk, each)
    passed = count(0, 70)

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(clerk.store, name)

        def due_schedules(self, *, limit: int) -> Any:
            now, due = clerk.store.due_schedules(limit=limit)
            return now + timedelta(seconds=next(passed)), due

    leader = FireSchedules(replace(mine, store=Slow()), NullTelemetry(), Rules(timedelta(seconds=90)))  # type: ignore[arg-type]
    assert [leader(), leader(), leader()] == [True, True, False]
    assert [outcomes(clerk, each) for each in made] == [[FiringOutcome.SUBMITTED]] * 5 + [[]]
    overdue(clerk, made[5])
    assert not leader()
    assert outcomes(clerk, made[5]) == [FiringOutcome.MISSED], "nobody was there for it"


def test_an_id_is_meant_before_a_name(clerk: Clerk, scheduler: Callable[..., Scheduler]) -> None:
    first = scheduler().create(asked(), by="someone")
    second = scheduler().create(asked(name=first.id), by="someone")
    assert clerk.store.schedule(first.id, None) == first
    clerk.store.delete_schedule(first.id, None, by="someone")
    assert clerk.store.schedule(first.id, None) == second


def test_three_that_believe_to_lead_with_wrong_clocks(clerk: Clerk, scheduler: Callable[..., Scheduler]) -> None:
    """Every second, three at once, their clocks two seconds apart: each fire time exactly once."""
    made = scheduler().create(asked(cron="* * * * * *", overlap=Overlap.QUEUE), by="someone")
    stop = threading.Event()
    failures: list[BaseException] = []

    def lead(skew: float) -> None:
        mine = scheduler(skew)
        try:
            while not stop.wait(0.02):
                fire(mine)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=lead, args=(skew,)) for skew in (-2, 0, 2)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(clerk.store.firings(made.id)) >= 4 or failures, within=30)
    stop.set()
    for thread in threads:
        thread.join(20)
    assert not failures, failures
    found = sorted(clerk.store.firings(made.id), key=lambda each: each.fire_at)
    assert {each.outcome for each in found} == {FiringOutcome.SUBMITTED}
    gaps = {later.fire_at - earlier.fire_at for earlier, later in pairwise(found)}
    assert gaps == {timedelta(seconds=1)}
    runs = Counter(run.id for run in clerk.store.runs(RunFilter(limit=500)).items)
    assert runs == Counter(each.run_id for each in found)
