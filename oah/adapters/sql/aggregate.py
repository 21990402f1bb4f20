"""What the modules of the store share: the database, and the few statements that every change of a session needs.

Ordinary statements are SQLAlchemy Core; ``Transaction`` joins them with the hot statements on one transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from oah.adapters.sql.columns import now
from oah.adapters.sql.database import Database
from oah.adapters.sql.statements import Look, Statements
from oah.adapters.sql.tables import run_events, run_steps, sessions, workspace_counters
from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.run import RunStatus
from oah.core.policy.webhooks import told
from oah.errors import NotFound
from oah.ports.store import AfterRun
from oah.ports.telemetry import Telemetry


def picked(table: Table, names: Sequence[str]) -> list[ColumnElement[Any]]:
    """The columns of a table in the order of a column list of ``rows.py``."""
    return [table.c[name] for name in names]


class Aggregate:
    """Base of the store's modules."""

    def __init__(self, database: Database, telemetry: Telemetry) -> None:
        self._database = database
        self._telemetry = telemetry

    @contextmanager
    def _transaction(self, sessions_to_lock: Iterable[SessionId] = ()) -> Iterator[Transaction]:
        """A write transaction with these session rows locked, in id order."""
        with self._database.write() as connection:
            transaction = Transaction(self._database, connection, sorted(set(sessions_to_lock)))
            yield transaction
            transaction.write_counts()
        for (kind, what), count in transaction.letters.items():
            self._telemetry.count("oah_dead_letters_total", count, kind=kind, what=what)


class Transaction:
    """A write transaction on locked sessions."""

    def __init__(self, database: Database, connection: Connection, ids: Sequence[SessionId]) -> None:
        self.connection = connection
        self.hot: Statements = database.statements(connection)
        self._part = database.part
        self._insert = postgresql.insert if database.dialect == "postgresql" else sqlite.insert
        self.sessions: Mapping[str, Sequence[Any]] = self.hot.lock(ids) if ids else {}
        """The locked rows in the order of SESSION_COLUMNS."""
        self.letters: Counter[tuple[str, str]] = Counter()
        """Dead letters by kind and what became of them; counted once it is committed."""
        self.queued: Counter[WorkspaceId] = Counter()
        """Changes of the counts of workspaces; written last."""

    def savepoint(self) -> Savepoint:
        """What is done from now on can be undone."""
        return Savepoint(self)

    def look(self, session_id: SessionId) -> Look:
        """The session as this transaction has made it. Raises NotFound."""
        found = self.hot.look([session_id]).get(session_id)
        if found is None:
            raise NotFound(f"no session {session_id}")
        return found

    def stamp(self) -> str:
        """The database's clock as text, for what is kept inside JSON."""
        moment = self.connection.execute(select(now())).scalar_one()
        return moment.astimezone(UTC).isoformat(timespec="microseconds")

    def insert_or_ignore(self, table: Table, **row: Any) -> None:
        """Insert, unless such a row is there."""
        self.connection.execute(self._insert(table).values(**row).on_conflict_do_nothing())

    def append_event(
        self,
        session_id: SessionId,
        kind: str,
        *,
        run_id: RunId | None = None,
        attempt: int = 0,
        data: Mapping[str, Any] | None = None,
    ) -> int:
        """Append an event under the next number of the locked session; webhooks that asked for it are told."""
        number = self.connection.execute(
            update(sessions)
            .where(sessions.c.id == session_id)
            .values(event_seq=sessions.c.event_seq + 1)
            .returning(sessions.c.event_seq)
        ).scalar_one()
        values = {"session_id": session_id, "number": number, "run_id": run_id, "attempt": attempt, "type": kind}
        self.connection.execute(insert(run_events).values(**values, data=dict(data or {}), at=now()))
        if told(kind, data or {}):
            self.hot.tell_webhooks([(session_id, int(number))])
        return int(number)

    def take_position(self, session_id: SessionId) -> int:
        """The next position of the locked session."""
        taken = self.connection.execute(
            update(sessions)
            .where(sessions.c.id == session_id)
            .values(next_position=sessions.c.next_position + 1)
            .returning(sessions.c.next_position - 1)
        ).scalar_one()
        return int(taken)

    def append_step(self, run_id: RunId, attempt: int, kind: str, name: str, data: Mapping[str, Any]) -> None:
        """Append a step of a run whose session is locked."""
        number = select(func.coalesce(func.max(run_steps.c.number), 0) + 1).where(run_steps.c.run_id == run_id)
        values = {"run_id": run_id, "attempt": attempt, "kind": kind, "name": name, "data": dict(data), "at": now()}
        self.connection.execute(insert(run_steps).values(number=number.scalar_subquery(), **values))

    def upsert(self, table: Table) -> Any:
        """An insert of the dialect, which knows ON CONFLICT."""
        return self._insert(table)

    def count_queued(self, session_id: SessionId, workspace_id: WorkspaceId, change: int) -> None:
        """Change the counts of queued runs of the locked session and of its workspace."""
        self.connection.execute(
            update(sessions).where(sessions.c.id == session_id).values(queued_count=sessions.c.queued_count + change)
        )
        self.count_in_workspace(workspace_id, change)

    def count_in_workspace(self, workspace_id: WorkspaceId, change: int) -> None:
        """Change the count of queued runs of a workspace, at the end of the transaction."""
        self.queued[workspace_id] += change

    def write_counts(self) -> None:
        """In the order of the workspaces, as every batch does: two that wait for each other's rows would be a
        deadlock."""
        for workspace_id, change in sorted(self.queued.items()):
            counter = self._insert(workspace_counters).values(workspace_id=workspace_id, part=self._part, queued=change)
            self.connection.execute(
                counter.on_conflict_do_update(
                    index_elements=["workspace_id", "part"],
                    set_={"queued": workspace_counters.c.queued + counter.excluded.queued},
                )
            )

    def close_if_empty(self, session_id: SessionId) -> None:
        """``closing`` → ``closed`` once nothing is queued or active."""
        row = self.connection.execute(
            select(sessions.c.state, sessions.c.queued_count).where(sessions.c.id == session_id)
        ).one()
        if row.state == "closing" and row.queued_count == 0 and not self.hot.active_sessions([session_id]):
            self.connection.execute(
                update(sessions).where(sessions.c.id == session_id).values(state="closed", closed_at=now())
            )


class Savepoint:
    """Rows, and what is counted of them at the end, are undone together."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._queued, self._letters = transaction.queued.copy(), transaction.letters.copy()
        self._nested = transaction.connection.begin_nested()

    def commit(self) -> None:
        """Keep it."""
        self._nested.commit()

    def rollback(self) -> None:
        """Undo it."""
        self._nested.rollback()
        self._transaction.queued, self._transaction.letters = self._queued, self._letters


def after(
    look: Look, *, applied: bool, status: RunStatus | None = None, number: int = 0, voided: bool = False
) -> AfterRun:
    """What a session looks like after a write."""
    return AfterRun(
        applied=applied,
        waiting=look.waiting,
        held=look.reasons,
        until_in=look.until_in,
        event_number=number,
        status=status,
        voided=voided,
        priority=look.priority,
    )
