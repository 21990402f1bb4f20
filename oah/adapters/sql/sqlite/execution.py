"""Start, settle, release and output on SQLite: what they mean on PostgreSQL, row by row under the one write lock."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from oah.adapters.sql.rows import RUN_COLUMNS, SESSION_COLUMNS, listed
from oah.adapters.sql.sqlite.connections import now_us
from oah.adapters.sql.sqlite.submit import COUNT_WORKSPACE
from oah.adapters.sql.statements import ClaimRow, FencedRow, Look, OutputRow, SettleRow, StartRow, look_of
from oah.adapters.sql.tables import LIMITS_OF_ONE_ATTEMPT
from oah.ports.store import RunFence

SESSION = f"SELECT {listed(SESSION_COLUMNS)} FROM sessions WHERE id = ?"
OWNER = "SELECT worker_id, claim_token, parked, now_us() - seen_at FROM session_owners WHERE session_id = ?"
ACTIVE = """
SELECT worker_id, claim_token, now_us() - started_at FROM runs
WHERE session_id = ? AND status IN ('running', 'waiting_tool')
"""
FIRST = """
SELECT id, recovery_attempts, queued_reason, priority FROM runs
WHERE session_id = ? AND status = 'queued' AND NOT deferred ORDER BY position LIMIT 1
"""
HIGHEST = """
SELECT class FROM runs WHERE session_id = ? AND status = 'queued' AND deferred = 0 ORDER BY class_rank LIMIT 1
"""
START = f"""
UPDATE runs SET status = 'running', attempt = attempt + 1, worker_id = ?, claim_token = ?, started_at = ?,
  ended_at = NULL, dispatched_epoch = ?
WHERE id = ? AND status = 'queued' RETURNING {listed(RUN_COLUMNS)}
"""
ATTEMPT = """
INSERT INTO run_attempts (run_id, attempt, reason, worker_id, claim_token, started_at) VALUES (?, ?, ?, ?, ?, ?)
"""
OWN = """
INSERT INTO session_owners (session_id, worker_id, claim_token, parked, seen_at) VALUES (?, ?, ?, 0, ?)
ON CONFLICT (session_id) DO UPDATE SET worker_id = excluded.worker_id, claim_token = excluded.claim_token, parked = 0,
  seen_at = excluded.seen_at
"""
NUMBER = """
UPDATE sessions SET event_seq = event_seq + 1, queued_count = queued_count + ? WHERE id = ?
RETURNING event_seq, workspace_id
"""
EVENT = "INSERT INTO run_events (session_id, number, run_id, attempt, type, data, at) VALUES (?, ?, ?, ?, ?, ?, ?)"
FENCED = """
SELECT cancel_requested_at IS NOT NULL, cancel_requested_by, stop_reason, voided FROM runs
WHERE id = ? AND session_id = ? AND attempt = ? AND claim_token = ? AND status IN ('running', 'waiting_tool')
"""
SETTLE = """
UPDATE runs SET status = ?, ended_at = ?, result = ?, result_blob = ?, exit_code = ?, error_code = ?, error_message = ?,
  worker_id = NULL, claim_token = NULL, failed_attempts = failed_attempts + ? WHERE id = ?
"""
END_ATTEMPT = """
UPDATE run_attempts SET ended_at = ?, outcome = ?, agent = coalesce(?, agent), recording_blob = ?,
  agent_reason = coalesce(?, agent_reason), home = coalesce(?, home)
WHERE run_id = ? AND attempt = ?
"""
RELEASE = """
UPDATE runs SET status = 'queued', started_at = NULL, worker_id = NULL, claim_token = NULL, queued_reason = 'released',
  dispatched_epoch = '', cancel_requested_at = NULL, cancel_requested_by = NULL, stop_reason = NULL WHERE id = ?
"""
CANCEL = "UPDATE runs SET status = 'cancelled', ended_at = ?, worker_id = NULL, claim_token = NULL WHERE id = ?"
CLOSE = """
UPDATE sessions SET state = 'closed', closed_at = ? WHERE id = ? AND state = 'closing' AND queued_count = 0
"""
REMEMBER = "UPDATE sessions SET session_ref = coalesce(?, session_ref), home = coalesce(?, home) WHERE id = ?"
DISOWN = "DELETE FROM session_owners WHERE session_id = ? AND claim_token = ?"
PARK = "UPDATE session_owners SET parked = 1 WHERE session_id = ? AND claim_token = ?"
LOOK = "SELECT held, holds, event_seq FROM sessions WHERE id = ?"
HEARD = "UPDATE runs SET dispatched_epoch = ? WHERE id = ? AND status = 'queued' AND dispatched_epoch <> ?"
PAUSES = "SELECT kind, subject FROM pauses"
HOLD = "UPDATE sessions SET holds = ?, held = ? WHERE id = ?"
READ_RUN = f"SELECT {listed(RUN_COLUMNS)} FROM runs WHERE id = ?"
DROP_OWNER = """
DELETE FROM session_owners WHERE session_id = ? AND claim_token = ? AND worker_id = ?
  AND NOT EXISTS (SELECT 1 FROM runs a WHERE a.session_id = session_owners.session_id
    AND a.status IN ('running', 'waiting_tool'))
