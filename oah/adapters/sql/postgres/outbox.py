"""The outbox of webhooks on PostgreSQL: one statement a batch, which stops at its first probe where there are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import Cursor

# The uncorrelated sub-select is evaluated once, first, and gates the rest. The joins are LATERAL for the reason given
# in execution.py.
TELL = """
INSERT INTO webhook_deliveries (id, webhook_id, workspace_id, session_id, number, type, run_id, next_at, created_at)
SELECT 'whd_' || left(replace(gen_random_uuid()::text, '-', ''), 26), w.id, w.workspace_id, e.session_id, e.number,
  e.type, e.run_id, clock_timestamp(), clock_timestamp()
FROM unnest(%(sessions)s::text[], %(numbers)s::bigint[]) AS c(session_id, number)
CROSS JOIN LATERAL (SELECT workspace_id FROM sessions WHERE id = c.session_id LIMIT 1) s
CROSS JOIN LATERAL (SELECT id, workspace_id, events FROM webhooks WHERE workspace_id = s.workspace_id AND active
  LIMIT 10000) w
CROSS JOIN LATERAL (SELECT session_id, number, type, run_id FROM run_events
  WHERE session_id = c.session_id AND number = c.number LIMIT 1) e
WHERE (SELECT true FROM webhooks WHERE active LIMIT 1)
  AND w.events ?| ARRAY[e.type, split_part(e.type, '.', 1) || '.*']
ON CONFLICT DO NOTHING
"""


class PostgresOutbox:
    """What is said to webhooks, in the transaction of the events."""

    _cursor: Cursor[Any]

    def tell_webhooks(self, events: Sequence[tuple[str, int]]) -> None:
        """A delivery for each webhook that asked for one of these events."""
        if not events:
            return
        arguments = {"sessions": [session for session, _ in events], "numbers": [number for _, number in events]}
        self._cursor.execute(TELL, arguments)
