"""Start, settle, release and output on PostgreSQL. The session rows are locked by an earlier statement.

The forms are deliberate. A plan may have been made when the tables were empty, and be used in a burst: joined to a
small set, such a plan walks the whole index of a table and filters. So every table is reached by ``key = ANY(…)``, or
by a LATERAL with LIMIT on an index whose predicate is exactly the condition, which leaves nothing to choose. The UPDATE
of a start repeats its condition as ``r.status = p.status``, never as a constant.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import Cursor

from oah.adapters.sql.rows import RUN_COLUMNS, SESSION_COLUMNS, listed
from oah.adapters.sql.statements import ClaimRow, FencedRow, Look, OutputRow, SettleRow, StartRow, look_of
from oah.adapters.sql.tables import LIMIT_OF_ONE_ATTEMPT
from oah.ports.store import RunFence

LOCK_ONLY = "SELECT id FROM sessions WHERE id = ANY(%(sessions)s) ORDER BY id FOR NO KEY UPDATE"
LOCK = f"""
SELECT {listed(SESSION_COLUMNS)}, EXISTS (SELECT FROM pauses) FROM sessions WHERE id = ANY(%(sessions)s) ORDER BY id
FOR NO KEY UPDATE
"""
PAUSES = "SELECT kind, subject FROM pauses"

START = f"""
WITH c AS MATERIALIZED (SELECT * FROM unnest(%(sessions)s::text[], %(tokens)s::text[], %(suspects)s::bool[],
  %(helds)s::bool[]) AS c(session_id, token, suspect_place, held)),
v AS MATERIALIZED (SELECT c.session_id, c.token, c.suspect_place, c.held, o.worker_id AS o_worker,
    o.claim_token AS o_token, o.parked, o.seen_at, a.id AS a_id, a.worker_id AS a_worker, a.claim_token AS a_token,
    a.started_at AS a_since, q.id, q.status, q.deferred, q.recovery_attempts, q.queued_reason
  FROM c
  LEFT JOIN LATERAL (SELECT * FROM session_owners WHERE session_id = c.session_id LIMIT 1) o ON true
  LEFT JOIN LATERAL (SELECT id, worker_id, claim_token, started_at FROM runs
    WHERE session_id = c.session_id AND status IN ('running', 'waiting_tool') LIMIT 1) a ON true
  LEFT JOIN LATERAL (SELECT id, status, deferred, recovery_attempts, queued_reason FROM runs
    WHERE session_id = c.session_id AND status = 'queued' AND NOT deferred ORDER BY position LIMIT 1) q ON true),
p AS MATERIALIZED (SELECT * FROM v WHERE id IS NOT NULL AND a_id IS NULL AND (o_token IS NULL OR o_token = token)
  AND (recovery_attempts = 0 OR suspect_place) AND NOT held),
st AS (UPDATE runs r SET status = 'running', attempt = r.attempt + 1, worker_id = %(worker)s, claim_token = p.token,
    started_at = clock_timestamp(), ended_at = NULL, dispatched_epoch = %(epoch)s
  FROM p WHERE r.id = ANY(ARRAY(SELECT id FROM p)) AND r.id = p.id AND r.status = p.status AND r.deferred = p.deferred
  RETURNING {listed(RUN_COLUMNS, "r.")}, p.queued_reason AS reason),
sq AS (UPDATE sessions s SET event_seq = s.event_seq + 1, queued_count = s.queued_count - 1
  FROM st WHERE s.id = ANY(%(sessions)s::text[]) AND s.id = st.session_id RETURNING s.id, s.event_seq),
wc AS (INSERT INTO workspace_counters (workspace_id, part, queued)
  SELECT workspace_id, %(part)s::smallint, -count(*) FROM st GROUP BY workspace_id ORDER BY workspace_id
  ON CONFLICT (workspace_id, part) DO UPDATE SET queued = workspace_counters.queued + excluded.queued),
ev AS (INSERT INTO run_events (session_id, number, run_id, attempt, type, data, at)
  SELECT st.session_id, sq.event_seq, st.id, st.attempt, 'run.started',
    jsonb_build_object('worker_id', st.worker_id, 'reason', st.reason), st.started_at
  FROM st JOIN sq ON sq.id = st.session_id),
