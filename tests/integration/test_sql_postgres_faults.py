"""PostgreSQL that goes away: at COMMIT, in the middle, or without a word."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

from oah.adapters.sql.postgres import connections
from oah.adapters.sql.store import open_store
from oah.core.model.ids import ClaimToken, RunId, SessionId, WorkerId
from oah.core.model.run import Outcome, RunStatus
from oah.errors import InDoubt, InvalidRequest, Unavailable
from oah.ports.store import NothingEligible, Settlement, Started, Store
from tests.support import eventually
from tests.support.proxy_sql import AtCommit, CommitProxy, commit_proxy
from tests.support.store_clerk import EPOCH, Clerk, accepted, fence_of

S1, W1 = SessionId("s1"), WorkerId("w.1")


@pytest.fixture
def clerk(postgres_url: str) -> Iterator[Clerk]:
    """PostgreSQL alone."""
    store = open_store(postgres_url)
    made = Clerk(store, postgres_url)
    made.session()
    yield made
    store.close()


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[CommitProxy]:
    """A proxy before the same database."""
    with commit_proxy(postgres_url) as made:
        yield made


@pytest.fixture
def shaky(proxy: CommitProxy) -> Iterator[Store]:
    """A store that speaks through the proxy."""
    store = open_store(proxy.url)
    yield store
    store.close()


def test_hb10_a_start_cut_after_its_commit_is_found_by_the_locked_read(
    clerk: Clerk, shaky: Store, proxy: CommitProxy
) -> None:
    clerk.submit(run_id="a")
    claims = [clerk.claim()]
    proxy.at_commit = AtCommit.CUT_AFTER
    with pytest.raises(InDoubt):
        shaky.start(W1, EPOCH, claims)
    reply = shaky.start_outcome(W1, claims)[0]
    assert isinstance(reply, Started) and reply.run.id == "a"
    clerk.audit()


def test_hb10_a_start_cut_before_its_commit_did_not_happen(clerk: Clerk, shaky: Store, proxy: CommitProxy) -> None:
    clerk.submit(run_id="a")
    claims = [clerk.claim()]
    proxy.at_commit = AtCommit.CUT_BEFORE
    with pytest.raises(InDoubt):
        shaky.start(W1, EPOCH, claims)
    assert shaky.start_outcome(W1, claims) == [NothingEligible(S1)]
    clerk.audit()


def test_hn15_the_locked_read_waits_for_a_commit_that_is_in_flight(
    clerk: Clerk, shaky: Store, proxy: CommitProxy
) -> None:
    clerk.submit(run_id="a")
    claims = [clerk.claim()]
    proxy.at_commit = AtCommit.STALL
    with pytest.raises(InDoubt):
        shaky.start(W1, EPOCH, claims)
    assert clerk.run("a").status is RunStatus.QUEUED, "a plain read does not know yet"
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(clerk.store.start_outcome, W1, claims)
        eventually(lambda: _waiting_for_a_lock(clerk), what="the read waits for the lock")
        assert not answer.done()
        proxy.release()
        reply = answer.result(60)[0]
    assert isinstance(reply, Started) and reply.run.id == "a"


@pytest.mark.parametrize("how", [AtCommit.CUT_AFTER, AtCommit.CUT_BEFORE])
def test_a_settle_in_doubt_is_decided_by_the_locked_read(
    clerk: Clerk, shaky: Store, proxy: CommitProxy, how: AtCommit
) -> None:
    clerk.submit(run_id="a")
    asked = Settlement(fence_of(clerk.start()), Outcome(RunStatus.COMPLETED, "x"))
    proxy.at_commit = how
    with pytest.raises(InDoubt):
        shaky.settle([asked])
    outcome = shaky.settle_outcome([asked])[0]
    assert outcome.applied == (how is AtCommit.CUT_AFTER)
    if not outcome.applied:
        assert outcome.status is RunStatus.RUNNING
        assert shaky.settle([asked])[0].applied
    clerk.audit()


def test_a_submit_in_doubt_is_repeated_with_its_key(clerk: Clerk, shaky: Store, proxy: CommitProxy) -> None:
    through = Clerk(shaky, clerk.url)
    proxy.at_commit = AtCommit.CUT_AFTER
    with pytest.raises(InDoubt):
        through.send(clerk.new(run_id="a", idempotency_key="k", request_hash="h"))
    again = accepted(through.send(clerk.new(run_id="b", idempotency_key="k", request_hash="h"))[0])
    assert again.replayed and again.run.id == "a"


def test_ordinary_writes_know_doubt_too(clerk: Clerk, shaky: Store, proxy: CommitProxy) -> None:
    clerk.submit(run_id="a")
    proxy.at_commit = AtCommit.CUT_AFTER
    with pytest.raises(InDoubt):
        shaky.cancel(RunId("a"), None, by="test")
    assert shaky.run(RunId("a"), None).status is RunStatus.CANCELLED


def test_a_connection_lost_before_the_commit_is_no_doubt(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    with psycopg.connect(clerk.url) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("SELECT 1 FROM sessions WHERE id = 's1' FOR UPDATE")
        starting = pool.submit(clerk.try_start, clerk.claim())
        eventually(lambda: _waiting_for_a_lock(clerk), what="the start waits for the lock")
        clerk.behind.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        with pytest.raises(Unavailable) as lost:
            starting.result(60)
        assert not isinstance(lost.value, InDoubt)
        holder.rollback()
    assert clerk.start().run.id == "a"


def test_hn2_what_was_cancelled_while_the_start_waited_is_not_started(clerk: Clerk) -> None:
    """Exactly as measured: the lock is held by a transaction that cancels the first run."""
    clerk.session("s2")
    for session in ("s1", "s2"):
        clerk.submit(session, f"{session}-a")
        clerk.submit(session, f"{session}-b")
    with psycopg.connect(clerk.url) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("SELECT 1 FROM sessions WHERE id = 's1' FOR UPDATE")
        starting = pool.submit(clerk.try_start, clerk.claim("s1"), clerk.claim("s2"))
        eventually(lambda: _waiting_for_a_lock(clerk), what="the start waits for the lock")
        holder.execute("UPDATE runs SET status = 'cancelled', ended_at = now() WHERE id = 's1-a'")
        holder.commit()
        replies = starting.result(60)
    assert [reply.run.id for reply in replies if isinstance(reply, Started)] == ["s1-b", "s2-a"]


def test_hn2_a_concurrent_activation_costs_its_session_only(clerk: Clerk) -> None:
    clerk.session("s2")
    clerk.submit("s1", "s1-a")
    clerk.submit("s2", "s2-a")
    with psycopg.connect(clerk.url) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("SELECT 1 FROM sessions WHERE id = 's1' FOR UPDATE")
        starting = pool.submit(clerk.try_start, clerk.claim("s1"), clerk.claim("s2"))
        eventually(lambda: _waiting_for_a_lock(clerk), what="the start waits for the lock")
        holder.execute(
            "UPDATE runs SET status = 'running', attempt = 1, claim_token = 't', worker_id = 'w' WHERE id = 's1-a'"
        )
        holder.commit()
        one, two = starting.result(60)
    assert type(one).__name__ == "AlreadyActive"
    assert isinstance(two, Started) and two.run.id == "s2-a"


def test_the_mark_waits_for_no_lock_longer_than_its_time(clerk: Clerk) -> None:
    table = []
    for name in ("a", "b", "c"):
        clerk.session(name)
        clerk.submit(name)
        table.append((SessionId(name), fence_of(clerk.start(name)).token))
    with psycopg.connect(clerk.url) as holder:
        holder.execute("SELECT 1 FROM session_owners WHERE session_id = 'b' FOR UPDATE")
        begun = time.monotonic()
        reply = clerk.store.mark(W1, table, timeout=timedelta(seconds=8))
        assert time.monotonic() - begun < 8
        assert reply.confirmed == {"a", "c"}, "what somebody keeps is not confirmed, the others are"
        assert reply.unread == {"b"}, "nor is it lost: its agent lives until its deadline"
        holder.rollback()
    assert clerk.store.mark(W1, table, timeout=timedelta(seconds=5)).confirmed == {"a", "b", "c"}


def test_hn7_the_mark_comes_back_from_a_server_that_says_nothing(clerk: Clerk) -> None:
    clerk.submit()
    table = [(S1, fence_of(clerk.start()).token)]
    clerk.store.mark(W1, table, timeout=timedelta(seconds=5))
    (pid,) = clerk.behind.query(
        "SELECT pid FROM pg_stat_activity"
        " WHERE query LIKE '%cancel_requested_at IS NOT NULL%' AND pid <> pg_backend_pid()"
    )[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        with pytest.raises(Unavailable):
            clerk.store.mark(W1, table, timeout=timedelta(seconds=0.5))
        assert time.monotonic() - begun < 20
        assert clerk.store.mark(W1, table, timeout=timedelta(seconds=5)).confirmed == {"s1"}, "on a new connection"
    finally:
        os.kill(pid, signal.SIGCONT)


def test_the_mark_does_not_wait_for_the_stores_other_work(clerk: Clerk) -> None:
    """Every pooled connection hangs behind a lock; the mark has its own."""
    clerk.submit()
    table = [(S1, fence_of(clerk.start()).token)]
    clerk.session("s2")
    store = open_store(clerk.url, pool=2)
    with psycopg.connect(clerk.url) as holder, ThreadPoolExecutor(4) as pool:
        holder.execute("SELECT 1 FROM sessions WHERE id = 's2' FOR UPDATE")
        stuck = [pool.submit(Clerk(store, clerk.url).send, clerk.new("s2")) for _ in range(4)]
        eventually(lambda: _waiting_for_a_lock(clerk, 2), what="the pool is full")
        assert store.mark(W1, table, timeout=timedelta(seconds=5)).confirmed == {"s1"}
        holder.rollback()
        for future in stuck:
            accepted(future.result(20)[0])
    store.close()


def test_a_stopped_holder_of_a_lock_is_ended_by_the_server(clerk: Clerk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is frozen between lock and COMMIT must not keep its sessions from recovery."""
    monkeypatch.setitem(connections.SERVER, "idle_in_transaction_session_timeout", "300ms")
    frozen = open_store(clerk.url)
    clerk.submit(run_id="a")
    locked, thawed = threading.Event(), threading.Event()

    def freeze() -> None:
        with frozen._transaction([S1]) as transaction:  # type: ignore[attr-defined]
            locked.set()
            thawed.wait(60)
            transaction.look(S1)

    with ThreadPoolExecutor(1) as pool:
        freezing = pool.submit(freeze)
        assert locked.wait(60)
        assert clerk.start().run.id == "a", "the lock was given back"
        thawed.set()
        with pytest.raises(Unavailable):
            freezing.result(60)
    frozen.close()


def test_an_unreachable_server_is_unavailable() -> None:
    nowhere = open_store("postgresql://postgres@/postgres?host=/nonexistent")
    table = [(S1, ClaimToken("t"))]
    for call in (
        nowhere.check,
        nowhere.migrate,
        nowhere.workspaces,
        lambda: nowhere.mark(W1, table, timeout=timedelta(seconds=1)),
    ):
        with pytest.raises(Unavailable):
            call()
    nowhere.close()


def test_a_server_that_ended_all_connections_is_used_again(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.behind.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with pytest.raises(Unavailable):
        clerk.start()
    assert clerk.start().run.id == "a", "one failure told the pool about all its connections"


def test_an_address_it_cannot_use_is_refused() -> None:
    for url in ("mysql://x/y", "postgresql://%zz", "sqlite://", "sqlite:///:memory:", "nonsense"):
        with pytest.raises(InvalidRequest):
            open_store(url)


def _waiting_for_a_lock(clerk: Clerk, at_least: int = 1) -> bool:
    (found,) = clerk.behind.query(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )[0]
    return bool(found >= at_least)
