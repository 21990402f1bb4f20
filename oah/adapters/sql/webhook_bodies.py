"""What a webhook is told: of the event as it was written, and of its run as the attempt's record has it.

Made once, when a delivery is tried first, and kept: a run that goes on meanwhile does not change what was said.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from oah.adapters.sql.governance_tables import webhook_deliveries
from oah.adapters.sql.rows import moment, parsed
from oah.adapters.sql.tables import run_attempts, run_events, runs, sessions
from oah.core.policy.webhooks import ENDS

LONGEST_DATA = 64 * 1024
"""Of an event's data in a body; beyond it the receiver asks the API."""

_COLUMNS = (
    webhook_deliveries.c.id,
    webhook_deliveries.c.type,
    webhook_deliveries.c.workspace_id,
    webhook_deliveries.c.session_id,
    webhook_deliveries.c.number,
    webhook_deliveries.c.run_id,
    webhook_deliveries.c.created_at,
    run_events.c.attempt.label("event_attempt"),
    run_events.c.data,
    run_events.c.at,
    runs.c.status,
    runs.c["class"].label("run_class"),
    runs.c.parent_run_id,
    runs.c.metadata.label("run_metadata"),
    runs.c.created_at.label("run_created_at"),
    run_attempts.c.started_at,
    run_attempts.c.ended_at,
    run_attempts.c.worker_id,
    sessions.c.agent,
    sessions.c.pool,
    sessions.c.labels,
)


def body_of(connection: Connection, delivery_id: str) -> str:
    """The JSON text of a delivery. What retention took is left out."""
    row = connection.execute(
        select(*_COLUMNS)
        .select_from(webhook_deliveries)
        .outerjoin(
            run_events,
            (run_events.c.session_id == webhook_deliveries.c.session_id)
            & (run_events.c.number == webhook_deliveries.c.number),
        )
        .outerjoin(runs, runs.c.id == webhook_deliveries.c.run_id)
        .outerjoin(
            run_attempts,
            (run_attempts.c.run_id == webhook_deliveries.c.run_id) & (run_attempts.c.attempt == run_events.c.attempt),
        )
        .outerjoin(sessions, sessions.c.id == webhook_deliveries.c.session_id)
        .where(webhook_deliveries.c.id == delivery_id)
    ).one()
    data = parsed(row.data) or {}
    document: dict[str, Any] = {
        "id": row.id,
        "type": row.type,
        "created_at": _text(row.at or row.created_at),
        "workspace_id": row.workspace_id,
        "session_id": row.session_id or None,
        "number": row.number if row.session_id else None,
        "session": None if row.agent is None else {"agent": row.agent, "pool": row.pool, "labels": parsed(row.labels)},
        "run": None if row.run_id is None else _run(row, data),
        "data": data if len(json.dumps(data)) <= LONGEST_DATA else {"truncated": True},
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _run(row: Any, data: dict[str, Any]) -> dict[str, Any]:
    ends = row.type in ENDS
    return {
        "id": row.run_id,
        "status": row.type.partition(".")[2] if ends else row.status,
        "class": row.run_class,
        "attempt": row.event_attempt,
        "parent_run_id": row.parent_run_id,
        "metadata": parsed(row.run_metadata),
        "worker_id": row.worker_id,
        "created_at": _text(row.run_created_at),
        "started_at": _text(row.started_at),
        "ended_at": _text(row.at) if ends else _text(row.ended_at),
        "exit_code": data.get("exit_code"),
        "error": data.get("error"),
    }


def _text(value: Any) -> str | None:
    found: datetime | None = moment(value)
    return None if found is None else found.isoformat(timespec="microseconds").replace("+00:00", "Z")