ra AS (INSERT INTO run_attempts (run_id, attempt, reason, worker_id, claim_token, started_at)
  SELECT id, attempt, reason, worker_id, claim_token, started_at FROM st),
ow AS (INSERT INTO session_owners (session_id, worker_id, claim_token, parked, seen_at)
  SELECT session_id, worker_id, claim_token, false, clock_timestamp() FROM st
  ON CONFLICT (session_id) DO UPDATE
    SET worker_id = excluded.worker_id, claim_token = excluded.claim_token, parked = false, seen_at = excluded.seen_at)
SELECT v.session_id, coalesce(v.o_worker, v.a_worker), coalesce(v.o_token, v.a_token), coalesce(v.parked, false),
  (extract(epoch FROM clock_timestamp() - coalesce(v.seen_at, v.a_since)) * 1000000)::bigint,
  v.a_id IS NOT NULL, v.id, coalesce(sq.event_seq, 0), st.reason, {listed(RUN_COLUMNS, "st.")}
FROM v LEFT JOIN st ON st.session_id = v.session_id LEFT JOIN sq ON sq.id = v.session_id
"""

# The fence: the runs by their keys, then compared.
_FENCED = """
q AS MATERIALIZED (SELECT id, session_id, attempt, claim_token, status FROM runs WHERE id = ANY(%(run_id)s::text[])),
p AS MATERIALIZED (SELECT c.*, q.status AS was FROM c JOIN q ON q.id = c.run_id AND q.session_id = c.session_id
    AND q.attempt = c.attempt AND q.claim_token = c.token AND q.status IN ('running', 'waiting_tool'))"""

SETTLE = f"""
WITH c AS MATERIALIZED (SELECT * FROM unnest(%(session_id)s::text[], %(run_id)s::text[], %(attempt)s::int[],
    %(token)s::text[], %(status)s::text[], %(result)s::text[], %(result_blob)s::text[], %(exit_code)s::int[],
    %(error_code)s::text[], %(error_message)s::text[], %(recording_blob)s::text[], %(agent)s::text[],
    %(keep_owner)s::bool[], %(data)s::text[], %(agent_reason)s::text[], %(home_mode)s::text[],
    %(session_ref)s::text[], %(home)s::text[]) WITH ORDINALITY
  AS c(session_id, run_id, attempt, token, status, result, result_blob, exit_code, error_code, error_message,
    recording_blob, agent, keep_owner, data, agent_reason, home_mode, session_ref, home, n)),
{_FENCED},
up AS (UPDATE runs r SET status = p.status, ended_at = clock_timestamp(),
    result = CASE WHEN r.voided THEN NULL ELSE p.result END,
    result_blob = CASE WHEN r.voided THEN NULL ELSE p.result_blob END,
    exit_code = p.exit_code, error_code = p.error_code, error_message = p.error_message, worker_id = NULL,
    claim_token = NULL, failed_attempts = r.failed_attempts + (p.status IN ('failed', 'timed_out'))::int
  FROM p WHERE r.id = ANY(%(run_id)s::text[]) AND r.id = p.run_id AND r.attempt = p.attempt AND r.status = p.was
  RETURNING p.*, r.ended_at, r.voided, r.cancel_requested_by, r.stop_reason),
sq AS (UPDATE sessions s SET event_seq = s.event_seq + 1,
    state = CASE WHEN s.state = 'closing' AND s.queued_count = 0 THEN 'closed' ELSE s.state END,
    closed_at = CASE WHEN s.state = 'closing' AND s.queued_count = 0 THEN up.ended_at ELSE s.closed_at END,
    session_ref = coalesce(up.session_ref, s.session_ref), home = coalesce(up.home::jsonb, s.home)
  FROM up WHERE s.id = ANY(%(session_id)s::text[]) AND s.id = up.session_id RETURNING s.id, s.event_seq),
ev AS (INSERT INTO run_events (session_id, number, run_id, attempt, type, data, at)
  SELECT up.session_id, sq.event_seq, up.run_id, up.attempt, 'run.' || up.status,
    CASE up.status WHEN 'cancelled' THEN up.data::jsonb || jsonb_strip_nulls(jsonb_build_object(
      'by', up.cancel_requested_by, 'reason', up.stop_reason)) ELSE up.data::jsonb END, up.ended_at
  FROM up JOIN sq ON sq.id = up.session_id),
