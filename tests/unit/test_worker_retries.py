"""What a worker makes of a failed attempt: the plan that goes with the outcome, and where the session goes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from oah.adapters.pty.profiles import load_profiles
from oah.adapters.sql.history import HistoryFile
from oah.bootstrap.worker import retry_rules
from oah.core.model.ids import SessionId, WorkspaceId
from oah.core.model.run import Outcome, ReadyClass, Run, RunClass, RunError, RunStatus
from oah.core.model.session import HoldReason, Place
from oah.core.policy.retry import Rules
from oah.errors import Unavailable
from oah.ports.broker import Free, Freed, Target
from oah.ports.rows import DeferredRun
from oah.ports.store import AfterRun, RetryPlan, Settlement
from oah.services.settle import Ended, SettleRuns
from oah.settings import RetrySettings, Settings
from oah.worker.parked import Parked
from oah.worker.retries import PlanRetries
from oah.worker.settler import Settler
from oah.worker.table import Phase, Table
from oah.worker.work import Finished
from tests.support.worker_doubles import Scripted, WarmAgent, context, epochs, fence, started

SECOND = timedelta(seconds=1)
RULES = Rules(max_retries=2, initial=4 * SECOND, factor=2, jitter=0.5)
MOMENT = datetime(2030, 1, 1, tzinfo=UTC)
F = fence()
RUN = Run(F.run_id, F.session_id, WorkspaceId("w"), 1, RunClass.INTERACTIVE, RunStatus.RUNNING, "x", MOMENT, MOMENT)
BACKOFF = (HoldReason.BACKOFF,)


def failed(code: str = "exit_nonzero", status: RunStatus = RunStatus.FAILED) -> Settlement:
    return Settlement(F, Outcome(status, error=RunError(code, "why")))


def plan(run: Run, settlement: Settlement | None = None, **more: Any) -> RetryPlan | None:
    asked: list[str] = []
    planner = PlanRetries(lambda profile: (asked.append(profile), RULES)[1], lambda: more.pop("chance", 0.0))
    found = planner(settlement or failed(), run, "shell", left=more.get("left"))
    assert asked == ["shell"]
    assert replace(found, retry=None) == (settlement or failed()), "the outcome stays what it is"
    return found.retry


def test_the_profiles_rules_hold_where_the_run_says_nothing() -> None:
    assert plan(RUN) == RetryPlan(4 * SECOND, 2)
    assert plan(replace(RUN, failed_attempts=1)) == RetryPlan(8 * SECOND, 2)
    assert plan(replace(RUN, failed_attempts=2)) is None
    assert plan(RUN, chance=1.0) == RetryPlan(2 * SECOND, 2)


def test_the_run_has_the_last_word() -> None:
    assert plan(replace(RUN, max_retries=0)) is None
    assert plan(replace(RUN, max_retries=9, retry={"initial_seconds": 1}, failed_attempts=3)) == RetryPlan(
        8 * SECOND, 9
    )
    timed_out = failed("run_timeout", RunStatus.TIMED_OUT)
    assert plan(RUN, timed_out) is None
    assert plan(replace(RUN, retry={"on": ["run_timeout"]}), timed_out) == RetryPlan(4 * SECOND, 2)


def test_a_wish_that_no_release_of_today_lets_in_costs_no_slot() -> None:
    assert plan(replace(RUN, retry={"on": ["worker_lost"], "tries": 3})) == RetryPlan(4 * SECOND, 2)


def test_what_is_no_failure_or_comes_too_late_is_not_planned() -> None:
    assert plan(RUN, Settlement(F, Outcome(RunStatus.COMPLETED))) is None
    assert plan(RUN, failed("cancelled", RunStatus.CANCELLED)) is None
    assert plan(RUN, left=4 * SECOND) is None
    assert plan(RUN, left=5 * SECOND) is not None


def test_the_plan_is_kept_on_the_disk_with_the_outcome(tmp_path: Path) -> None:
    log = HistoryFile(tmp_path / "history.db")
    planned = replace(failed(), retry=RetryPlan(1.5 * SECOND, 2))
    planned = replace(planned, outcome=replace(planned.outcome, output_cut=True))
    log.keep([planned])
    assert log.kept() == [planned]
    log.close()


# where the session goes


def after(**more: Any) -> AfterRun:
    return AfterRun(True, ReadyClass.INTERACTIVE, event_number=4, status=RunStatus.QUEUED, **more)


def place(found: AfterRun, *, parked: bool, **broker: Any) -> Scripted:
    redis = Scripted(free=[[Freed(Place.HELD)]], hold=[[Place.HELD]], **broker)
    store = Scripted(queued_sessions_of=[[]])
    service = SettleRuns(store, redis, epochs(), context(store, redis).telemetry)  # type: ignore[arg-type]
    service.place([Ended(F.session_id, F.token, found, parked=parked)])
    return redis


def frees(redis: Scripted) -> list[Free]:
    return [free for name, args, _ in redis.calls if name == "free" for free in args[1]]


@pytest.mark.parametrize(("parked", "target"), [(False, Target.HELD), (True, Target.PARKED)])
def test_a_backoff_holds_the_session_where_its_agent_is(parked: bool, target: Target) -> None:
    redis = place(after(held=BACKOFF, until_in=9 * SECOND), parked=parked)
    assert [(f.target, f.until_in, f.reasons) for f in frees(redis)] == [(target, 9 * SECOND, BACKOFF)]


def due() -> DeferredRun:
    lane = started(SessionId("ses_1"), F.token).session.lane
    return DeferredRun(F.session_id, F.run_id, lane, WorkspaceId("w"), ReadyClass.BACKGROUND, 9 * SECOND)


def test_a_retry_that_nobody_waits_for_is_heard_of_as_a_delayed_run() -> None:
    redis = place(after(due=due()), parked=False, enqueue=[[]])
    assert [f.target for f in frees(redis)] == [Target.READY]
    ((_, (_, [hear]), _),) = [call for call in redis.calls if call[0] == "enqueue"]
    assert (hear.run_id, hear.due_in, hear.ready_class) == (F.run_id, 9 * SECOND, ReadyClass.BACKGROUND)


def test_what_the_broker_does_not_hear_of_the_relay_says() -> None:
    redis = place(after(due=due()), parked=False, enqueue=[Unavailable("away")])
    assert len(frees(redis)) == 1


def test_a_hold_that_was_ended_before_the_free_is_looked_up_once_more() -> None:
    redis = Scripted(free=[[Freed(Place.HELD)]])
    store = Scripted(queued_sessions_of=[[]])
    service = SettleRuns(store, redis, epochs(), context(store, redis).telemetry)  # type: ignore[arg-type]
    service.place([Ended(F.session_id, F.token, after(held=BACKOFF))])
    assert store.called("queued_sessions_of") == 1
    service.place([Ended(F.session_id, F.token, after())])
    assert store.called("queued_sessions_of") == 1, "on the hot path nothing is looked up"


def test_the_agent_stays_warm_across_a_retry() -> None:
    redis = Scripted(free=[[Freed(Place.PARKED)]], publish=[None])
    store = Scripted(settle=[[after(held=BACKOFF, until_in=SECOND)]], queued_sessions_of=[[]])
    of = context(store, redis)
    table = Table(lease=30 * SECOND, margin=5 * SECOND)
    parked = Parked(capacity=2, idle=60 * SECOND, clock=of.clock, ended=lambda warm, *, empty: None)
    settler = Settler(of, table, parked, wake=lambda: None)
    begun = started(F.session_id, F.token)
    table.started(begun, F.token, begun_at=of.clock.boottime())
    agent = WarmAgent()
    settlement = replace(failed(), keep_owner=True, retry=RetryPlan(SECOND, 2))
    settler.ended(Finished(settlement, ReadyClass.INTERACTIVE, 0.1, agent))
    settler.step()
    entry = table.get(F.session_id, F.token)
    assert entry is not None and entry.phase is Phase.PARKED
    assert parked.take(F.session_id) is agent and agent.closed == 0
    assert [(f.target, f.reasons) for f in frees(redis)] == [(Target.PARKED, BACKOFF)]


def test_a_profile_comes_before_the_deployment(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('name = "mine"\nkind = "noop"\n[retry]\nmax_retries = 5\n')
    settings = Settings(retry=RetrySettings(max_retries=1, initial_seconds=7, jitter=0))
    rules = retry_rules(settings, load_profiles(tmp_path))
    assert (rules("mine").max_retries, rules("mine").initial) == (5, 7 * SECOND)
    assert (rules("shell").max_retries, rules("nobody knows").jitter) == (1, 0.0)
