"""Sessions as people see them: created, changed, held, closed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, insert, select, update

from oah.adapters.sql.aggregate import Aggregate, Transaction, picked
from oah.adapters.sql.columns import MICROSECOND, now
from oah.adapters.sql.pages import paged
from oah.adapters.sql.rows import SESSION_COLUMNS, session_of
from oah.adapters.sql.tables import sessions, workspaces
from oah.adapters.sql.text import dumped, require_sound
from oah.core.model.ids import SessionId, WorkspaceId
from oah.core.model.session import HoldReason, Session, SessionState
from oah.errors import Conflict, InvalidRequest, NotFound
from oah.ports.store import Page

WORKSPACE = SESSION_COLUMNS.index("workspace_id")
CHANGES = frozenset({"title", "labels", "metadata", "cwd", "env", "session_ref", "wake"})


def insert_session(connection: Connection, session: Session) -> None:
    """Open, in a transaction of others. Raises NotFound (workspace) and Conflict (the id is taken)."""
    require_sound(id=session.id, title=session.title, cwd=session.cwd, session_ref=session.session_ref)
    for name, value in (("env", session.env), ("labels", session.labels), ("metadata", session.metadata)):
        dumped(name, value)
    found = select(workspaces.c.id).where(workspaces.c.id == session.workspace_id)
    if connection.execute(found).first() is None:
        raise NotFound(f"no workspace {session.workspace_id}")
    if connection.execute(select(sessions.c.id).where(sessions.c.id == session.id)).first() is not None:
        raise Conflict(f"session {session.id} exists")
    values = {
        "id": session.id,
        "workspace_id": session.workspace_id,
        "pool": session.lane.pool,
        "agent": session.lane.profile,
        "session_ref": session.session_ref,
        "cwd": session.cwd,
        "worktree": None if session.worktree is None else session.worktree.document(),
        "env": dict(session.env),
        "title": session.title,
        "labels": dict(session.labels),
        "metadata": dict(session.metadata),
        "wake": session.wake.value,
        "parent_run_id": session.parent_run_id,
    }
    connection.execute(insert(sessions).values(**values, state="open", holds={}, created_at=now()))


class Sessions(Aggregate):
    """The aggregate of a session's own columns."""

    def create_session(self, session: Session) -> Session:
        """Raises NotFound (workspace) and Conflict (the id is taken)."""
        with self._database.write() as connection:
            insert_session(connection, session)
            return _session(connection, session.id, session.workspace_id)

    def session(self, session_id: SessionId, workspace_id: WorkspaceId | None) -> Session:
        """Raises NotFound, also for another workspace's session."""
        with self._database.read() as connection:
            return _session(connection, session_id, workspace_id)

    def sessions(
        self,
        workspace_id: WorkspaceId | None,
        *,
        state: SessionState | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Session]:
        """Newest first."""
        statement = select(*picked(sessions, SESSION_COLUMNS))
        if workspace_id is not None:
            statement = statement.where(sessions.c.workspace_id == workspace_id)
        if state is not None:
            statement = statement.where(sessions.c.state == state)
        with self._database.read() as connection:
            return paged(
                connection,
                statement,
                sessions,
                session_of,
                lambda item: (item.created_at, item.id),
                cursor=cursor,
                limit=limit,
            )

    def update_session(
        self, session_id: SessionId, workspace_id: WorkspaceId | None, changes: Mapping[str, Any]
    ) -> Session:
        """Change ``title``, ``labels``, ``metadata``, ``cwd``, ``env`` or ``session_ref``."""
        if unknown := set(changes) - CHANGES:
            raise InvalidRequest(f"a session has no {', '.join(sorted(unknown))} to change")
        values = dict(changes)
        for name, value in changes.items():
            if isinstance(value, Mapping):
                dumped(name, value)
                values[name] = dict(value)
            else:
                require_sound(**{name: value})
        with self._locked_session(session_id, workspace_id) as transaction:
            if values:
                transaction.connection.execute(update(sessions).where(sessions.c.id == session_id).values(**values))
            return _session(transaction.connection, session_id, workspace_id)

    def close_session(
        self, session_id: SessionId, workspace_id: WorkspaceId | None, *, cancelling: bool = False
    ) -> Session:
        """``closing`` while it has runs, else ``closed``; once more changes nothing. Conflict ``session_busy``."""
        with self._locked_session(session_id, workspace_id) as transaction:
            if not cancelling and transaction.hot.active_sessions([session_id]):
                raise Conflict(f"session {session_id} has an active run", code="session_busy", hint="cancel it first")
            transaction.connection.execute(
                update(sessions)
                .where(sessions.c.id == session_id, sessions.c.state == SessionState.OPEN)
                .values(state=SessionState.CLOSING)
            )
            transaction.close_if_empty(session_id)
            return _session(transaction.connection, session_id, workspace_id)

    def hold_session(
        self, session_id: SessionId, workspace_id: WorkspaceId | None, reason: HoldReason, *, until_in: timedelta | None
    ) -> Session:
        """Hold it for one more reason, or give that reason a new end. None: without an end of its own."""
        with self._locked_session(session_id, workspace_id) as transaction:
            look = transaction.look(session_id)
            end = None if until_in is None else look.now_us + until_in // MICROSECOND
            transaction.hot.hold(session_id, {**look.holds, reason.value: end})
            return _session(transaction.connection, session_id, workspace_id)

    def unhold_session(self, session_id: SessionId, workspace_id: WorkspaceId | None, reason: HoldReason) -> Session:
        """End one reason; nothing where it does not stand."""
        with self._locked_session(session_id, workspace_id) as transaction:
            holds = dict(transaction.look(session_id).holds)
            if holds.pop(reason.value, "absent") != "absent":
                transaction.hot.hold(session_id, holds)
            return _session(transaction.connection, session_id, workspace_id)

    @contextmanager
    def _locked_session(self, session_id: SessionId, workspace_id: WorkspaceId | None) -> Iterator[Transaction]:
        with self._transaction([session_id]) as transaction:
            row = transaction.sessions.get(session_id)
            if row is None or (workspace_id is not None and row[WORKSPACE] != workspace_id):
                raise NotFound(f"no session {session_id}")
            yield transaction


def _session(connection: Connection, session_id: SessionId, workspace_id: WorkspaceId | None) -> Session:
    row = connection.execute(select(*picked(sessions, SESSION_COLUMNS)).where(sessions.c.id == session_id)).first()
    if row is None or (workspace_id is not None and row[WORKSPACE] != workspace_id):
        raise NotFound(f"no session {session_id}")
    return session_of(row)
