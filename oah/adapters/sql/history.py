"""``history.db``: outcomes that a worker could not deliver, and the incarnations that ran beside it.

One SQLite file in the worker's own directory, never a mirror between processes. ``keep`` returns when the rows are on
the disk (``synchronous=FULL``).
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from oah.adapters.sql.faults import translated
from oah.core.model.home import session_home
from oah.core.model.ids import ClaimToken, RunId, SessionId
from oah.core.model.run import Outcome, RunError, RunStatus
from oah.core.model.session import HoldReason
from oah.ports.store import RetryPlan, RunFence, Settlement

_SCHEMA = """
CREATE TABLE IF NOT EXISTS outcomes (
  run_id TEXT NOT NULL, attempt INTEGER NOT NULL, token TEXT NOT NULL, session_id TEXT NOT NULL, body TEXT NOT NULL,
  kept_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (run_id, attempt, token)
);
CREATE TABLE IF NOT EXISTS incarnations (
  worker_id TEXT PRIMARY KEY, started_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
);
"""

KEPT_INCARNATIONS = 100
"""Older ones cannot own anything any more: their rows were recovered by those in between."""


class HistoryFile:
    """The ``OutcomeLog`` port on a file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_SCHEMA)

    def keep(self, settlements: Sequence[Settlement]) -> None:
        """Write outcomes, each once. Raises Unavailable when the disk does not take them."""
        rows = [
            (s.fence.run_id, s.fence.attempt, s.fence.token, s.fence.session_id, json.dumps(_pack(s)))
            for s in settlements
        ]
        with self._lock, translated(), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "INSERT OR IGNORE INTO outcomes (run_id, attempt, token, session_id, body) VALUES (?, ?, ?, ?, ?)", rows
            )

    def kept(self) -> list[Settlement]:
        """Oldest first."""
        with self._lock:
            rows = self._db.execute(
                "SELECT run_id, attempt, token, session_id, body FROM outcomes ORDER BY rowid"
            ).fetchall()
        return [_unpack(*row) for row in rows]

    def delivered(self, fences: Sequence[RunFence]) -> None:
        """Forget these."""
        with self._lock:
            self._db.executemany(
                "DELETE FROM outcomes WHERE run_id = ? AND attempt = ? AND token = ?",
                [(f.run_id, f.attempt, f.token) for f in fences],
            )

    def worker_ids(self) -> tuple[str, ...]:
        """Newest first, bounded."""
        with self._lock:
            rows = self._db.execute(
                "SELECT worker_id FROM incarnations ORDER BY rowid DESC LIMIT ?", (KEPT_INCARNATIONS,)
            ).fetchall()
        return tuple(str(row[0]) for row in rows)

    def incarnation(self, worker_id: str) -> None:
        """Record it."""
        with self._lock:
            self._db.execute("INSERT OR IGNORE INTO incarnations (worker_id) VALUES (?)", (worker_id,))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def _pack(settlement: Settlement) -> dict[str, Any]:
    outcome, retry = settlement.outcome, settlement.retry
    return {
        "status": str(outcome.status),
        "output": outcome.output,
        "result_blob": outcome.result_blob,
        "exit_code": outcome.exit_code,
        "error": [outcome.error.code, outcome.error.message] if outcome.error is not None else None,
        "recording_blob": outcome.recording_blob,
        "agent": outcome.agent,
        "agent_reason": outcome.agent_reason,
        "session_ref": outcome.session_ref,
        "home_mode": outcome.home_mode,
        "home": None if outcome.home is None else outcome.home.document(),
        "output_cut": outcome.output_cut,
        "hold": str(settlement.hold) if settlement.hold is not None else None,
        "retry": [retry.delay.total_seconds(), retry.max_retries] if retry is not None else None,
    }


def _unpack(run_id: str, attempt: int, token: str, session_id: str, body: str) -> Settlement:
    """A kept outcome is delivered by a later incarnation, so the agent is gone: the owner row goes."""
    data = json.loads(body)
    outcome = Outcome(
        status=RunStatus(data["status"]),
        output=data["output"],
        result_blob=data["result_blob"],
        exit_code=data["exit_code"],
        error=RunError(*data["error"]) if data["error"] is not None else None,
        recording_blob=data["recording_blob"],
        agent=data["agent"],
        agent_reason=data.get("agent_reason"),
        session_ref=data.get("session_ref"),
        home_mode=data.get("home_mode"),
        home=session_home(data.get("home")),
        output_cut=bool(data.get("output_cut")),
    )
    fence = RunFence(SessionId(session_id), RunId(run_id), attempt, ClaimToken(token))
    hold, again = data["hold"], data.get("retry")
    return Settlement(
        fence,
        outcome,
        hold=None if hold is None else HoldReason(hold),
        retry=None if again is None else RetryPlan(timedelta(seconds=again[0]), again[1]),
    )
