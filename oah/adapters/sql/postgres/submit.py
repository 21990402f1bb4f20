"""Submit on PostgreSQL: lock, take keys, one statement for everything that is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import Cursor

from oah.adapters.sql.rows import SESSION_COLUMNS, listed, session_of
from oah.adapters.sql.statements import ActiveRow, CommandRow, Inserted, KeyRow, ParentRow, RunRow, SubmitSession
from oah.adapters.sql.tables import CHILD, LIMIT_OF_ONE_ATTEMPT, LIVE_CHILD
from oah.core.policy.children import DEEPEST
from oah.core.policy.rate import rate_of

LOCK_FOR_SUBMIT = f"""
SELECT {listed(SESSION_COLUMNS, "s.")}, s.next_position, s.front_position,
  (SELECT ARRAY[w.max_queued_runs, w.runs_per_minute, w.runs_burst] FROM workspaces w WHERE w.id = s.workspace_id),
  (SELECT coalesce(sum(k.queued), 0)::bigint FROM workspace_counters k WHERE k.workspace_id = s.workspace_id)
FROM sessions s WHERE s.id = ANY(%(sessions)s) ORDER BY s.id FOR NO KEY UPDATE OF s
"""

# Rows go in in the order of the keys, so that two batches with the same keys wait for each other in one order.
TAKE_KEYS = """
INSERT INTO idempotency_keys (workspace_id, key, request_hash, run_id, created_at)
SELECT c.workspace_id, c.key, c.request_hash, c.run_id, clock_timestamp()
FROM unnest(%(workspaces)s::text[], %(keys)s::text[], %(hashes)s::text[], %(runs)s::text[])
  AS c(workspace_id, key, request_hash, run_id) ORDER BY c.workspace_id, c.key
ON CONFLICT (workspace_id, key) DO NOTHING RETURNING workspace_id, key
"""

TAKEN_KEYS = """
SELECT k.workspace_id, k.key, k.request_hash, k.run_id
FROM unnest(%(workspaces)s::text[], %(keys)s::text[]) AS c(workspace_id, key)
JOIN idempotency_keys k ON k.workspace_id = c.workspace_id AND k.key = c.key
"""

DROP_KEYS = """
DELETE FROM idempotency_keys k USING unnest(%(workspaces)s::text[], %(keys)s::text[]) AS c(workspace_id, key)
WHERE k.workspace_id = c.workspace_id AND k.key = c.key
"""

MAKE_RATES = """
INSERT INTO workspace_rates (workspace_id) SELECT c.id FROM unnest(%(workspaces)s::text[]) AS c(id) ORDER BY c.id
ON CONFLICT (workspace_id) DO NOTHING
"""
LOCK_RATES = """
SELECT workspace_id, full_at FROM workspace_rates WHERE workspace_id = ANY(%(workspaces)s)
ORDER BY workspace_id FOR NO KEY UPDATE
"""
CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
SAVE_RATES = """
UPDATE workspace_rates r SET full_at = c.ahead
FROM unnest(%(workspaces)s::text[], %(ahead)s::bigint[]) AS c(id, ahead)
WHERE r.workspace_id = ANY(%(workspaces)s) AND r.workspace_id = c.id
"""

# Forms as execution.py has them: whenever the plan was made, a step up is a probe, and a count has an index of its own.
# What is nobody's child is below whose agent has opened its session.
OPENER = "(SELECT parent_run_id FROM sessions WHERE id = {}.session_id)"
PARENTS = f"""
SELECT r.id, r.attempt, r.claim_token, r.status IN ('running', 'waiting_tool'), r.cancel_requested_at IS NOT NULL,
  (WITH RECURSIVE above(parent, depth) AS (
    SELECT coalesce(r.parent_run_id, {OPENER.format("r")}), 0
    UNION ALL SELECT coalesce(p.parent_run_id, {OPENER.format("p")}), a.depth + 1 FROM above a
      CROSS JOIN LATERAL (SELECT parent_run_id, session_id FROM runs WHERE id = a.parent LIMIT 1) p
      WHERE a.depth < {DEEPEST}
  ) SELECT max(depth) FROM above),
  (SELECT count(*) FROM runs c WHERE c.parent_run_id = r.id AND {LIVE_CHILD}),
  (SELECT count(*) FROM runs c WHERE c.parent_run_id = r.id AND {CHILD}),
  (SELECT count(*) FROM sessions s WHERE s.parent_run_id = r.id AND {CHILD})
