"""Who typed into a session's terminal, as events of the session and as rows of the audit."""

from __future__ import annotations

from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.audits import entry, record
from oah.core.model.event import EventType
from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.ports.viewing import WriterNote


class TerminalWriters(Aggregate):
    """See ports.viewing.WriterStore."""

    def note_writer(
        self,
        session_id: SessionId,
        note: WriterNote,
        *,
        by: str,
        workspace_id: WorkspaceId,
        run_id: RunId | None,
        attempt: int,
        before: str | None = None,
    ) -> int:
        """Under the session's lock."""
        data = {"by": by} if before is None else {"by": by, "before": before}
        with self._transaction([session_id]) as transaction:
            if session_id not in transaction.sessions:
                return 0  # retention took it
            about = {**data, "workspace_id": workspace_id, "run_id": run_id, "attempt": attempt}
            record(transaction.connection, [entry(by, note.value, session_id, about)])
            kind = EventType(note.value)
            return transaction.append_event(session_id, kind, run_id=run_id, attempt=attempt, data=data)
