"""What the store tells the broker: sessions with queued runs, what it has not heard of, what is due."""

from __future__ import annotations

from datetime import timedelta

from oah.core.model.ids import EpochId, RunId, SessionId, WorkspaceId
from oah.core.model.run import ReadyClass, RunClass, RunStatus
from oah.core.model.session import HoldReason
from oah.ports.store import StoreCounts
from tests.support.store_clerk import EPOCH, LANE, Clerk, fence_of

S1 = SessionId("s1")
NOW = timedelta(0)
HOUR = timedelta(hours=1)


def ids(found: list) -> list[str]:  # type: ignore[type-arg]
    return [session.session_id for session in found]


def test_sessions_with_queued_runs_come_in_order_page_by_page(clerk: Clerk) -> None:
    for n in range(7):
        clerk.session(f"t{n}")
        if n != 3:
            for _ in range(n + 1):
                clerk.submit(f"t{n}")
    assert ids(clerk.store.queued_sessions(EPOCH, after=None, limit=4)) == ["t0", "t1", "t2", "t4"]
    assert ids(clerk.store.queued_sessions(EPOCH, after=SessionId("t4"), limit=4)) == ["t5", "t6"]
    assert clerk.store.queued_sessions(EPOCH, after=SessionId("t6"), limit=4) == []