FROM runs r WHERE r.id = ANY(%(runs)s)
"""

INSERT = """
WITH c AS MATERIALIZED (
  SELECT c.*, clock_timestamp() AS now FROM unnest(
    %(id)s::text[], %(session_id)s::text[], %(workspace_id)s::text[], %(parent_run_id)s::text[], %(position)s::bigint[],
    %(number)s::bigint[], %(run_class)s::text[], %(class_rank)s::smallint[], %(input)s::text[], %(metadata)s::text[],
    %(delay_us)s::bigint[], %(due_at)s::timestamptz[], %(timeout_ms)s::bigint[], %(deadline_at)s::timestamptz[],
    %(max_retries)s::int[], %(order_mode)s::text[], %(start_timeout_us)s::bigint[], %(idle_timeout_ms)s::bigint[],
    %(step_timeout_ms)s::bigint[], %(retry)s::text[], %(recovery_strategy)s::text[],
    %(recovery_max_attempts)s::int[], %(data)s::text[], %(priority)s::int[], %(front)s::bool[]
  ) AS c(id, session_id, workspace_id, parent_run_id, position, number, run_class, class_rank, input, metadata,
    delay_us, due_at, timeout_ms, deadline_at, max_retries, order_mode, start_timeout_us, idle_timeout_ms,
    step_timeout_ms, retry, recovery_strategy, recovery_max_attempts, data, priority, front)),
d AS MATERIALIZED (SELECT c.*, coalesce(c.due_at, c.now + c.delay_us * interval '1 microsecond') AS due FROM c),
k AS (SELECT session_id, count(*) AS k, count(*) FILTER (WHERE front) AS f FROM c GROUP BY session_id),
s AS (UPDATE sessions s SET next_position = s.next_position + k.k - k.f, front_position = s.front_position - k.f,
    event_seq = s.event_seq + k.k, queued_count = s.queued_count + k.k
  FROM k WHERE s.id = ANY(%(session_id)s::text[]) AND s.id = k.session_id),
w AS (INSERT INTO workspace_counters (workspace_id, part, queued)
  SELECT workspace_id, %(part)s::smallint, count(*) FROM c GROUP BY workspace_id ORDER BY workspace_id
  ON CONFLICT (workspace_id, part) DO UPDATE SET queued = workspace_counters.queued + excluded.queued),
e AS (INSERT INTO run_events (session_id, number, run_id, attempt, type, data, at)
  SELECT session_id, number, id, 0, 'run.queued', data::jsonb, now FROM d)
INSERT INTO runs (id, session_id, workspace_id, parent_run_id, position, class, class_rank, input, metadata, status,
  deferred, due_at, timeout_ms, deadline_at, max_retries, order_mode, start_by, idle_timeout_ms, step_timeout_ms,
  retry, recovery_strategy, recovery_max_attempts, priority, created_at, queued_at)
SELECT id, session_id, workspace_id, parent_run_id, position, run_class, class_rank, input, metadata::jsonb,
  'queued', coalesce(due > now, false), due, timeout_ms, deadline_at, max_retries, order_mode,
  greatest(due, now) + start_timeout_us * interval '1 microsecond', idle_timeout_ms, step_timeout_ms, retry::jsonb,
  recovery_strategy, recovery_max_attempts, priority, now, now
FROM d
RETURNING id, created_at, due_at, deferred, start_by
"""

ACTIVE_RUN = """
SELECT id, attempt, worker_id, cancel_requested_at IS NOT NULL, voided, status = 'waiting_tool', parent_run_id FROM runs
WHERE session_id = %(session)s AND status IN ('running', 'waiting_tool') LIMIT 1
"""

STOP_RUN = f"""
WITH was AS MATERIALIZED (SELECT cancel_requested_at IS NULL OR {LIMIT_OF_ONE_ATTEMPT} AS free
  FROM runs WHERE id = %(run)s)
UPDATE runs SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()),
  cancel_requested_by = CASE WHEN was.free THEN %(by)s ELSE cancel_requested_by END,
  stop_reason = CASE WHEN was.free THEN %(reason)s ELSE stop_reason END, voided = voided OR %(void)s
FROM was WHERE id = %(run)s
"""

TELL = """
WITH s AS (UPDATE sessions SET event_seq = event_seq + 1 WHERE id = %(session)s)
INSERT INTO run_events (session_id, number, run_id, attempt, type, data, at)
VALUES (%(session)s, %(number)s, %(run)s, %(attempt)s, %(kind)s, %(data)s::jsonb, clock_timestamp())
"""

PUT_COMMAND = """
INSERT INTO worker_commands (worker_id, kind, given_by, run_id, attempt, data, request_id, at)
VALUES (%(worker_id)s, %(kind)s, %(given_by)s, %(run_id)s, %(attempt)s, %(data)s::jsonb, %(request_id)s,
  clock_timestamp())