ra AS (UPDATE run_attempts a SET ended_at = up.ended_at, outcome = up.status, agent = up.agent,
    recording_blob = up.recording_blob, agent_reason = coalesce(up.agent_reason, a.agent_reason),
    home = coalesce(up.home_mode, a.home)
  FROM up WHERE a.run_id = ANY(%(run_id)s::text[]) AND a.run_id = up.run_id AND a.attempt = up.attempt),
dl AS (DELETE FROM session_owners o USING up
  WHERE o.session_id = ANY(%(session_id)s::text[]) AND o.session_id = up.session_id AND o.claim_token = up.token
    AND NOT up.keep_owner),
pk AS (UPDATE session_owners o SET parked = true FROM up
  WHERE o.session_id = ANY(%(session_id)s::text[]) AND o.session_id = up.session_id AND o.claim_token = up.token
    AND up.keep_owner)
SELECT up.n, up.status, sq.event_seq, up.voided FROM up JOIN sq ON sq.id = up.session_id
"""

# Nobody wants it to end, at most a limit of the attempt that is over.
_GOES_ON = f"(r.cancel_requested_at IS NULL OR r.{LIMIT_OF_ONE_ATTEMPT})"

RELEASE = f"""
WITH c AS MATERIALIZED (SELECT * FROM unnest(%(session_id)s::text[], %(run_id)s::text[], %(attempt)s::int[],
    %(token)s::text[]) WITH ORDINALITY AS c(session_id, run_id, attempt, token, n)),
{_FENCED},
up AS (UPDATE runs r SET
    status = CASE WHEN {_GOES_ON} THEN 'queued' ELSE 'cancelled' END,
    ended_at = CASE WHEN {_GOES_ON} THEN NULL ELSE clock_timestamp() END,
    started_at = CASE WHEN {_GOES_ON} THEN NULL ELSE r.started_at END,
    cancel_requested_at = CASE WHEN {_GOES_ON} THEN NULL ELSE r.cancel_requested_at END,
    cancel_requested_by = CASE WHEN {_GOES_ON} THEN NULL ELSE r.cancel_requested_by END,
    stop_reason = CASE WHEN {_GOES_ON} THEN NULL ELSE r.stop_reason END,
    worker_id = NULL, claim_token = NULL, queued_reason = 'released', dispatched_epoch = ''
  FROM p WHERE r.id = ANY(%(run_id)s::text[]) AND r.id = p.run_id AND r.attempt = p.attempt AND r.status = p.was
  RETURNING p.n, p.token, r.id, r.session_id, r.workspace_id, r.attempt, r.status, r.cancel_requested_by,
    r.stop_reason, r.voided, clock_timestamp() AS now),
sq AS (UPDATE sessions s SET event_seq = s.event_seq + 1,
    queued_count = s.queued_count + (up.status = 'queued')::int,
    state = CASE WHEN s.state = 'closing' AND s.queued_count = 0 AND up.status = 'cancelled' THEN 'closed'
      ELSE s.state END,
    closed_at = CASE WHEN s.state = 'closing' AND s.queued_count = 0 AND up.status = 'cancelled' THEN up.now
      ELSE s.closed_at END
  FROM up WHERE s.id = ANY(%(session_id)s::text[]) AND s.id = up.session_id RETURNING s.id, s.event_seq),
wc AS (INSERT INTO workspace_counters (workspace_id, part, queued)
  SELECT workspace_id, %(part)s::smallint, count(*) FROM up WHERE status = 'queued' GROUP BY workspace_id
  ORDER BY workspace_id
  ON CONFLICT (workspace_id, part) DO UPDATE SET queued = workspace_counters.queued + excluded.queued),
ev AS (INSERT INTO run_events (session_id, number, run_id, attempt, type, data, at)
  SELECT up.session_id, sq.event_seq, up.id, up.attempt,
    CASE up.status WHEN 'queued' THEN 'run.released' ELSE 'run.cancelled' END,
    jsonb_strip_nulls(jsonb_build_object('by', up.cancel_requested_by, 'reason', up.stop_reason)), up.now
  FROM up JOIN sq ON sq.id = up.session_id),
