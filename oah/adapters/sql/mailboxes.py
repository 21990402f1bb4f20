"""Mailboxes: made once under a name, replaced when they have expired, deleted at once and emptied later."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from sqlalchemy import Connection, exists, func, select, update

from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.columns import MICROSECOND, later, now
from oah.adapters.sql.mail_heads import heads_since
from oah.adapters.sql.mail_room import admit, count, uncount
from oah.adapters.sql.mail_rows import ALIVE, MAILBOX, TOMB, expired, lives, mailbox_of, missing, moment
from oah.adapters.sql.mail_tables import mailboxes
from oah.adapters.sql.pages import LONGEST
from oah.adapters.sql.tables import workspaces
from oah.adapters.sql.text import require_sound
from oah.core.model.ids import MailboxId, WorkspaceId
from oah.core.model.mailbox import Mailbox
from oah.errors import Broken, Conflict, InvalidRequest, NotFound
from oah.ports.mailboxes import Created, Head, MailFigures, NewMailbox
from oah.ports.rows import Page

TRIES = 5
"""Of a create against others that delete the same name."""


class Mailboxes(Aggregate):
    """The aggregate of mailboxes."""

    def create_mailbox(self, new: NewMailbox, *, most: int | None = None) -> Created:
        """Whoever inserts the row made it; the others read it."""
        require_sound(address=new.address, description=new.description)
        with self._transaction() as transaction:
            connection = transaction.connection
            self._database.by_index(connection)
            change = 1
            for _ in range(TRIES):
                found = connection.execute(
                    select(*MAILBOX).where(*_named(new.workspace_id, new.address)).with_for_update(key_share=True)
                ).first()
                if found is not None:
                    there = mailbox_of(found)
                    if lives(there, moment(connection)):
                        return Created(there, new=False)
                    change -= _entomb(connection, there)
                _require_workspace(connection, new.workspace_id)
                transaction.insert_or_ignore(mailboxes, **_row(new))
                made = connection.execute(select(*MAILBOX).where(mailboxes.c.id == new.id)).first()
                if made is not None:
                    admit(transaction, new.workspace_id, change, most)
                    return Created(mailbox_of(made), new=True)
        raise Broken(f"mailbox {new.address} is made and deleted all the time")

    def mailbox(self, workspace_id: WorkspaceId, address: str) -> Mailbox:
        """By its name."""
        if "\0" in address:
            raise missing(address)
        with self._database.read() as connection:
            row = connection.execute(
                select(*MAILBOX, ALIVE.label("alive")).where(*_named(workspace_id, address))
            ).first()
        if row is None:
            raise missing(address)
        if not row.alive:
            raise expired(address)
        return mailbox_of(row)

    def mailboxes(
        self, workspace_id: WorkspaceId | None, *, cursor: str | None = None, limit: int = 100, public: bool = True
    ) -> Page[Mailbox]:
        """In the order of the unique index; the cursor is the last address (of all workspaces: with the workspace)."""
        if limit < 1:
            raise InvalidRequest("limit must be at least 1")
        limit = min(limit, LONGEST)
        statement = select(*MAILBOX).where(ALIVE).order_by(mailboxes.c.workspace_id, mailboxes.c.address)
        if workspace_id is not None:
            statement = statement.where(mailboxes.c.workspace_id == workspace_id)
        if public:
            statement = statement.where(mailboxes.c.public)
        if cursor is not None:
            workspace, separator, address = cursor.partition("/")
            if not separator or "\0" in cursor:
                raise InvalidRequest("this is no cursor of ours", hint="pass next_cursor of the page before")
            statement = statement.where(
                (mailboxes.c.workspace_id > workspace)
                | ((mailboxes.c.workspace_id == workspace) & (mailboxes.c.address > address))
            )
        with self._database.read() as connection:
            items = [mailbox_of(row) for row in connection.execute(statement.limit(limit + 1))]
        more = len(items) > limit
        items = items[:limit]
        return Page(tuple(items), f"{items[-1].workspace_id}/{items[-1].address}" if more else None)

    def delete_mailbox(self, workspace_id: WorkspaceId, address: str) -> bool:
        """Its name is free at once; the sweep deletes its rows."""
        if "\0" in address:
            return False
        with self._transaction() as transaction:
            connection = transaction.connection
            self._database.by_index(connection)
            row = connection.execute(
                select(*MAILBOX).where(*_named(workspace_id, address)).with_for_update(key_share=True)
            ).first()
            if row is None or not lives(mailbox_of(row), moment(connection)):
                return False
            if row.session_id is not None:
                raise Conflict(f"{address} is the mailbox of a session: it goes with it", code="session_mailbox")
            count(transaction, workspace_id, -_entomb(connection, mailbox_of(row)))
        return True

    def heads(self, known: Mapping[MailboxId, Head | None]) -> Mapping[MailboxId, Head]:
        """In one statement."""
        with self._database.read() as connection:
            self._database.by_index(connection)
            return heads_since(connection, known)

    def mail_figures(self) -> MailFigures:
        """Of the rows of mailboxes alone."""
        counted = select(func.count(), func.coalesce(func.sum(mailboxes.c.messages), 0)).where(ALIVE)
        with self._database.read() as connection:
            row = connection.execute(counted).one()
        return MailFigures(int(row[0]), int(row[1]))


def _named(workspace_id: WorkspaceId, address: str):  # type: ignore[no-untyped-def]
    return mailboxes.c.workspace_id == workspace_id, mailboxes.c.address == address


def _row(new: NewMailbox) -> dict[str, object]:
    ttl = new.ttl
    return {
        "id": new.id,
        "workspace_id": new.workspace_id,
        "address": new.address,
        "public": new.public,
        "description": new.description,
        "session_id": new.session_id,
        "ttl_ms": None if ttl is None else ttl // timedelta(milliseconds=1),
        "max_messages": new.max_messages,
        "created_at": now(),
        "expires_at": None if ttl is None else later(ttl // MICROSECOND),
        "counted": new.session_id is None,
    }


def _require_workspace(connection: Connection, workspace_id: WorkspaceId) -> None:
    if not connection.execute(select(exists().where(workspaces.c.id == workspace_id))).scalar():
        raise NotFound(f"no workspace {workspace_id}")


def _entomb(connection: Connection, mailbox: Mailbox) -> int:
    """A locked one is dead from now on, under a name that nobody can ask for; how many less are counted."""
    connection.execute(
        update(mailboxes)
        .where(mailboxes.c.id == mailbox.id)
        .values(address=f"{mailbox.address}{TOMB}{mailbox.id}", expires_at=moment(connection))
    )
    return uncount(connection, mailbox.id)