def test_a_queued_session_carries_all_that_places_it(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.settle(clerk.start(), keep=True)
    clerk.submit(run_id="b", run_class=RunClass.BACKGROUND)
    clerk.submit(run_id="c", run_class=RunClass.SUBAGENT)
    clerk.store.hold_session(S1, None, HoldReason.PAUSED, until_in=None)
    (found,) = clerk.store.queued_sessions(EPOCH, after=None, limit=9)
    assert (found.session_id, found.lane, found.workspace_id) == ("s1", LANE, "default")
    assert (found.ready_class, found.first_run_id) == (ReadyClass.SUBAGENT, "b")
    assert (found.holds, found.until_in, found.wrong_epoch) == ((HoldReason.PAUSED,), None, True)
    assert found.owner == clerk.owner() or (found.owner is not None and found.owner.parked)
    assert NOW <= found.oldest_age < timedelta(minutes=1)
    assert clerk.store.queued_sessions_of([S1], EPOCH)[0].first_run_id == "b"


def test_the_sessions_asked_for_are_told_also_without_runs(clerk: Clerk) -> None:
    clerk.session("s2")
    clerk.submit("s2", delay=HOUR)
    empty, deferred = clerk.store.queued_sessions_of([SessionId("s2"), S1, SessionId("nowhere")], EPOCH)
    assert (empty.session_id, empty.ready_class, empty.first_run_id) == ("s1", None, None)
    assert (deferred.session_id, deferred.ready_class) == ("s2", None)
    assert not empty.wrong_epoch


def test_wrong_epochs_are_found_first_with_few_and_with_many(clerk: Clerk) -> None:
    for n in range(12):
        clerk.session(f"t{n:02}")
        clerk.submit(f"t{n:02}", f"t{n:02}-a")
    clerk.store.heard([RunId(f"t{n:02}-a") for n in range(0, 12, 2)], EPOCH)
    odd = [f"t{n:02}" for n in range(1, 12, 2)]
    for limit in (1, 2, 100):  # below and above the number that is sorted at once
        got, after = [], None
        while page := clerk.store.queued_sessions(EPOCH, after=after, limit=limit, wrong_epoch_only=True):
            assert len(page) <= limit
            got += ids(page)
            after = page[-1].session_id
        assert got == odd
    assert len(clerk.store.queued_sessions(EpochId("next"), after=None, limit=100, wrong_epoch_only=True)) == 12


def test_the_relay_hears_what_was_not_heard_and_old_enough(clerk: Clerk) -> None:
    for run_id in ("a", "b", "c"):
        clerk.submit(run_id=run_id)
    clerk.submit(run_id="d", delay=HOUR, run_class=RunClass.SUBAGENT)
    unheard = clerk.store.unheard(EPOCH, older_than=NOW, limit=10)
    assert [accepted.run.id for accepted in unheard] == ["a", "b", "c", "d"]
    assert unheard[0].due_in is None and unheard[0].ready_class is ReadyClass.INTERACTIVE
    assert unheard[3].due_in is not None and unheard[3].due_in > timedelta(minutes=59)
    assert unheard[3].ready_class is ReadyClass.SUBAGENT
    assert clerk.store.unheard(EPOCH, older_than=HOUR, limit=10) == []
    clerk.store.heard([RunId("b"), RunId("nothing")], EPOCH)
    assert [a.run.id for a in clerk.store.unheard(EPOCH, older_than=NOW, limit=2)] == ["a", "c"]
    assert len(clerk.store.unheard(EpochId("zzz"), older_than=NOW, limit=10)) == 4
    assert len(clerk.store.unheard(EpochId("a"), older_than=NOW, limit=10)) == 4


def test_what_starts_is_heard_and_what_comes_back_is_not(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    start = clerk.start()
    assert clerk.store.unheard(EPOCH, older_than=NOW, limit=10) == []
    clerk.store.heard([RunId("a")], EpochId("other"))
    clerk.store.release([fence_of(start)])
    assert [a.run.id for a in clerk.store.unheard(EPOCH, older_than=NOW, limit=10)] == ["a"]


def test_the_relay_tells_a_suspect_as_one(clerk: Clerk) -> None:
    clerk.submit()
    clerk.start()
    clerk.recover(clerk.owner())
    clerk.submit()
    assert {a.ready_class for a in clerk.store.unheard(EPOCH, older_than=NOW, limit=10)} == {ReadyClass.SUSPECT}


def test_deferred_runs_come_with_their_remaining_time(clerk: Clerk) -> None:
    clerk.submit(run_id="a", delay=HOUR)
    clerk.submit(run_id="b")
    clerk.submit(run_id="c", delay=HOUR, run_class=RunClass.BACKGROUND)
    clerk.behind.query("UPDATE runs SET due_at = created_at WHERE id = 'a'")
    first, second = clerk.store.deferred(after=None, limit=10)
    assert (first.run_id, first.due_in, first.hear_session, first.lane) == ("a", NOW, "s1", LANE)
    assert second.ready_class is ReadyClass.BACKGROUND and second.due_in > timedelta(minutes=59)
    assert [run.run_id for run in clerk.store.deferred(after=RunId("a"), limit=10)] == ["c"]
    assert [run.run_id for run in clerk.store.deferred(after=None, limit=1)] == ["a"]


def test_hn3_promotion_makes_it_eligible_at_a_new_place(clerk: Clerk) -> None:
    clerk.submit(run_id="late", delay=HOUR)
    clerk.submit(run_id="b")
    clerk.submit(run_id="c")
    (found,) = clerk.store.promote([RunId("late")], [], EPOCH)
    assert (found.session_id, found.ready_class, found.first_run_id) == (S1, ReadyClass.INTERACTIVE, "b")
    again = clerk.store.promote([RunId("late")], [], EPOCH)
    assert [q.session_id for q in again] == ["s1"], "repeated, it still says where the session belongs"
    assert clerk.run("late").position == 4
    order = []
    for _ in range(3):
        order.append(start := clerk.start())
        clerk.settle(start)
    assert [start.run.id for start in order] == ["b", "c", "late"]
    clerk.audit()


def test_runs_that_are_due_together_keep_the_order_of_their_times(clerk: Clerk) -> None:
    clerk.submit(run_id="a", delay=2 * HOUR)
    clerk.submit(run_id="b", delay=HOUR)
    clerk.store.promote([RunId("a"), RunId("b")], [], EPOCH)
    assert [run.id for run in clerk.store.queue_of(S1, limit=9)] == ["b", "a"]


def test_promotion_tells_also_of_sessions_with_nothing_left(clerk: Clerk) -> None:
    clerk.submit(run_id="a", delay=HOUR)
    clerk.store.cancel(RunId("a"), None, by="test")
    (found,) = clerk.store.promote([RunId("a"), RunId("unknown")], [SessionId("nowhere")], EPOCH)
    assert (found.session_id, found.ready_class) == ("s1", None)
    assert clerk.store.promote([], [], EPOCH) == []


def test_a_hold_that_has_ended_goes_and_others_stay(clerk: Clerk) -> None:
    clerk.submit()
    clerk.store.hold_session(S1, None, HoldReason.BACKOFF, until_in=NOW)
    clerk.store.hold_session(S1, None, HoldReason.PAUSED, until_in=None)
    (found,) = clerk.store.promote([], [S1], EPOCH)
    assert (found.holds, found.until_in) == ((HoldReason.PAUSED,), None)
    clerk.store.unhold_session(S1, None, HoldReason.PAUSED)
    clerk.store.hold_session(S1, None, HoldReason.BACKOFF, until_in=HOUR)
    (found,) = clerk.store.promote([], [S1], EPOCH)
    assert found.holds == (HoldReason.BACKOFF,)
    assert found.until_in is not None and found.until_in > timedelta(minutes=59)
    clerk.store.hold_session(S1, None, HoldReason.BACKOFF, until_in=NOW)
    (found,) = clerk.store.promote([], [S1], EPOCH)
    assert found.holds == ()
    clerk.start()


def test_a_hold_ends_with_the_last_of_its_reasons(clerk: Clerk) -> None:
    clerk.submit()
    clerk.store.hold_session(S1, None, HoldReason.BACKOFF, until_in=timedelta(minutes=1))
    clerk.store.hold_session(S1, None, HoldReason.PAUSED, until_in=HOUR)
    (found,) = clerk.store.queued_sessions_of([S1], EPOCH)
    assert found.until_in is not None and found.until_in > timedelta(minutes=59)


def test_figures(clerk: Clerk) -> None:
    ws2 = WorkspaceId("ws2")
    clerk.store.create_workspace(ws2, "two", weight=1, max_active_runs=None, max_queued_runs=None)
    clerk.session("other", workspace=ws2)
    clerk.submit("other", workspace_id=ws2)
    for name in ("ready", "held", "parked", "run"):
        clerk.session(name)
        clerk.submit(name)
    clerk.submit("ready", run_class=RunClass.SUBAGENT)
    clerk.submit("ready", delay=HOUR)
    clerk.store.hold_session(SessionId("held"), None, HoldReason.PAUSED, until_in=None)
    clerk.settle(clerk.start("parked"), RunStatus.FAILED, keep=True)
    clerk.submit("parked")
    clerk.start("run")
    clerk.behind.age_owner("run", HOUR)
    counts = clerk.store.counts(WorkspaceId("default"), lease=timedelta(seconds=30))
    assert counts == StoreCounts(
        runs={status: {"queued": 5, "running": 1, "failed": 1}.get(status, 0) for status in RunStatus},
        queued_eligible=4,
        deferred=1,
        active_sessions=1,
        owners=2,
        stale_owners=1,
        ready_runs=2,
        ready_subagent_runs=1,
        ready_sessions=1,
        locked_sessions=1,
    )
    everywhere = clerk.store.counts(None, lease=timedelta(seconds=30))
    assert (everywhere.runs[RunStatus.QUEUED], everywhere.ready_sessions) == (6, 2)


def test_counters_that_are_off_are_set_right(clerk: Clerk) -> None:
    clerk.submit()
    assert clerk.store.recount() == 0
    clerk.behind.query("UPDATE workspace_counters SET queued = 77")
    assert clerk.store.recount() == 1
    clerk.audit()
    clerk.behind.query("DELETE FROM workspace_counters")
    assert clerk.store.recount() == 1
    clerk.audit()
