"""The settler loses nothing, whatever the stores do."""

from __future__ import annotations

from datetime import timedelta

from oah.core.model.ids import WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass, RunStatus
from oah.core.model.session import Place
from oah.errors import EpochMismatch, InDoubt, Unavailable
from oah.ports.broker import Claimed, Free, Freed, Target
from oah.ports.store import OutputChunk, OwnerRow, RecoveryAction
from oah.services.recover import Recovered
from oah.worker.context import WorkerContext
from oah.worker.parked import Parked
from oah.worker.settler import Settler
from oah.worker.table import Table
from oah.worker.work import Orphaned
from tests.support.clock import StillClock
from tests.support.worker_doubles import WORKER, Log, Scripted, context, fence, finished, refused, settled

F = fence()


def broker(**answers: list[object]) -> Scripted:
    """A broker that frees."""
    return Scripted(**{"free": [[Freed(Place.IDLE)]], "publish": [None], "ensure": [[]], **answers})


def settler(of: WorkerContext) -> tuple[Settler, Table]:
    """A settler whose table holds the session of ``F``."""
    table = Table(lease=timedelta(seconds=30), margin=timedelta(seconds=5))
    table.request(F.token)
    table.answered(F.token, [Claimed(F.session_id, F.token, False, ReadyClass.INTERACTIVE)], sent_at=0.0)
    parked = Parked(capacity=2, idle=timedelta(seconds=60), clock=of.clock, ended=lambda warm, *, empty: None)
    return Settler(of, table, parked, wake=lambda: None), table


def frees(double: Scripted) -> list[Free]:
    """What was freed, in order."""
    return [free for name, args, _ in double.calls if name == "free" for free in args[1]]


def test_sql_first_then_redis_then_it_is_forgotten() -> None:
    store, redis = Scripted(settle=[[settled(waiting=ReadyClass.BACKGROUND)]]), broker()
    duty, table = settler(context(store, redis))
    duty.ended(finished(F))
    duty.step()
    assert frees(redis) == [Free(F.session_id, F.token, Target.READY, ReadyClass.BACKGROUND)]
    assert duty.unsettled == 0 and len(table) == 0 and duty.pending() is None


def test_while_sql_is_away_the_outcome_is_on_the_disk_and_the_lease_is_kept() -> None:
    clock = StillClock()
    store, redis = Scripted(settle=[Unavailable("away"), [settled()]], settle_outcome=[[]]), broker()
    of = context(store, redis, clock=clock)
    duty, table = settler(of)
    duty.ended(finished(F))
    duty.step()
    assert isinstance(of.outcomes, Log) and list(of.outcomes.rows) == [F]
    assert len(table) == 1 and duty.unsettled == 1 and frees(redis) == []
    wait = duty.pending()
    assert wait is not None and wait > 0
    clock.seconds += wait
    duty.step()
    assert of.outcomes.rows == {} and len(table) == 0 and len(frees(redis)) == 1


def test_an_outcome_is_not_lost_with_the_output_before_it() -> None:
    """What the agent has said goes first; when SQL does not take that, the end behind it waits, on the disk."""
    clock = StillClock()
    store = Scripted(
        output=[Unavailable("away"), Unavailable("away"), [7]],
        settle=[lambda batch: [settled() for _ in batch]],
        settle_outcome=[[]],
    )
    of = context(store, broker(free=[lambda epoch, items: [Freed(Place.IDLE) for _ in items]]), clock=clock)
    duty, table = settler(of)
    duty.said(OutputChunk(F, "said"))
    duty.ended(finished(F))
    duty.step()
    assert isinstance(of.outcomes, Log) and list(of.outcomes.rows) == [F]
    other = fence(2)
    duty.ended(finished(other))
    assert list(of.outcomes.rows) == [F, other], "on the disk before its slot is free again"
    for _ in range(2):
        clock.seconds += 5
        duty.step()
    assert duty.unsettled == 0 and len(table) == 0 and of.outcomes.rows == {}
    settled_fences = [each.fence for name, args, _ in store.calls if name == "settle" for each in args[0]]
    assert settled_fences == [F, other]
    assert [name for name, _, _ in store.calls][-2:] == ["output", "settle"]


