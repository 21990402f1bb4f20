"""Workspaces, keys, sessions, runs and events as people see them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from oah.core.model.drain import AtDeadline, Drain, drain_from
from oah.core.model.ids import KeyId, RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import RecoveryState, RunClass, RunStatus
from oah.core.model.session import HoldReason, Session, SessionState
from oah.core.model.workspace import Scope
from oah.errors import Conflict, InvalidRequest, NotFound
from oah.ports.store import CancelResult, CommandKind, RecoveryAction, RunFilter
from tests.support.store_clerk import Clerk, fence_of

S1, DEFAULT, OTHER = SessionId("s1"), WorkspaceId("default"), WorkspaceId("other")


def workspace(clerk: Clerk, name: str = "other") -> WorkspaceId:
    made = clerk.store.create_workspace(WorkspaceId(name), name, weight=2, max_active_runs=3, max_queued_runs=None)
    return made.id


def test_a_workspace_default_is_there_and_others_are_made(clerk: Clerk) -> None:
    assert [w.id for w in clerk.store.workspaces()] == ["default"]
    made = clerk.store.create_workspace(WorkspaceId("ws_1"), "blue", weight=2, max_active_runs=3, max_queued_runs=None)
    assert (made.name, made.weight, made.max_active_runs, made.max_queued_runs) == ("blue", 2, 3, None)
    assert clerk.store.workspace("blue") == clerk.store.workspace("ws_1") == made
    with pytest.raises(NotFound):
        clerk.store.workspace("red")
    for wid, name in (("ws_1", "x"), ("x", "blue"), ("blue", "x"), ("x", "ws_1")):
        with pytest.raises(Conflict):
            clerk.store.create_workspace(WorkspaceId(wid), name, weight=1, max_active_runs=None, max_queued_runs=None)


def test_a_workspace_changes(clerk: Clerk) -> None:
    workspace(clerk)
    changed = clerk.store.update_workspace("other", {"name": "new", "weight": 7, "max_active_runs": None})
    assert (changed.name, changed.weight, changed.max_active_runs) == ("new", 7, None)
    assert clerk.store.update_workspace("new", {}) == changed
    with pytest.raises(Conflict):
        clerk.store.update_workspace("new", {"name": "default"})
    with pytest.raises(InvalidRequest):
        clerk.store.update_workspace("new", {"id": "x"})
    with pytest.raises(InvalidRequest):
        clerk.store.update_workspace("new", {"name": "nul\0"})


def test_keys_are_found_by_their_digest_only(clerk: Clerk) -> None:
    scopes = frozenset({Scope.READ, Scope.RUN})
    ends = datetime(2031, 1, 1, 12, tzinfo=UTC)
    key = clerk.store.create_key(KeyId("k1"), "d" * 64, name="ci", workspace_id=DEFAULT, scopes=scopes, expires_at=ends)
    admin = clerk.store.create_key(
        KeyId("k2"), "e" * 64, name="root", workspace_id=None, scopes=frozenset({Scope.ADMIN}), expires_at=None
    )
    assert (key.scopes, key.expires_at, key.revoked_at, key.workspace_id) == (scopes, ends, None, "default")
    assert clerk.store.key_by_digest("d" * 64) == key
    assert clerk.store.key_by_digest("f" * 64) is None
    digests = ["d" * 64, "e" * 64, "f" * 64]
    assert clerk.store.keys_by_digest(digests) == {"d" * 64: key, "e" * 64: admin}
    assert clerk.store.keys_by_digest([]) == {}
    assert clerk.store.keys(None) == [key, admin]
    assert clerk.store.keys(DEFAULT) == [key]
    with pytest.raises(Conflict):
        clerk.store.create_key(KeyId("k3"), "d" * 64, name="", workspace_id=None, scopes=scopes, expires_at=None)
    with pytest.raises(NotFound):
        clerk.store.create_key(
            KeyId("k3"), "a" * 64, name="", workspace_id=WorkspaceId("no"), scopes=scopes, expires_at=None
        )
    revoked = clerk.store.revoke_key(KeyId("k1"))
    assert revoked.revoked_at is not None
    assert clerk.store.revoke_key(KeyId("k1")) == revoked == clerk.store.key_by_digest("d" * 64)
    with pytest.raises(NotFound):
        clerk.store.revoke_key(KeyId("none"))


def test_a_session_is_kept_as_it_was_given(clerk: Clerk) -> None:
    given = Session(
        SessionId("s2"),
        DEFAULT,
        Lane("gpu", "python"),
        SessionState.OPEN,
        datetime.now(UTC),
        session_ref="ref",
        cwd="/tmp/ü",
        env={"A": "1"},
        title="a title",
        labels={"team": "blue"},
        metadata={"x": [1, None, {"y": 2.5}]},
    )
    kept = clerk.store.create_session(given)
    assert kept == clerk.store.session(given.id, DEFAULT) == clerk.store.session(given.id, None)
    for name in ("lane", "session_ref", "cwd", "env", "title", "labels", "metadata", "state"):
        assert getattr(kept, name) == getattr(given, name)
    with pytest.raises(Conflict):
        clerk.store.create_session(given)
    with pytest.raises(NotFound):
        clerk.session("s3", workspace=WorkspaceId("nowhere"))


def test_another_workspaces_things_are_not_found(clerk: Clerk) -> None:
    workspace(clerk)
    clerk.submit(run_id="a")
    store, run = clerk.store, RunId("a")
    for call in (
        lambda: store.session(S1, OTHER),
        lambda: store.update_session(S1, OTHER, {"title": "x"}),
        lambda: store.close_session(S1, OTHER),
        lambda: store.hold_session(S1, OTHER, HoldReason.PAUSED, until_in=None),
        lambda: store.unhold_session(S1, OTHER, HoldReason.PAUSED),
        lambda: store.run(run, OTHER),
        lambda: store.cancel(run, OTHER, by="x"),
        lambda: store.requeue(run, OTHER, by="x"),
        lambda: store.annotate_run(run, OTHER, "x"),
        lambda: store.session(SessionId("no"), None),
        lambda: store.run(RunId("no"), None),
    ):
        with pytest.raises(NotFound):
            call()
    assert store.sessions(OTHER).items == () == store.runs(RunFilter(workspace_id=OTHER)).items
    clerk.audit()


def test_a_session_changes(clerk: Clerk) -> None:
    changed = clerk.store.update_session(S1, DEFAULT, {"title": "t", "labels": {"a": "b"}, "session_ref": "r"})
    assert (changed.title, changed.labels, changed.session_ref) == ("t", {"a": "b"}, "r")
    assert clerk.store.update_session(S1, None, {"title": None}).title is None
    for bad in ({"state": "closed"}, {"title": "\0"}, {"metadata": {"x": "\ud800"}}):
        with pytest.raises(InvalidRequest):
            clerk.store.update_session(S1, None, bad)


def test_listings_go_from_new_to_old_without_gap_or_repeat(clerk: Clerk) -> None:
    workspace(clerk)
    for n in range(5):
        clerk.session(f"t{n}", workspace=OTHER)
        clerk.submit(f"t{n}", f"t{n}-a", workspace_id=OTHER)
    seen, cursor = [], None
    while True:
        page = clerk.store.sessions(OTHER, cursor=cursor, limit=2)
        seen += [session.id for session in page.items]
        if (cursor := page.next_cursor) is None:
            break
    assert seen == ["t4", "t3", "t2", "t1", "t0"]
    first = clerk.store.runs(RunFilter(workspace_id=OTHER, limit=4))
    rest = clerk.store.runs(RunFilter(workspace_id=OTHER, limit=4, cursor=first.next_cursor))
    assert [run.id for run in (*first.items, *rest.items)] == [f"t{n}-a" for n in (4, 3, 2, 1, 0)]
    assert rest.next_cursor is None
    clerk.store.close_session(SessionId("s1"), None)
    assert [s.id for s in clerk.store.sessions(None, state=SessionState.CLOSED).items] == ["s1"]
    for bad in ("!", "abc", "ü"):
        with pytest.raises(InvalidRequest):
            clerk.store.sessions(None, cursor=bad)
    with pytest.raises(InvalidRequest):
        clerk.store.runs(RunFilter(limit=0))


def test_runs_are_found_by_what_they_are(clerk: Clerk) -> None:
    clerk.session("s2")
    clerk.submit(run_id="done")
    clerk.submit(run_id="lost")
    clerk.submit("s2", "child", run_class=RunClass.SUBAGENT)
    clerk.settle(clerk.start())
    clerk.start()
    clerk.recover(clerk.owner(), RecoveryAction.QUARANTINE)

    def found(**where: object) -> list[str]:
        return [run.id for run in clerk.store.runs(RunFilter(**where)).items]  # type: ignore[arg-type]

    assert found(status=(RunStatus.COMPLETED, RunStatus.QUEUED)) == ["child", "done"]
    assert found(recovery_state=RecoveryState.QUARANTINED) == ["lost"]
    assert found(error_code="worker_lost") == ["lost"]
    assert found(run_class=RunClass.SUBAGENT) == ["child"]
    assert found(session_id=SessionId("s2")) == ["child"]
    assert found(created_after=clerk.run("lost").created_at) == ["child"]


def test_a_queue_is_shown_in_the_order_in_which_it_will_run(clerk: Clerk) -> None:
    clerk.submit(run_id="later", delay=timedelta(hours=1))
    clerk.submit(run_id="active")
    clerk.submit(run_id="next")
    clerk.start()
    assert [run.id for run in clerk.store.queue_of(S1, limit=10)] == ["active", "next", "later"]
    assert [run.id for run in clerk.store.queue_of(S1, limit=1)] == ["active"]


def test_cancel_removes_marks_or_comes_too_late(clerk: Clerk) -> None:
    clerk.submit(run_id="active")
    clerk.submit(run_id="queued")
    start = clerk.start(worker="w.9")
    removed = clerk.store.cancel(RunId("queued"), DEFAULT, by="someone")
    assert (removed.result, removed.run.status, removed.run.cancel_requested_by) == (
        CancelResult.REMOVED,
        RunStatus.CANCELLED,
        "someone",
    )
    assert removed.after is not None and (removed.after.applied, removed.after.waiting) == (True, None)
    assert clerk.events()[-1] == "run.cancelled"
    marked = clerk.store.cancel(RunId("active"), None, by="first")
    assert (marked.result, marked.owner, marked.run.status) == (CancelResult.SIGNALLED, "w.9", RunStatus.RUNNING)
    again = clerk.store.cancel(RunId("active"), None, by="second")
    assert again.run.cancel_requested_by == "first"
    assert clerk.store.cancel(RunId("queued"), None, by="x").result is CancelResult.TOO_LATE
    clerk.settle(start, RunStatus.CANCELLED)
    assert clerk.store.cancel(RunId("active"), None, by="x").result is CancelResult.TOO_LATE
    clerk.audit()


def test_cancel_of_a_deferred_run_and_of_the_last_one_of_a_closing_session(clerk: Clerk) -> None:
    clerk.submit(run_id="a", delay=timedelta(hours=1))
    clerk.store.close_session(S1, None)
    assert clerk.store.cancel(RunId("a"), None, by="x").result is CancelResult.REMOVED
    assert clerk.store.session(S1, None).state is SessionState.CLOSED
    assert clerk.store.deferred(after=None, limit=9) == []
    clerk.audit()


def test_close(clerk: Clerk) -> None:
    clerk.submit()
    start = clerk.start()
    with pytest.raises(Conflict, match="active"):
        clerk.store.close_session(S1, None)
    assert clerk.store.close_session(S1, None, cancelling=True).state is SessionState.CLOSING
    clerk.settle(start, RunStatus.CANCELLED)
    assert clerk.store.session(S1, None).state is SessionState.CLOSED
    assert clerk.store.close_session(S1, None).state is SessionState.CLOSED


def test_a_manual_requeue_is_eligible_now_and_keeps_the_totals(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.submit(run_id="b")
    clerk.start()
    clerk.recover(clerk.owner())
    clerk.start()
    clerk.recover(clerk.owner(), RecoveryAction.QUARANTINE)
    answer = clerk.store.requeue(RunId("a"), DEFAULT, by="operator")
    run = clerk.run("a")
    assert answer.run == run
    assert (run.status, run.position, run.attempt) == (RunStatus.QUEUED, 3, 2)
    assert (run.recovery_attempts, run.failed_attempts, run.error, run.ended_at) == (0, 0, None, None)
    assert run.recovery_state is RecoveryState.REQUEUED and run.recovery is not None
    assert (run.recovery["manual_requeue_count"], run.recovery["state"]) == (1, "requeued")
    assert run.recovery["total"]["recovery_attempts"] == 2
    assert clerk.events()[-1] == "run.queued"
    with pytest.raises(Conflict) as refused:
        clerk.store.requeue(RunId("a"), None, by="operator")
    assert refused.value.code == "run_requeue_invalid_status"
    clerk.settle(clerk.start())
    clerk.settle(clerk.start(), RunStatus.FAILED)
    assert clerk.run("a").failed_attempts == 1
    clerk.store.requeue(RunId("a"), None, by="operator")
    recovery = clerk.run("a").recovery
    assert recovery is not None and recovery["manual_requeue_count"] == 2
    assert recovery["total"] == {"recovery_attempts": 2, "failed_attempts": 1}
    clerk.audit()


def test_a_closed_session_takes_no_requeue(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.settle(clerk.start())
    clerk.store.close_session(S1, None)
    with pytest.raises(Conflict, match="closed"):
        clerk.store.requeue(RunId("a"), None, by="operator")


def test_a_note_is_kept(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    assert clerk.store.annotate_run(RunId("a"), None, "looked at it").note == "looked at it"
    with pytest.raises(InvalidRequest):
        clerk.store.annotate_run(RunId("a"), None, "\0")


def test_events_are_read_after_a_number(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.submit(run_id="b")
    clerk.settle(fence_of(clerk.start()))
    events = clerk.store.events(S1, after=1, limit=2)
    assert [(event.number, event.type, event.run_id) for event in events] == [
        (2, "run.queued", "b"),
        (3, "run.started", "a"),
    ]
    assert events[1].attempt == 1 and events[1].data == {"worker_id": "w.1", "reason": "first"}
    ours = clerk.store.events(S1, after=0, limit=10, run_id=RunId("a"))
    assert [event.number for event in ours] == [1, 3, 4]


def test_a_tailer_reads_many_sessions_and_starves_none(clerk: Clerk) -> None:
    for name in ("t1", "t2", "t3"):
        clerk.session(name)
    clerk.send(*(clerk.new("t1") for _ in range(50)))
    clerk.send(*(clerk.new("t2") for _ in range(3)))
    cursors = {SessionId("t1"): 0, SessionId("t2"): 1, SessionId("t3"): 0, SessionId("no"): 5}
    events = clerk.store.events_since(cursors, limit=40)
    assert [(e.session_id, e.number) for e in events] == [
        *(("t1", n) for n in range(1, 11)),
        ("t2", 2),
        ("t2", 3),
    ]
    clerk.behind.query("DELETE FROM run_events WHERE session_id = 't1' AND number <= 30")
    aged = clerk.store.events_since({SessionId("t1"): 2}, limit=5)
    assert [event.number for event in aged] == [31, 32, 33, 34, 35]
    assert clerk.store.events_since({}, limit=5) == []


def test_a_command_of_a_later_release_says_nothing_and_keeps_none_from_being_heard(clerk: Clerk) -> None:
    worker = WorkerId("w.1")
    clerk.store.command_worker(worker, CommandKind.UNCORDON, by="operator")
    clerk.store.command_worker(worker, CommandKind.DRAIN, by="operator")
    clerk.behind.query("UPDATE worker_commands SET kind = 'tomorrow' WHERE kind = 'uncordon' RETURNING id")
    assert [c.kind for c in clerk.store.take_commands(worker)] == [CommandKind.DRAIN]
    assert clerk.store.take_commands(worker) == []


def test_commands_are_handed_out_once_and_written_down(clerk: Clerk) -> None:
    worker = WorkerId("w.1")
    clerk.store.command_worker(worker, CommandKind.CORDON, by="operator")
    clerk.store.command_worker(worker, CommandKind.DRAIN, by="operator")
    wish = Drain(timedelta(seconds=1.5), AtDeadline.FAIL, stay=True)
    clerk.store.command_worker(WorkerId("w.2"), CommandKind.DRAIN, by="operator", data=wish.data())
    assert [(c.kind, c.by) for c in clerk.store.take_commands(worker)] == [
        (CommandKind.CORDON, "operator"),
        (CommandKind.DRAIN, "operator"),
    ]
    assert clerk.store.take_commands(worker) == []
    [given] = clerk.store.take_commands(WorkerId("w.2"))
    assert drain_from(given.data) == wish
    assert clerk.behind.query("SELECT actor, action, subject FROM audit ORDER BY id") == [
        ("operator", "worker.cordon", "w.1"),
        ("operator", "worker.drain", "w.1"),
        ("operator", "worker.drain", "w.2"),
    ]


def test_the_store_says_what_it_stands_on(clerk: Clerk) -> None:
    clerk.store.check()
    assert abs(clerk.store.now() - datetime.now(UTC).timestamp()) < 5
    facts = clerk.store.facts()
    assert facts["dialect"] in ("sqlite", "postgresql") and facts["server_version"]
