"""What SQL says about why runs wait and about what has not moved, on every database."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from oah.core.model.ids import EpochId, RunId, SessionId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import RunStatus
from oah.core.model.session import HoldReason
from oah.core.policy.waiting import Before, Cap
from oah.ports.waits import Diagnosis
from tests.support.store_clerk import EPOCH, Clerk

SECOND = timedelta(seconds=1)
S1, S2 = SessionId("s1"), SessionId("s2")


def test_what_stands_before_a_run(clerk: Clerk) -> None:
    first, second, third = (clerk.submit().id for _ in range(3))
    later = clerk.submit(delay=timedelta(hours=1)).id
    assert clerk.store.waits([]) == {}
    waits = clerk.store.waits([first, second, third, later, RunId("nowhere")])
    assert [waits[run].before for run in (first, second, third)] == [
        None,
        Before(first, RunStatus.QUEUED),
        Before(second, RunStatus.QUEUED),
    ]
    assert (waits[later].deferred, waits[later].due_at is not None) == (True, True)
    assert {each.lane for each in waits.values()} == {Lane("default", "shell")}
    clerk.start()
    waits = clerk.store.waits([first, second, third])
    assert first not in waits, "it does not wait any more"
    assert waits[second].before == Before(first, RunStatus.RUNNING)
    assert waits[third].before == Before(second, RunStatus.QUEUED)


def test_holds_caps_and_recoveries(clerk: Clerk) -> None:
    ws = WorkspaceId("ws_2")
    clerk.store.create_workspace(ws, "two", weight=1, max_active_runs=2, max_queued_runs=None)
    for name in ("s2", "s3", "s4"):
        clerk.session(name, workspace=ws)
        clerk.submit(name, f"{name}-run", workspace_id=ws)
    clerk.start("s2")
    clerk.store.hold_session(SessionId("s4"), None, HoldReason.PAUSED, until_in=None)
    waits = clerk.store.waits([RunId("s3-run"), RunId("s4-run"), clerk.submit().id])
    assert [each.caps for each in waits.values()].count((Cap(1, 2),)) == 2
    assert waits[RunId("s4-run")].holds == {HoldReason.PAUSED: None}
    clerk.behind.query("UPDATE runs SET status = 'waiting_tool' WHERE id = 's2-run'")
    assert clerk.store.waits([RunId("s3-run")])[RunId("s3-run")].caps == (Cap(0, 2),), "one that waits holds no slot"
    clerk.behind.query("UPDATE runs SET status = 'running' WHERE id = 's2-run'")
    clerk.recover(clerk.owner("s2"))
    assert clerk.store.waits([RunId("s2-run")])[RunId("s2-run")].recovery_attempts == 1


def test_a_page_costs_three_statements(clerk: Clerk) -> None:
    runs = []
    for number in range(30):
        clerk.session(f"p{number}")
        runs += [clerk.submit(f"p{number}").id for _ in range(2)]
    asked: list[str] = []

    def count(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if statement.lstrip().upper().startswith("SELECT"):
            asked.append(statement)

    event.listen(Engine, "before_cursor_execute", count)
    try:
        assert len(clerk.store.waits(runs)) == 60
    finally:
        event.remove(Engine, "before_cursor_execute", count)
    assert len(asked) <= 3, asked


def _look(clerk: Clerk, *, limit: int = 10, workspace: str | None = None) -> Diagnosis:
    return clerk.store.diagnosis(
        None if workspace is None else WorkspaceId(workspace),
        lease=30 * SECOND,
        unheeded_for=50 * SECOND,
        waiting_for=60 * SECOND,
        limit=limit,
    )


def _age(clerk: Clerk, column: str, run: str, by: timedelta) -> None:
    change = by // timedelta(microseconds=1) if clerk.url.startswith("sqlite") else by
    clerk.behind.query(f"UPDATE runs SET {column} = {column} - ? WHERE id = ?", change, run)


def test_nothing_is_stuck_where_everything_is_young(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.start()
    clerk.store.cancel(RunId("a"), None, by="somebody")
    clerk.submit(run_id="b")
    assert _look(clerk) == Diagnosis()


def test_owners_that_fell_silent_and_cancels_that_nobody_heeds(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.start()
    clerk.behind.age_owner("s1", 40 * SECOND)
    [silent] = _look(clerk).silent
    assert (silent.session_id, silent.run_id, silent.worker_id) == (S1, "a", "w.1")
    assert 40 * SECOND <= silent.age < 60 * SECOND
    clerk.store.cancel(RunId("a"), None, by="somebody")
    _age(clerk, "cancel_requested_at", "a", 51 * SECOND)
    [unheeded] = _look(clerk).unheeded
    assert (unheeded.session_id, unheeded.run_id, unheeded.worker_id) == (S1, "a", "w.1")


def test_sessions_held_for_what_could_not_be_killed(clerk: Clerk) -> None:
    clerk.session("s2")
    clerk.store.hold_session(S1, None, HoldReason.PAUSED, until_in=None)
    clerk.store.hold_session(S2, None, HoldReason.PAUSED, until_in=SECOND)
    assert _look(clerk).unkillable == ()
    clerk.store.hold_session(S2, None, HoldReason.UNKILLABLE, until_in=None)
    [stuck] = _look(clerk).unkillable
    assert (stuck.session_id, stuck.run_id) == (S2, None)


@pytest.mark.parametrize("heard", [False, True])
def test_what_has_waited_for_long_oldest_first_and_cut(clerk: Clerk, *, heard: bool) -> None:
    clerk.store.mint_epoch(EpochId(EPOCH), over=None)
    for number, name in enumerate(("a", "b", "c", "d")):
        clerk.session(f"of-{name}")
        clerk.submit(f"of-{name}", name, delay=timedelta(hours=1) if name == "d" else None)
        for column in ("queued_at", "created_at"):
            _age(clerk, column, name, timedelta(seconds=100 + number))
    if heard:
        clerk.store.heard([RunId("a"), RunId("c")], EPOCH)
    looked = _look(clerk, limit=2)
    assert [each.run_id for each in looked.waiting] == ["c", "b"]
    assert looked.truncated == {"waiting"}
    assert _look(clerk).truncated == frozenset()


def test_a_workspace_sees_its_own_only(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    for column in ("queued_at", "created_at"):
        _age(clerk, column, "a", 100 * SECOND)
    clerk.store.hold_session(S1, None, HoldReason.UNKILLABLE, until_in=None)
    clerk.store.create_workspace(WorkspaceId("ws_2"), "two", weight=1, max_active_runs=None, max_queued_runs=None)
    assert _look(clerk, workspace="ws_2") == Diagnosis()
    ours = _look(clerk, workspace="default")
    assert (len(ours.waiting), len(ours.unkillable)) == (1, 1)
