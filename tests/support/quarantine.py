"""Thousands of quarantined runs, written as rows: what days of bad luck would leave."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import insert

from oah.adapters.sql.governance_tables import dead_letters
from oah.adapters.sql.store import open_store
from oah.adapters.sql.tables import CLASS_RANKS, run_attempts, runs, sessions
from oah.core.model.run import RunClass
from oah.core.model.workspace import DEFAULT_WORKSPACE
from tests.support.store_clerk import Behind

EACH = 100
"""Runs of a session."""
LETTERS = 500
"""Dead letters that are kept; those of older runs were evicted."""


def quarantine(url: str, count: int) -> None:
    """So many runs, a hundred a session, each executed once; the last ones have a dead letter still."""
    at = datetime.now(UTC) - timedelta(hours=1)
    names = [f"q{number:05d}" for number in range(count)]
    places = [(f"qs{number // EACH:03d}", number % EACH + 1) for number in range(count)]
    recovery = {"state": "quarantined", "strategy": "requeue_running", "attempts": 3, "reason": "worker_lost"}
    store: Any = open_store(url)
    with store._database.write() as connection:
        connection.execute(
            insert(sessions).values(agent="noop", pool="default", workspace_id=DEFAULT_WORKSPACE, created_at=at),
            [{"id": f"qs{number:03d}", "next_position": EACH + 1} for number in range((count + EACH - 1) // EACH)],
        )
        one: dict[str, Any] = {
            "workspace_id": DEFAULT_WORKSPACE,
            "class": RunClass.INTERACTIVE.value,
            "class_rank": CLASS_RANKS[RunClass.INTERACTIVE],
            "input": "x",
            "status": "failed",
            "attempt": 1,
            "recovery_attempts": 3,
            "recovery": recovery,
            "recovery_state": "quarantined",
            "error_code": "worker_lost",
            "created_at": at,
            "queued_at": at,
            "ended_at": at,
        }
        rows = [
            {"id": name, "session_id": session, "position": position}
            for name, (session, position) in zip(names, places, strict=True)
        ]
        connection.execute(insert(runs).values(**one), rows)
        attempt = {"attempt": 1, "reason": "first", "worker_id": "w", "claim_token": "t", "outcome": "worker_lost"}
        connection.execute(
            insert(run_attempts).values(**attempt, started_at=at, ended_at=at), [{"run_id": name} for name in names]
        )
        letter = {"kind": "run", "code": "worker_lost", "reason": "worker_lost", "attempts": 1}
        connection.execute(
            insert(dead_letters).values(**letter, workspace_id=DEFAULT_WORKSPACE, first_at=at, last_at=at),
            [
                {"id": f"dl_{name}.1", "subject": name, "session_id": session}
                for name, (session, _) in list(zip(names, places, strict=True))[-LETTERS:]
            ],
        )
    store.close()


def each_was_requeued_once(behind: Behind, count: int, job_id: str) -> None:
    """By rows alone."""
    [(states, moved)] = behind.query(
        "SELECT count(*), sum(CASE WHEN attempt = 1 AND recovery_state = 'requeued' THEN 1 ELSE 0 END) FROM runs"
        " WHERE status = 'queued'"
    )
    assert (states, moved) == (count, count)
    for question in (
        "SELECT run_id, count(*) FROM run_steps WHERE name = 'run.requeued' GROUP BY run_id",
        "SELECT run_id, count(*) FROM run_events WHERE type = 'run.queued' GROUP BY run_id",
        "SELECT subject, count(*) FROM audit WHERE action = 'run.requeued' GROUP BY subject",
        f"SELECT subject, count(*) FROM job_items WHERE outcome = 'requeued' AND job_id = '{job_id}' GROUP BY subject",
    ):
        rows = behind.query(question)
        assert len(rows) == count and {row[1] for row in rows} == {1}, question
    letters = min(count, LETTERS)
    assert behind.query("SELECT state, count(*) FROM dead_letters GROUP BY state") == [("redriven", letters)]
    assert behind.query("SELECT count(*) FROM run_events WHERE type = 'dead_letter.redriven'") == [(letters,)]
    places = behind.query("SELECT session_id, id, position FROM runs ORDER BY session_id, id")
    for number, (session, _, position) in enumerate(places):
        assert position == EACH + 1 + number % EACH, f"the order in {session} is not what it was"
    counted = behind.query(
        "SELECT sum(queued_count), sum(next_position), sum(event_seq) FROM sessions WHERE agent = 'noop'"
    )
    sessions_there = (count + EACH - 1) // EACH
    assert [int(value) for value in counted[0]] == [count, sessions_there * (EACH + 1) + count, count + letters]
    [(queued,)] = behind.query("SELECT sum(queued) FROM workspace_counters")
    assert int(queued) == count
