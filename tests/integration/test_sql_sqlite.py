"""SQLite as several processes and threads share it, and what it refuses."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from oah.adapters.sql import queues, waits
from oah.adapters.sql.sqlite import connections, execution, submit
from oah.adapters.sql.sqlite import database as sqlite_database
from oah.adapters.sql.store import open_store
from oah.core.model.ids import RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.run import RunStatus
from oah.errors import Broken, InDoubt, InvalidRequest, Unavailable
from tests.support.store_clerk import Clerk, fence_of

S1, W1 = SessionId("s1"), WorkerId("w.1")


@pytest.fixture
def clerk(sqlite_url: str) -> Iterator[Clerk]:
    """SQLite alone."""
    store = open_store(sqlite_url)
    made = Clerk(store, sqlite_url)
    made.session()
    yield made
    store.close()


def path_of(clerk: Clerk) -> Path:
    return Path(clerk.url.removeprefix("sqlite:///"))


WORKER = """
import json, sys
from oah.adapters.sql.store import open_store
from oah.core.model.run import Outcome, RunStatus
from oah.ports.store import *
from tests.support.store_clerk import Clerk, fence_of
url, who, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
clerk = Clerk(open_store(url), url)
sessions = [f"t{n}" for n in range(6)]
settled = []
for n in range(rounds):
    clerk.send(*(clerk.new(s, f"{who}-{s}-{n}") for s in sessions))
    replies = clerk.try_start(*(clerk.claim(s, f"{who}-{s}-{n}") for s in sessions), worker=f"{who}.1")
    fences = [fence_of(r) for r in replies if isinstance(r, Started)]
    done = clerk.store.settle([Settlement(f, Outcome(RunStatus.COMPLETED, "x")) for f in fences])
    settled += [f.run_id for f, after in zip(fences, done) if after.applied]
print(json.dumps(settled))
"""


def test_hm16_four_processes_share_a_file(clerk: Clerk) -> None:
    for n in range(6):
        clerk.session(f"t{n}")
    rounds = 10
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, clerk.url, f"w{n}", str(rounds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(4)
    ]
    settled: list[str] = []
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        settled += json.loads(out)
    assert len(settled) == len(set(settled)) >= 6 * rounds
    assert len(clerk.behind.query("SELECT id FROM runs")) == 4 * 6 * rounds
    clerk.audit()


def test_hm16_a_transaction_that_reads_first_is_not_refused(clerk: Clerk) -> None:
    """A deferred transaction could not upgrade once another process wrote; every writer begins at once."""
    other = open_store(clerk.url)
    clerk.submit(run_id="a")
    barrier = threading.Barrier(2)

    def cancels(store: object, ids: list[str]) -> None:
        for run_id in ids:
            barrier.wait(60)
            store.cancel(RunId(run_id), None, by="x")  # type: ignore[attr-defined]

    ids = [clerk.submit().id for _ in range(20)]
    with ThreadPoolExecutor(2) as pool:
        for future in (pool.submit(cancels, clerk.store, ids), pool.submit(cancels, other, ids[::-1])):
            future.result(30)
    other.close()
    assert {clerk.run(run_id).status for run_id in ids} == {RunStatus.CANCELLED}
    clerk.audit()


def test_writers_are_told_when_others_keep_the_file(clerk: Clerk, monkeypatch: pytest.MonkeyPatch) -> None:
    clerk.submit()
    table = [(S1, fence_of(clerk.start()).token)]
    monkeypatch.setattr(connections.begin_immediate, "__defaults__", (0.2,))
    with closing(sqlite3.connect(path_of(clerk), isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        with pytest.raises(Unavailable, match="busy"):
            clerk.send(clerk.new())
        with pytest.raises(Unavailable, match="busy"):
            clerk.store.cancel(RunId("r0001"), None, by="x")
        with pytest.raises(Unavailable, match="busy"):
            clerk.store.mark(W1, table, timeout=timedelta(seconds=0.2))
        assert time.monotonic() - begun < 12
        assert clerk.run("r0001").status is RunStatus.RUNNING, "readers go on"
        holder.execute("ROLLBACK")
    clerk.submit()
    assert clerk.store.mark(W1, table, timeout=timedelta(seconds=5)).confirmed == {"s1"}


def test_the_mark_does_not_wait_for_this_processs_writers(clerk: Clerk) -> None:
    """Ten callers queue for the writer; the mark asks the file itself."""
    clerk.submit()
    table = [(S1, fence_of(clerk.start()).token)]
    entered, leave = threading.Event(), threading.Event()

    def occupy() -> None:
        # The pool's only writer is taken, but without the file's lock.
        database = clerk.store._database._database  # type: ignore[attr-defined]
        taken = database._writer.raw_connection()
        entered.set()
        leave.wait(60)
        taken.close()

    with ThreadPoolExecutor(1) as pool:
        occupying = pool.submit(occupy)
        assert entered.wait(60)
        assert clerk.store.mark(W1, table, timeout=timedelta(seconds=1)).confirmed == {"s1"}
        leave.set()
        occupying.result(60)


def test_a_commit_that_broke_off_is_in_doubt(clerk: Clerk, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the disk at COMMIT after which the library has no transaction any more."""
    clerk.submit(run_id="a")
    real = sqlite_database.committed

    def failing(commit: object, broken: object) -> None:
        def broken_off() -> None:
            commit()  # type: ignore[operator]
            raise sqlite3.OperationalError("disk I/O error")

        real(broken_off, broken)  # type: ignore[arg-type]

    monkeypatch.setattr(sqlite_database, "committed", failing)
    claims = [clerk.claim()]
    with pytest.raises(InDoubt):
        clerk.store.start(W1, claims[0].token, claims)  # type: ignore[arg-type]
    with pytest.raises(InDoubt):
        clerk.store.annotate_run(RunId("a"), None, "x")
    monkeypatch.undo()
    assert type(clerk.store.start_outcome(W1, claims)[0]).__name__ == "Started"
    assert clerk.run("a").note == "x"