ra AS (UPDATE run_attempts a SET ended_at = up.now,
    outcome = CASE up.status WHEN 'queued' THEN 'released' ELSE 'cancelled' END
  FROM up WHERE a.run_id = ANY(%(run_id)s::text[]) AND a.run_id = up.id AND a.attempt = up.attempt),
dl AS (DELETE FROM session_owners o USING up WHERE o.session_id = ANY(%(session_id)s::text[])
    AND o.session_id = up.session_id AND o.claim_token = up.token)
SELECT up.n, up.status, sq.event_seq, up.voided FROM up JOIN sq ON sq.id = up.session_id
"""

OUTPUT = f"""
WITH c AS MATERIALIZED (SELECT * FROM unnest(%(session_id)s::text[], %(run_id)s::text[], %(attempt)s::int[],
    %(token)s::text[], %(data)s::text[]) WITH ORDINALITY AS c(session_id, run_id, attempt, token, data, n)),
{_FENCED},
o AS MATERIALIZED (SELECT p.*, row_number() OVER (PARTITION BY p.session_id ORDER BY p.n) AS i FROM p),
k AS (SELECT session_id, count(*) AS k FROM o GROUP BY session_id),
sq AS (UPDATE sessions s SET event_seq = s.event_seq + k.k
  FROM k WHERE s.id = ANY(%(session_id)s::text[]) AND s.id = k.session_id
  RETURNING s.id, s.event_seq - k.k AS base),
ev AS (INSERT INTO run_events (session_id, number, run_id, attempt, type, data, at)
  SELECT o.session_id, sq.base + o.i, o.run_id, o.attempt, 'run.output', o.data::jsonb, clock_timestamp()
  FROM o JOIN sq ON sq.id = o.session_id)
