"""Rows that many transactions change are taken in one order: whoever waits for one keeps none that the other wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from oah.adapters.sql.aggregate import Transaction
from oah.adapters.sql.store import open_store
from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.run import Outcome, RunError, RunStatus
from oah.core.policy.children import Bounds
from oah.errors import Conflict
from oah.ports.children import Parent
from oah.ports.store import Accepted, RecoveryAction, RecoveryWrite, RetryPlan, Settlement
from tests.support import eventually
from tests.support.store_clerk import Clerk, fence_of

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
TAKE = "UPDATE workspace_counters SET queued = queued WHERE workspace_id = %s"
PLACES = ((SessionId("s1"), WorkspaceId("zz")), (SessionId("s2"), WorkspaceId("aa")))
"""In the order of the sessions, which is not that of their workspaces."""


@pytest.fixture
def clerk(postgres_url: str) -> Iterator[Clerk]:
    """PostgreSQL alone; a session in each of two workspaces."""
    store = open_store(postgres_url)
    made = Clerk(store, postgres_url)
    for session, workspace in PLACES:
        store.create_workspace(workspace, workspace, weight=1, max_active_runs=None, max_queued_runs=None)
        made.session(session, workspace=workspace)
    yield made
    store.close()


def submit(clerk: Clerk, **more: object) -> None:
    for session, workspace in PLACES:
        clerk.submit(session, f"of-{session}", workspace_id=workspace, **more)


def retry(clerk: Clerk) -> Callable[[], Any]:
    submit(clerk)
    failed = Outcome(RunStatus.FAILED, error=RunError("exit_nonzero", "exit status 3"))
    plan = RetryPlan(timedelta(minutes=1), max_retries=3)
    batch = [Settlement(fence_of(clerk.start(session)), failed, retry=plan) for session, _ in PLACES]
    return lambda: clerk.store.settle(batch)


def expire(clerk: Clerk) -> Callable[[], Any]:
    submit(clerk, deadline_at=datetime.now(UTC) - timedelta(minutes=1))
    return lambda: clerk.store.expire_queued(limit=10)


def recover(clerk: Clerk) -> Callable[[], Any]:
    submit(clerk)
    owners = [clerk.owner(clerk.start(session).session.id) for session, _ in PLACES]
    words = {"strategy": "requeue_running", "max_attempts": 3, "reason": "worker_lost", "by": "controller"}
    return lambda: clerk.store.apply_recovery([RecoveryWrite(o, RecoveryAction.REQUEUE, **words) for o in owners])


def redrive(clerk: Clerk) -> Callable[[], Any]:
    submit(clerk)
    for session, _ in PLACES:
        clerk.start(session)
        assert clerk.recover(clerk.owner(session), RecoveryAction.QUARANTINE).applied
    letters = [f"dl_of-{session}.1" for session, _ in PLACES]
    return lambda: clerk.store.redrive_chunk(letters, None, by="me")


@pytest.mark.parametrize("prepare", [retry, expire, recover, redrive])
def test_counters_of_workspaces_are_taken_in_their_order(
    clerk: Clerk, prepare: Callable[[Clerk], Callable[[], Any]]
) -> None:
    act = prepare(clerk)
    with psycopg.connect(clerk.url) as other, ThreadPoolExecutor(1) as threads:
        other.execute(TAKE, ("aa",))
        done = threads.submit(act)
        eventually(lambda: clerk.behind.query(WAITS) == [(1,)], within=10, what="somebody who waits")
        other.execute("SET LOCAL lock_timeout = '1s'")
        try:
            other.execute(TAKE, ("zz",))
        finally:
            other.rollback()
            done.result(20)
    clerk.audit()


def test_what_a_savepoint_undoes_is_not_counted(clerk: Clerk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of a batch that fails after it has counted leaves the counts as they were."""
    act, append = recover(clerk), Transaction.append_step

    def fails(transaction: Transaction, run_id: RunId, *words: Any) -> None:
        append(transaction, run_id, *words)
        if run_id == "of-s2":
            raise Conflict("no")

    monkeypatch.setattr(Transaction, "append_step", fails)
    assert [each.applied for each in act()] == [True, False]
    clerk.audit()


def test_children_are_counted_under_the_locks_of_sessions_alone(clerk: Clerk) -> None:
    """A submit that locks its parents besides is a deadlock with whoever ends or starts them in another order."""
    clerk.submit("s1", "parent", workspace_id=PLACES[0][1])
    fence = fence_of(clerk.start("s1"))
    by = Parent(fence.session_id, fence.run_id, fence.attempt, fence.token, Bounds())
    below = replace(clerk.store.session(SessionId("s1"), None), id=SessionId("below"), parent_run_id=fence.run_id)
    child = clerk.new("below", "child", workspace_id=PLACES[0][1], parent_run_id=fence.run_id, parent=by)
    with psycopg.connect(clerk.url) as other:
        other.execute("SELECT id FROM runs FOR UPDATE")
        clerk.store.open_child_session(below, by)
        assert isinstance(clerk.send(child)[0], Accepted)
