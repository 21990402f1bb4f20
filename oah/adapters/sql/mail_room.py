"""How many mailboxes a workspace may have: one row counts them, changed in the transaction that makes or ends them.

The count holds what was made and not taken out again: mailboxes that live, and those that have expired since nobody
looked. A mailbox says itself whether it is counted. Those of sessions never are: they come and go with them.

The row is the last that a transaction locks, behind the mailboxes, and nothing is waited for once it is held. So
creates of one workspace follow each other there, and whoever has the row sees what all before it have committed.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, select, text, update

from oah.adapters.sql.aggregate import Transaction
from oah.adapters.sql.mail_rows import among, moment
from oah.adapters.sql.mail_tables import COUNTED, mailbox_counters, mailboxes
from oah.errors import LimitReached

IS_COUNTED = text(COUNTED)


def uncount(connection: Connection, mailbox_id: str) -> int:
    """A locked mailbox counts no more: how many less that makes."""
    there = update(mailboxes).where(mailboxes.c.id == mailbox_id, IS_COUNTED)
    return connection.execute(there.values(counted=False)).rowcount


def erase(connection: Connection, mailbox_id: str) -> int:
    """Delete the row of a locked mailbox: how many less that makes."""
    gone = delete(mailboxes).where(mailboxes.c.id == mailbox_id).returning(mailboxes.c.counted)
    return int(bool(connection.execute(gone).scalar()))


def count(transaction: Transaction, workspace_id: str, change: int) -> int:
    """Change the count, as the last thing that is done; what it has become."""
    row = transaction.upsert(mailbox_counters).values(workspace_id=workspace_id, mailboxes=change)
    added = row.on_conflict_do_update(
        index_elements=["workspace_id"], set_={"mailboxes": mailbox_counters.c.mailboxes + row.excluded.mailboxes}
    )
    return int(transaction.connection.execute(added.returning(mailbox_counters.c.mailboxes)).scalar_one())


def admit(transaction: Transaction, workspace_id: str, change: int, most: int | None) -> None:
    """Count one that was made (``change``: with what it replaces taken out). Raises LimitReached ``mailboxes_full``.

    What has expired takes no room, whether or not the sweep has been there: as many are looked for as there are too
    many, hardly ever more than one, and taken out where nobody is about to do that.
    """
    counted = count(transaction, workspace_id, change)
    if most is None or counted <= most:
        return
    connection = transaction.connection
    over = counted - most
    dead = select(mailboxes.c.id).where(
        mailboxes.c.workspace_id == workspace_id, IS_COUNTED, mailboxes.c.expires_at <= moment(connection)
    )
    ids = connection.execute(dead.order_by(mailboxes.c.expires_at).limit(over)).scalars().all()
    if len(ids) < over:
        raise LimitReached(
            f"workspace {workspace_id} has {most} mailboxes", code="mailboxes_full", hint="delete some, or wait"
        )
    free = select(mailboxes.c.id).where(among(connection, mailboxes.c.id, ids), IS_COUNTED)
    names = connection.execute(free.with_for_update(skip_locked=True, key_share=True)).scalars().all()
    if names:
        left = update(mailboxes).where(among(connection, mailboxes.c.id, names))
        connection.execute(left.values(counted=False))
        count(transaction, workspace_id, -len(names))