def test_a_full_disk_costs_the_safety_not_the_outcome() -> None:
    clock = StillClock()
    store = Scripted(settle=[Unavailable("away"), [settled()]], settle_outcome=[[]])
    of = context(store, broker(), clock=clock, outcomes=Scripted(keep=[Unavailable("disk full")]))
    duty, table = settler(of)
    duty.ended(finished(F))
    duty.step()
    assert duty.unsettled == 1
    clock.seconds += 5
    duty.step()
    assert duty.unsettled == 0 and len(table) == 0


def test_in_doubt_is_looked_up_and_settled_again_only_if_it_did_not_happen() -> None:
    done = Scripted(settle=[InDoubt("cut")], settle_outcome=[[settled()]])
    duty, _ = settler(context(done, broker()))
    duty.ended(finished(F))
    duty.step()
    assert done.called("settle") == 1 and duty.unsettled == 0

    undone = Scripted(settle=[InDoubt("cut"), [settled()]], settle_outcome=[[refused(RunStatus.RUNNING)]])
    duty, _ = settler(context(undone, broker()))
    duty.ended(finished(F))
    duty.step()
    assert undone.called("settle") == 2 and duty.unsettled == 0


def test_a_commit_whose_answer_was_lost_twice_is_not_taken_for_a_refusal() -> None:
    clock = StillClock()
    store = Scripted(
        settle=[InDoubt("cut"), [refused(RunStatus.COMPLETED)]],
        settle_outcome=[Unavailable("still away"), [settled()]],
    )
    redis = broker()
    duty, table = settler(context(store, redis, clock=clock))
    duty.ended(finished(F))
    duty.step()
    assert duty.unsettled == 1
    clock.seconds += 5
    duty.step()
    assert len(frees(redis)) == 1 and len(table) == 0


def test_what_the_fence_refuses_is_dropped_and_frees_nothing() -> None:
    store, redis = Scripted(settle=[[refused()]]), broker()
    duty, table = settler(context(store, redis))
    duty.ended(finished(F))
    duty.step()
    assert frees(redis) == [] and len(table) == 0 and duty.unsettled == 0


def test_while_redis_is_away_the_session_waits_and_is_freed_later() -> None:
    clock = StillClock()
    store, redis = Scripted(settle=[[settled()]]), broker(free=[Unavailable("away"), [Freed(Place.IDLE)]])
    duty, table = settler(context(store, redis, clock=clock))
    duty.ended(finished(F))
    duty.step()
    assert duty.unsettled == 1 and len(table) == 1 and store.called("settle") == 1
    clock.seconds += 5
    duty.step()
    assert duty.unsettled == 0 and len(table) == 0 and store.called("settle") == 1


def test_another_epoch_is_read_and_freed_again() -> None:
    clock = StillClock()
    store, redis = Scripted(settle=[[settled()]]), broker(free=[EpochMismatch("other"), [Freed(Place.IDLE)]])
    of = context(store, redis, clock=clock)
    duty, table = settler(of)
    duty.ended(finished(F))
    duty.step()
    assert of.epochs.called("refresh") == 1  # type: ignore[attr-defined]
    clock.seconds += 5
    duty.step()
    assert len(table) == 0


def owner(seen_at: str) -> OwnerRow:
    """The owner row of ``F`` as a look finds it."""
    return OwnerRow(
        session_id=F.session_id,
        worker_id=WORKER,
        token=F.token,
        parked=False,
        seen_at=seen_at,
        age=timedelta(0),
        lane=Lane("default", "noop"),
        workspace_id=WorkspaceId("w"),
        ready_class=None,
        run_id=F.run_id,
        run_status=RunStatus.RUNNING,
        attempt=1,
        recovery_attempts=0,
        cancel_requested=False,
    )


def test_a_mark_between_look_and_recovery_of_an_orphan_of_our_own_makes_us_look_again() -> None:
    """Otherwise it would wait for both witnesses to become stale, although its owner lives and knows."""
    first, second = owner("1"), owner("2")
    store = Scripted(owners_of=[[first], [second], [second]])
    outcomes = ((first, False), (second, True))
    calls = iter([[Recovered(row, RecoveryAction.REQUEUE, "host_lost", done)] for row, done in outcomes])
    of = context(store, broker(), recover=lambda rows, *, cause, by: next(calls))
    duty, table = settler(of)
    duty.ended(Orphaned(F, "host_lost"))
    duty.step()
    assert duty.unsettled == 1 and len(table) == 1
    duty.step()
    assert duty.unsettled == 0 and len(table) == 0
    assert next(calls, None) is None