"""

STEERED = """
SELECT request_id, run_id FROM worker_commands WHERE request_id = ANY(%(requests)s) AND request_id IS NOT NULL
"""


class PostgresSubmit:
    """The statements of a submit."""

    _cursor: Cursor[Any]
    _part: int

    def lock_for_submit(self, sessions: Sequence[str]) -> dict[str, SubmitSession]:
        """Lock in id order; the figures of the rows are the latest, the workspace's count is as good as committed."""
        found: dict[str, SubmitSession] = {}
        width = len(SESSION_COLUMNS)
        for row in self._cursor.execute(LOCK_FOR_SUBMIT, {"sessions": list(sessions)}):
            session = session_of(row[:width])
            position, front, (cap, per_minute, burst), queued = row[width:]
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
        """Insert, waiting for whoever inserts the same; then read what was there first, with a new snapshot."""
        arguments = {
            "workspaces": [key.workspace_id for key in keys],
            "keys": [key.key for key in keys],
            "hashes": [key.request_hash for key in keys],
            "runs": [key.run_id for key in keys],
        }
        ours = set(self._cursor.execute(TAKE_KEYS, arguments).fetchall())
        others = [key for key in keys if (key.workspace_id, key.key) not in ours]
        if not others:
            return {}
        wanted = {"workspaces": [key.workspace_id for key in others], "keys": [key.key for key in others]}
        rows = self._cursor.execute(TAKEN_KEYS, wanted).fetchall()
        return {(row[0], row[1]): KeyRow(*row) for row in rows}

    def drop_keys(self, keys: Sequence[KeyRow]) -> None:
        """Give back keys whose run was refused."""
        wanted = {"workspaces": [key.workspace_id for key in keys], "keys": [key.key for key in keys]}
        self._cursor.execute(DROP_KEYS, wanted)

    def lock_rates(self, workspaces: Sequence[str]) -> tuple[dict[str, int], int]:
        """In the order of their ids: after sessions and keys, before counters, like every submit."""
        wanted = {"workspaces": list(workspaces)}
        self._cursor.execute(MAKE_RATES, wanted)
        ahead = dict(self._cursor.execute(LOCK_RATES, wanted).fetchall())
        return ahead, self._cursor.execute(CLOCK).fetchall()[0][0]

    def save_rates(self, ahead: Mapping[str, int]) -> None:
        """Under their locks."""
        self._cursor.execute(SAVE_RATES, {"workspaces": list(ahead), "ahead": list(ahead.values())})

    def parents(self, runs: Sequence[str]) -> dict[str, ParentRow]:
        """With a snapshot of after the locks."""
        rows = self._cursor.execute(PARENTS, {"runs": list(runs)}).fetchall()
        return {row[0]: ParentRow(*row[1:]) for row in rows}

    def active_run(self, session: str) -> ActiveRow | None:
        """By the index of active runs."""
        row = self._cursor.execute(ACTIVE_RUN, {"session": session}).fetchone()
        return None if row is None else ActiveRow(*row)

    def stop_run(self, run: str, by: str, reason: str, *, void: bool) -> None:
        """Under the session's lock."""
        self._cursor.execute(STOP_RUN, {"run": run, "by": by, "reason": reason, "void": void})

    def tell(self, session: str, number: int, run: str, attempt: int, kind: str, data: str) -> None:
        """Under the session's lock."""
        names = ("session", "number", "run", "attempt", "kind", "data")
        self._cursor.execute(TELL, dict(zip(names, (session, number, run, attempt, kind, data), strict=True)))

    def put_command(self, command: CommandRow) -> None:
        """The worker is told to look by others."""
        self._cursor.execute(PUT_COMMAND, command._asdict())

    def steered(self, requests: Sequence[str]) -> dict[str, str]:
        """By the index of requests."""
        return dict(self._cursor.execute(STEERED, {"requests": list(requests)}).fetchall())

    def insert_runs(self, runs: Sequence[RunRow]) -> dict[str, Inserted]:
        """Runs, their events, the sessions' counters and the workspaces' in one statement."""
        arguments: dict[str, Any] = dict(zip(RunRow._fields, map(list, zip(*runs, strict=True)), strict=True))
        arguments["part"] = self._part
        rows = self._cursor.execute(INSERT, arguments).fetchall()
        return {
            run_id: Inserted(created, due, due - created if deferred else None, start_by)
            for run_id, created, due, deferred, start_by in rows
        }