SELECT o.n, sq.base + o.i FROM o JOIN sq ON sq.id = o.session_id
"""

LOOK = """
SELECT s.id, CASE WHEN f.recovery_attempts >= 1 THEN 'suspect' ELSE h.class END, s.held, s.holds,
  (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, s.event_seq, coalesce(f.priority, 0)
FROM sessions s
LEFT JOIN LATERAL (SELECT recovery_attempts, priority FROM runs
  WHERE session_id = s.id AND status = 'queued' AND NOT deferred ORDER BY position LIMIT 1) f ON true
LEFT JOIN LATERAL (SELECT class FROM runs WHERE session_id = s.id AND status = 'queued' AND NOT deferred
  ORDER BY class_rank LIMIT 1) h ON true
WHERE s.id = ANY(%(sessions)s)
"""

ACTIVE_SESSIONS = """
SELECT a.session_id FROM unnest(%(sessions)s::text[]) AS c(id) CROSS JOIN LATERAL (SELECT session_id FROM runs
  WHERE session_id = c.id AND status IN ('running', 'waiting_tool') LIMIT 1) a
"""

# A run that somebody else is changing is skipped: it is about to start or to end, or the relay says it once more.
HEARD = """
UPDATE runs r SET dispatched_epoch = %(epoch)s
FROM (SELECT id, status FROM runs WHERE id = ANY(%(runs)s) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED) h
WHERE r.id = ANY(%(runs)s) AND r.id = h.id AND h.status = 'queued' AND r.dispatched_epoch <> %(epoch)s
"""

HOLD = "UPDATE sessions SET holds = %(holds)s::jsonb, held = %(held)s WHERE id = %(session)s"

READ_RUNS = f"SELECT {listed(RUN_COLUMNS)} FROM runs WHERE id = ANY(%(runs)s)"

DROP_OWNERS = """
DELETE FROM session_owners o USING unnest(%(sessions)s::text[], %(tokens)s::text[]) AS c(session_id, token)
WHERE o.session_id = ANY(%(sessions)s::text[]) AND o.session_id = c.session_id AND o.claim_token = c.token
  AND o.worker_id = %(worker)s
  AND NOT EXISTS (SELECT FROM runs a WHERE a.session_id = c.session_id AND a.status IN ('running', 'waiting_tool'))
RETURNING o.session_id
"""


class PostgresExecution:
    """The statements of a run's execution."""

    _cursor: Cursor[Any]
    _part: int
    _any_paused = False

    def lock(self, sessions: Sequence[str]) -> dict[str, Sequence[Any]]:
        """Lock in id order; what is returned is the latest version, also after a wait."""
        rows = self._cursor.execute(LOCK, {"sessions": list(sessions)}).fetchall()
        self._any_paused = any(row[-1] for row in rows)
        return {row[0]: row[:-1] for row in rows}

    def pauses(self) -> list[tuple[str, str]]:
        """Asked for only where the lock has seen that there are any."""
        return self._cursor.execute(PAUSES).fetchall() if self._any_paused else []

    def lock_only(self, sessions: Sequence[str]) -> None:
        """Lock in id order."""
        self._cursor.execute(LOCK_ONLY, {"sessions": list(sessions)})

    def start(self, worker: str, epoch: str, claims: Sequence[ClaimRow]) -> list[StartRow]:
        """Choose with this statement's snapshot and start."""
        arguments = {
            "sessions": [claim.session_id for claim in claims],
            "tokens": [claim.token for claim in claims],
            "suspects": [claim.suspect_place for claim in claims],
            "helds": [claim.held for claim in claims],
            "worker": worker,
            "epoch": epoch,
            "part": self._part,
        }
        rows = self._cursor.execute(START, arguments).fetchall()
        return [StartRow._make((*row[:9], row[9:] if row[9] is not None else None)) for row in rows]

    def settle(self, rows: Sequence[SettleRow]) -> list[FencedRow]:
        """Terminal under the fence; in the order given."""
        arguments = dict(zip(SettleRow._fields, map(list, zip(*rows, strict=True)), strict=True))
        return self._fenced(SETTLE, arguments, len(rows))

    def release(self, fences: Sequence[RunFence]) -> list[FencedRow]:
        """Back to queued under the fence (or cancelled, when that was asked); in the order given."""
        arguments = {
            "session_id": [fence.session_id for fence in fences],
            "run_id": [fence.run_id for fence in fences],
            "attempt": [fence.attempt for fence in fences],
            "token": [fence.token for fence in fences],
            "part": self._part,
        }
        return self._fenced(RELEASE, arguments, len(fences))

    def output(self, rows: Sequence[OutputRow]) -> list[int | None]:
        """Events under the fence; their numbers in the order given, None where refused."""
        arguments = dict(zip(OutputRow._fields, map(list, zip(*rows, strict=True)), strict=True))
        numbers: list[int | None] = [None] * len(rows)
        for n, number in self._cursor.execute(OUTPUT, arguments):
            numbers[n - 1] = number
        return numbers

    def look(self, sessions: Sequence[str]) -> dict[str, Look]:
        """A few index probes per session."""
        rows = self._cursor.execute(LOOK, {"sessions": list(sessions)}).fetchall()
        return {row[0]: look_of(*row[1:]) for row in rows}

    def active_sessions(self, sessions: Sequence[str]) -> set[str]:
        """Those with an active run."""
        return {row[0] for row in self._cursor.execute(ACTIVE_SESSIONS, {"sessions": list(sessions)})}

    def heard(self, runs: Sequence[str], epoch: str) -> None:
        """Waits for nobody."""
        self._cursor.execute(HEARD, {"runs": list(runs), "epoch": epoch})

    def hold(self, session: str, holds: Mapping[str, int | None]) -> None:
        """Under the session's lock."""
        arguments = {"session": session, "holds": json.dumps(holds), "held": 1 if holds else 0}
        self._cursor.execute(HOLD, arguments)

    def read_runs(self, runs: Sequence[str]) -> dict[str, Sequence[Any]]:
        """By their keys."""
        return {row[0]: row for row in self._cursor.execute(READ_RUNS, {"runs": list(runs)})}

    def drop_owners(self, worker: str, sessions: Sequence[tuple[str, str]]) -> set[str]:
        """Owner rows that nothing runs behind."""
        arguments = {"sessions": [s for s, _ in sessions], "tokens": [t for _, t in sessions], "worker": worker}
        return {row[0] for row in self._cursor.execute(DROP_OWNERS, arguments)}

    def _fenced(self, statement: str, arguments: dict[str, Any], count: int) -> list[FencedRow]:
        answers = [FencedRow(None, 0)] * count
        for n, status, number, voided in self._cursor.execute(statement, arguments):
            answers[n - 1] = FencedRow(status, number, voided)
        return answers