"""


class _Stop(NamedTuple):
    """What the row of an active run says about its end."""

    asked: bool
    by: str | None
    reason: str | None
    voided: bool

    @property
    def data(self) -> dict[str, str]:
        """For the event of a cancelled run."""
        return {name: value for name, value in (("by", self.by), ("reason", self.reason)) if value is not None}


class SqliteExecution:
    """The statements of a run's execution."""

    _cursor: sqlite3.Cursor

    def lock(self, sessions: Sequence[str]) -> dict[str, Sequence[Any]]:
        """The transaction has the lock already."""
        rows = (self._one(SESSION, session) for session in sessions)
        return {row[0]: row for row in rows if row is not None}

    def pauses(self) -> list[tuple[str, str]]:
        """Few, and mostly none."""
        return self._cursor.execute(PAUSES).fetchall()

    def lock_only(self, sessions: Sequence[str]) -> None:
        """The transaction has the lock already."""

    def start(self, worker: str, epoch: str, claims: Sequence[ClaimRow]) -> list[StartRow]:
        """In the order given."""
        return [self._start(worker, epoch, claim) for claim in claims]

    def _start(self, worker: str, epoch: str, claim: ClaimRow) -> StartRow:
        owner = self._one(OWNER, claim.session_id)
        active = self._one(ACTIVE, claim.session_id)
        first = self._one(FIRST, claim.session_id)
        seen = owner or ((active[0], active[1], False, active[2]) if active else (None, None, False, None))
        refused = StartRow(
            session_id=claim.session_id,
            owner_worker=seen[0],
            owner_token=seen[1],
            owner_parked=bool(seen[2]),
            owner_age_us=seen[3],
            active=active is not None,
            first_run=first and first[0],
            number=0,
            reason=None,
            run=None,
        )
        if claim.held or active is not None or first is None or (owner is not None and owner[1] != claim.token):
            return refused
        run_id, recoveries, reason, _ = first
        if recoveries and not claim.suspect_place:
            return refused
        now = now_us()
        run = self._cursor.execute(START, (worker, claim.token, now, epoch, run_id)).fetchall()[0]
        attempt = run[RUN_COLUMNS.index("attempt")]
        number = self._numbered(claim.session_id, -1)
        data = {"worker_id": worker, "reason": reason}
        self._event(claim.session_id, number, run_id, attempt, "run.started", data, now)
        self._cursor.execute(ATTEMPT, (run_id, attempt, reason, worker, claim.token, now))
        self._cursor.execute(OWN, (claim.session_id, worker, claim.token, now))
        return refused._replace(number=number, reason=reason, run=run)

    def settle(self, rows: Sequence[SettleRow]) -> list[FencedRow]:
        """Terminal under the fence; in the order given."""
        return [self._settle(row) for row in rows]

    def _settle(self, row: SettleRow) -> FencedRow:
        stop = self._fence(row.run_id, row.session_id, row.attempt, row.token)
        if stop is None:
            return FencedRow(None, 0)
        now = now_us()
        failed = row.status in ("failed", "timed_out")
        result, blob = (None, None) if stop.voided else (row.result, row.result_blob)
        self._cursor.execute(
            SETTLE,
            (
                row.status, now, result, blob, row.exit_code, row.error_code, row.error_message, failed,
                row.run_id,
            ),
        )  # fmt: skip
        number = self._numbered(row.session_id, 0)
        data = row.data if row.status != "cancelled" else json.dumps({**json.loads(row.data), **stop.data})
        self._cursor.execute(EVENT, (row.session_id, number, row.run_id, row.attempt, f"run.{row.status}", data, now))
        ended = (now, row.status, row.agent, row.recording_blob, row.agent_reason, row.home_mode)
        self._cursor.execute(END_ATTEMPT, (*ended, row.run_id, row.attempt))
        if row.session_ref is not None or row.home is not None:
            self._cursor.execute(REMEMBER, (row.session_ref, row.home, row.session_id))
        self._cursor.execute(PARK if row.keep_owner else DISOWN, (row.session_id, row.token))
        self._cursor.execute(CLOSE, (now, row.session_id))
        return FencedRow(row.status, number, stop.voided)

    def release(self, fences: Sequence[RunFence]) -> list[FencedRow]:
        """Back to queued under the fence (or cancelled, when that was asked); in the order given."""
        return [self._release(fence) for fence in fences]

    def _release(self, fence: RunFence) -> FencedRow:
        stop = self._fence(fence.run_id, fence.session_id, fence.attempt, fence.token)
        if stop is None:
            return FencedRow(None, 0)
        now, cancelled = now_us(), stop.asked and stop.reason not in LIMITS_OF_ONE_ATTEMPT
        if cancelled:
            self._cursor.execute(CANCEL, (now, fence.run_id))
        else:
            self._cursor.execute(RELEASE, (fence.run_id,))
        outcome = "cancelled" if cancelled else "released"
        number = self._numbered(fence.session_id, 0 if cancelled else 1)
        data = stop.data if cancelled else {}
        self._event(fence.session_id, number, fence.run_id, fence.attempt, f"run.{outcome}", data, now)
        self._cursor.execute(END_ATTEMPT, (now, outcome, None, None, None, None, fence.run_id, fence.attempt))
        self._cursor.execute(DISOWN, (fence.session_id, fence.token))
        self._cursor.execute(CLOSE, (now, fence.session_id))
        return FencedRow("cancelled" if cancelled else "queued", number, stop.voided)

    def output(self, rows: Sequence[OutputRow]) -> list[int | None]:
        """Events under the fence; their numbers in the order given, None where refused."""
        numbers: list[int | None] = []
        for row in rows:
            if self._fence(row.run_id, row.session_id, row.attempt, row.token) is None:
                numbers.append(None)
                continue
            number = self._numbered(row.session_id, 0)
            values = (row.session_id, number, row.run_id, row.attempt, "run.output", row.data, now_us())
            self._cursor.execute(EVENT, values)
            numbers.append(number)
        return numbers

    def look(self, sessions: Sequence[str]) -> dict[str, Look]:
        """A few index probes per session."""
        looks = {}
        for session in sessions:
            row = self._one(LOOK, session)
            if row is not None:
                waiting, priority = self._waiting(session)
                looks[session] = look_of(waiting, row[0], row[1], now_us(), row[2], priority)
        return looks

    def _waiting(self, session: str) -> tuple[str | None, int]:
        """The highest class that waits, and the priority of what is first."""
        first = self._one(FIRST, session)
        if first is None:
            return None, 0
        return "suspect" if first[1] else str(self._one(HIGHEST, session)[0]), first[3]

    def active_sessions(self, sessions: Sequence[str]) -> set[str]:
        """Those with an active run."""
        return {session for session in sessions if self._one(ACTIVE, session) is not None}

    def heard(self, runs: Sequence[str], epoch: str) -> None:
        """Only what is still queued."""
        self._cursor.executemany(HEARD, [(epoch, run, epoch) for run in runs])

    def hold(self, session: str, holds: Mapping[str, int | None]) -> None:
        """Under the write lock."""
        self._cursor.execute(HOLD, (json.dumps(holds), 1 if holds else 0, session))

    def read_runs(self, runs: Sequence[str]) -> dict[str, Sequence[Any]]:
        """By their keys."""
        rows = (self._one(READ_RUN, run) for run in runs)
        return {row[0]: row for row in rows if row is not None}

    def drop_owners(self, worker: str, sessions: Sequence[tuple[str, str]]) -> set[str]:
        """Owner rows that nothing runs behind."""
        return {s for s, token in sessions if self._cursor.execute(DROP_OWNER, (s, token, worker)).rowcount}

    def _one(self, statement: str, session: str) -> Any:
        return self._cursor.execute(statement, (session,)).fetchone()

    def _fence(self, run_id: str, session_id: str, attempt: int, token: str) -> _Stop | None:
        """None: refused. Else whether the run was asked to stop, by whom, and why."""
        row = self._cursor.execute(FENCED, (run_id, session_id, attempt, token)).fetchone()
        return None if row is None else _Stop(bool(row[0]), row[1], row[2], bool(row[3]))

    def _numbered(self, session: str, queued: int) -> int:
        """The next event number of the session, while its count of queued runs changes by ``queued``."""
        number, workspace = self._cursor.execute(NUMBER, (queued, session)).fetchall()[0]
        if queued:
            self._cursor.execute(COUNT_WORKSPACE, (workspace, queued))
        return int(number)

    def _event(
        self, session: str, number: int, run: str, attempt: int, kind: str, data: dict[str, Any], at: int
    ) -> None:
        self._cursor.execute(EVENT, (session, number, run, attempt, kind, json.dumps(data), at))
