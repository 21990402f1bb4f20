"""The outbox of webhooks on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from oah.adapters.sql.sqlite.connections import now_us

ANY = "SELECT 1 FROM webhooks WHERE active LIMIT 1"
TELL = """
INSERT INTO webhook_deliveries (id, webhook_id, workspace_id, session_id, number, type, run_id, next_at, created_at)
SELECT 'whd_' || lower(hex(randomblob(13))), w.id, w.workspace_id, e.session_id, e.number, e.type, e.run_id, ?1, ?1
FROM run_events e JOIN sessions s ON s.id = e.session_id JOIN webhooks w ON w.workspace_id = s.workspace_id
WHERE e.session_id = ?2 AND e.number = ?3 AND w.active AND EXISTS (SELECT 1 FROM json_each(w.events) j
  WHERE j.value IN (e.type, substr(e.type, 1, instr(e.type, '.')) || '*'))
ON CONFLICT DO NOTHING
"""


class SqliteOutbox:
    """What is said to webhooks, in the transaction of the events."""

    _cursor: sqlite3.Cursor

    def tell_webhooks(self, events: Sequence[tuple[str, int]]) -> None:
        """A delivery for each webhook that asked for one of these events."""
        if events and self._cursor.execute(ANY).fetchone() is not None:
            now = now_us()
            self._cursor.executemany(TELL, [(now, session, number) for session, number in events])
