"""Submit on SQLite: the transaction has the only write lock, so everything is read as it is and written row by row."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta

from oah.adapters.sql.columns import from_us, to_us
from oah.adapters.sql.rows import SESSION_COLUMNS, listed, session_of
from oah.adapters.sql.sqlite.connections import now_us
from oah.adapters.sql.statements import ActiveRow, CommandRow, Inserted, KeyRow, ParentRow, RunRow, SubmitSession
from oah.adapters.sql.tables import LIMIT_OF_ONE_ATTEMPT
from oah.core.policy.children import DEEPEST
from oah.core.policy.rate import rate_of

SESSION = f"""
SELECT {listed(SESSION_COLUMNS, "s.")}, s.next_position, s.front_position, w.max_queued_runs,
  w.runs_per_minute, w.runs_burst,
  (SELECT coalesce(sum(k.queued), 0) FROM workspace_counters k WHERE k.workspace_id = s.workspace_id)
FROM sessions s JOIN workspaces w ON w.id = s.workspace_id WHERE s.id = ?
"""
TAKE_KEY = """
INSERT INTO idempotency_keys (workspace_id, key, request_hash, run_id, created_at) VALUES (?, ?, ?, ?, now_us())
ON CONFLICT (workspace_id, key) DO NOTHING
"""
TAKEN_KEY = "SELECT workspace_id, key, request_hash, run_id FROM idempotency_keys WHERE workspace_id = ? AND key = ?"
RATE = "SELECT full_at FROM workspace_rates WHERE workspace_id = ?"
SAVE_RATE = """
INSERT INTO workspace_rates (workspace_id, full_at) VALUES (?, ?)
ON CONFLICT (workspace_id) DO UPDATE SET full_at = excluded.full_at
"""
DROP_KEY = "DELETE FROM idempotency_keys WHERE workspace_id = ? AND key = ?"
INSERT_RUN = """
INSERT INTO runs (id, session_id, workspace_id, parent_run_id, position, class, class_rank, input, metadata, status,
  deferred, due_at, timeout_ms, deadline_at, max_retries, order_mode, start_by, idle_timeout_ms, step_timeout_ms,
  retry, recovery_strategy, recovery_max_attempts, priority, created_at, queued_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
INSERT_EVENT = """
INSERT INTO run_events (session_id, number, run_id, attempt, type, data, at) VALUES (?, ?, ?, 0, 'run.queued', ?, ?)
"""
COUNT_SESSION = """
UPDATE sessions SET next_position = next_position + ?, front_position = front_position - ?, event_seq = event_seq + ?,
  queued_count = queued_count + ?
WHERE id = ?
"""
COUNT_WORKSPACE = """
INSERT INTO workspace_counters (workspace_id, part, queued) VALUES (?, 0, ?)
ON CONFLICT (workspace_id, part) DO UPDATE SET queued = queued + excluded.queued
"""


# What is nobody's child is below whose agent has opened its session.
OPENER = "(SELECT parent_run_id FROM sessions WHERE id = {}.session_id)"
PARENT = f"""
SELECT r.id, r.attempt, r.claim_token, r.status IN ('running', 'waiting_tool'), r.cancel_requested_at IS NOT NULL,
  (WITH RECURSIVE above(parent, depth) AS (
    SELECT coalesce(r.parent_run_id, {OPENER.format("r")}), 0
    UNION ALL SELECT coalesce(p.parent_run_id, {OPENER.format("p")}), a.depth + 1
      FROM above a JOIN runs p ON p.id = a.parent WHERE a.depth < {DEEPEST}
  ) SELECT max(depth) FROM above),
  (SELECT count(*) FROM runs c WHERE c.parent_run_id = r.id AND c.status IN ('queued', 'running', 'waiting_tool')),
  (SELECT count(*) FROM runs c WHERE c.parent_run_id = r.id),
  (SELECT count(*) FROM sessions s WHERE s.parent_run_id = r.id)
FROM runs r WHERE r.id = ?
"""
ACTIVE_RUN = """
SELECT id, attempt, worker_id, cancel_requested_at IS NOT NULL, voided, status = 'waiting_tool', parent_run_id FROM runs
WHERE session_id = ? AND status IN ('running', 'waiting_tool')
"""
STOP_RUN = f"""
UPDATE runs SET cancel_requested_at = coalesce(cancel_requested_at, now_us()),
  cancel_requested_by = CASE WHEN cancel_requested_at IS NULL OR {LIMIT_OF_ONE_ATTEMPT}
    THEN ? ELSE cancel_requested_by END,
  stop_reason = CASE WHEN cancel_requested_at IS NULL OR {LIMIT_OF_ONE_ATTEMPT}
    THEN ? ELSE stop_reason END, voided = voided OR ?
WHERE id = ?
"""
COUNT_EVENT = "UPDATE sessions SET event_seq = event_seq + 1 WHERE id = ?"
TELL = """
INSERT INTO run_events (session_id, number, run_id, attempt, type, data, at) VALUES (?, ?, ?, ?, ?, ?, now_us())
"""
PUT_COMMAND = """
INSERT INTO worker_commands (worker_id, kind, given_by, run_id, attempt, data, request_id, at)
VALUES (?, ?, ?, ?, ?, ?, ?, now_us())
"""
STEERED = "SELECT run_id FROM worker_commands WHERE request_id = ?"


class SqliteSubmit:
    """The statements of a submit."""

    _cursor: sqlite3.Cursor

    def lock_for_submit(self, sessions: Sequence[str]) -> dict[str, SubmitSession]:
        """The transaction has the lock already."""
        found: dict[str, SubmitSession] = {}
        width = len(SESSION_COLUMNS)
        for wanted in sessions:
            row = self._cursor.execute(SESSION, (wanted,)).fetchone()
            if row is not None:
                session = session_of(row[:width])
                position, front, cap, per_minute, burst, queued = row[width:]
                found[session.id] = SubmitSession(
                    session,
                    position,
                    queued,
                    cap,
                    session.queued_count,
                    session.event_seq,
                    front,
                    rate_of(per_minute, burst),
                )
        return found

    def take_keys(self, keys: Sequence[KeyRow]) -> dict[tuple[str, str], KeyRow]:
        """Insert or read."""
        taken = {}
        for key in keys:
            if not self._cursor.execute(TAKE_KEY, key).rowcount:
                row = self._cursor.execute(TAKEN_KEY, key[:2]).fetchone()
                taken[(key.workspace_id, key.key)] = KeyRow(*row)
        return taken

    def drop_keys(self, keys: Sequence[KeyRow]) -> None:
        """Give back keys whose run was refused."""
        self._cursor.executemany(DROP_KEY, [key[:2] for key in keys])

    def lock_rates(self, workspaces: Sequence[str]) -> tuple[dict[str, int], int]:
        """The transaction has the lock already."""
        rows = ((name, self._cursor.execute(RATE, (name,)).fetchone()) for name in workspaces)
        return {name: 0 if row is None else row[0] for name, row in rows}, now_us()

    def save_rates(self, ahead: Mapping[str, int]) -> None:
        """Under the write lock."""
        self._cursor.executemany(SAVE_RATE, list(ahead.items()))

    def parents(self, runs: Sequence[str]) -> dict[str, ParentRow]:
        """The transaction has the lock already."""
        rows = [self._cursor.execute(PARENT, (run,)).fetchone() for run in runs]
        return {row[0]: ParentRow(row[1], row[2], bool(row[3]), bool(row[4]), *row[5:]) for row in rows if row}

    def active_run(self, session: str) -> ActiveRow | None:
        """By the index of active runs."""
        row = self._cursor.execute(ACTIVE_RUN, (session,)).fetchone()
        if row is None:
            return None
        return ActiveRow(row[0], row[1], row[2], bool(row[3]), bool(row[4]), bool(row[5]), row[6])

    def stop_run(self, run: str, by: str, reason: str, *, void: bool) -> None:
        """Under the write lock."""
        self._cursor.execute(STOP_RUN, (by, reason, void, run))

    def tell(self, session: str, number: int, run: str, attempt: int, kind: str, data: str) -> None:
        """Under the write lock."""
        self._cursor.execute(COUNT_EVENT, (session,))
        self._cursor.execute(TELL, (session, number, run, attempt, kind, data))

    def put_command(self, command: CommandRow) -> None:
        """The worker is told to look by others."""
        self._cursor.execute(PUT_COMMAND, command)

    def steered(self, requests: Sequence[str]) -> dict[str, str]:
        """By the index of requests."""
        found = ((request, self._cursor.execute(STEERED, (request,)).fetchone()) for request in requests)
        return {request: row[0] for request, row in found if row is not None}

    def insert_runs(self, runs: Sequence[RunRow]) -> dict[str, Inserted]:
        """Runs, events, counters."""
        now = now_us()
        answers = {run.id: self._insert(run, now) for run in runs}
        for session, count in Counter(run.session_id for run in runs).items():
            front = sum(run.front for run in runs if run.session_id == session)
            self._cursor.execute(COUNT_SESSION, (count - front, front, count, count, session))
        for workspace, count in Counter(run.workspace_id for run in runs).items():
            self._cursor.execute(COUNT_WORKSPACE, (workspace, count))
        return answers

    def _insert(self, run: RunRow, now: int) -> Inserted:
        due = None
        if run.due_at is not None:
            due = to_us(run.due_at)
        elif run.delay_us is not None:
            due = now + run.delay_us
        deferred = due is not None and due > now
        deadline = None if run.deadline_at is None else to_us(run.deadline_at)
        start_by = None if run.start_timeout_us is None else max(due or now, now) + run.start_timeout_us
        self._cursor.execute(
            INSERT_RUN,
            (
                run.id, run.session_id, run.workspace_id, run.parent_run_id, run.position, run.run_class,
                run.class_rank, run.input, run.metadata, deferred, due, run.timeout_ms, deadline, run.max_retries,
                run.order_mode, start_by, run.idle_timeout_ms, run.step_timeout_ms, run.retry, run.recovery_strategy,
                run.recovery_max_attempts, run.priority, now, now,
            ),
        )  # fmt: skip
        self._cursor.execute(INSERT_EVENT, (run.session_id, run.number, run.id, run.data, now))
        due_in = timedelta(microseconds=due - now) if deferred and due is not None else None
        return Inserted(
            from_us(now), None if due is None else from_us(due), due_in, None if start_by is None else from_us(start_by)
        )