def test_a_commit_that_was_refused_is_undone(clerk: Clerk, monkeypatch: pytest.MonkeyPatch) -> None:
    clerk.submit(run_id="a")
    real = sqlite_database.committed

    def refusing(commit: object, broken: object) -> None:
        def refused() -> None:
            raise sqlite3.OperationalError("database or disk is full")

        real(refused, broken)  # type: ignore[arg-type]

    monkeypatch.setattr(sqlite_database, "committed", refusing)
    for call in (lambda: clerk.try_start(clerk.claim()), lambda: clerk.store.annotate_run(RunId("a"), None, "x")):
        with pytest.raises(Unavailable) as error:
            call()
        assert not isinstance(error.value, InDoubt)
    monkeypatch.undo()
    assert clerk.run("a").note is None
    assert clerk.start().run.id == "a"
    clerk.audit()


def test_every_commit_is_on_the_disk_and_the_journal_is_a_wal(clerk: Clerk) -> None:
    facts = clerk.store.facts()
    assert (facts["journal_mode"], facts["synchronous"]) == ("wal", "FULL")
    with clerk.store._database.write() as connection:  # type: ignore[attr-defined]
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def test_no_hot_statement_walks_a_table(clerk: Clerk) -> None:
    """SQLite has no statistics here: the plans are those of every installation."""
    texts = {
        f"{module.__name__.rpartition('.')[2]}.{name}": value
        for module in (execution, submit, sqlite_database)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str) and "?" in value
    }
    assert len(texts) > 25
    with closing(connections.opened(path_of(clerk))) as connection:
        for name, statement in texts.items():
            holes = ["x"] * statement.count("?")
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", holes)]
            # The few rows above a run are a table of the statement's own (`a`), begun with one (`CONSTANT ROW`).
            assert not [step for step in plan if re.match(r"SCAN (?!CONSTANT ROW|a$)|USE TEMP", step)], (name, plan)
        for statement, index in (
            (execution.FIRST, "ix_runs_eligible"),
            (execution.HIGHEST, "ix_runs_waiting"),
            (execution.ACTIVE, "ux_runs_active"),
        ):
            plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", ["x"]).fetchall()
            assert index in plan[0][3], plan


def test_what_reconcile_reads_walks_no_table(clerk: Clerk) -> None:
    statements = [
        (queues.WALK, {"after": "", "limit": 9}),
        (queues.WRONG_EPOCH, {"epoch": "e", "limit": 9}),
        (queues._firsts(["x", "y"]), {}),
    ]
    with clerk.store._database.read() as connection:  # type: ignore[attr-defined]
        for statement, arguments in statements:
            compiled = statement.compile(connection, compile_kwargs={"literal_binds": True})
            words = str(compiled)
            for name, value in arguments.items():
                words = words.replace(f":{name}", repr(value))
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {words}")]
            assert not [step for step in plan if re.match(r"SCAN (runs|sessions|r)\b|USE TEMP", step)], (words, plan)


def test_what_explains_and_diagnoses_walks_no_table(clerk: Clerk) -> None:
    """But for the owner rows, which are as many as there are agents."""
    hour = timedelta(hours=1)
    statements = {
        "facts": waits._facts([RunId("x"), RunId("y")]),
        "waiting": waits._waiting("sqlite", hour, None, 9),
        "waiting of a workspace": waits._waiting("sqlite", hour, WorkspaceId("w"), 9),
        "unheeded": waits._unheeded(hour, [], 9),
        "unkillable": waits._unkillable("sqlite", [], 9),
        "silent": waits._silent(hour, [], 9),
    }
    with clerk.store._database.read() as connection:  # type: ignore[attr-defined]
        for name, statement in statements.items():
            words = str(statement.compile(connection, compile_kwargs={"literal_binds": True}))
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {words}")]
            walked = [step for step in plan if re.match(r"SCAN (runs|sessions|other|workspaces)\b", step)]
            assert not [step for step in walked if "USING INDEX" not in step], (name, plan)
    assert "ix_runs_dispatched" in _plan(clerk, statements["waiting"])
    assert "ux_runs_active" in _plan(clerk, statements["unheeded"])
    assert "ix_sessions_held" in _plan(clerk, statements["unkillable"])


def _plan(clerk: Clerk, statement: Any) -> str:
    with clerk.store._database.read() as connection:  # type: ignore[attr-defined]
        words = str(statement.compile(connection, compile_kwargs={"literal_binds": True}))
        return "\n".join(row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {words}"))


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    where = tmp_path / "share dir"
    where.mkdir()
    escaped = str(where).replace(" ", "\\040")
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {escaped} nfs4 rw 0 0\nbroken\n")
    with pytest.raises(InvalidRequest, match="nfs4"):
        connections.check_file_system(where / "oah.db", mounts)
    connections.check_file_system(tmp_path / "oah.db", mounts)
    connections.check_file_system(tmp_path / "oah.db", tmp_path / "no-such-file")


def test_an_old_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(Broken, match="too old"):
        connections.check_library()


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"this is no database" * 100)
    store = open_store(f"sqlite:///{tmp_path / 'x.db'}")
    with pytest.raises(Broken):
        store.check()
    store.close()


def test_a_place_it_cannot_make(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable):
        open_store(f"sqlite:///{tmp_path / 'file' / 'oah.db'}")
