"""What has become of many mailboxes since somebody looked: one statement, a probe of the primary key for each of them,
and a row for those alone that are not as they were."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import BigInteger, Connection, FromClause, Text, func, literal, or_, select, true
from sqlalchemy.dialects.postgresql import ARRAY

from oah.adapters.sql.columns import age_us, now
from oah.adapters.sql.mail_tables import mailboxes
from oah.core.model.ids import MailboxId
from oah.ports.mailboxes import Head

COLUMNS = ("id", "last_seq", "turn")
NEVER = Head(-1, gone=False, turn=-1)
"""As no mailbox is."""


def heads_since(connection: Connection, known: Mapping[MailboxId, Head | None]) -> dict[MailboxId, Head]:
    """See MailboxStore.heads."""
    if not known:
        return {}
    postgres = connection.dialect.name == "postgresql"
    then = (_arrays if postgres else _json)([(name, head or NEVER) for name, head in known.items()])
    m: Any = mailboxes
    if postgres:  # each is probed, whatever a planner thinks of joining them
        wanted = select(m.c.id, m.c.last_seq, m.c.turn, m.c.expires_at).where(m.c.id == then.c.id)
        m = wanted.limit(1).lateral("box")
    joined = then.outerjoin(m, true() if postgres else m.c.id == then.c.id)
    changed = or_(m.c.id.is_(None), m.c.last_seq != then.c.last_seq, m.c.turn != then.c.turn, m.c.expires_at <= now())
    found = select(then.c.id.label("name"), m.c.id, m.c.last_seq, m.c.turn, age_us(m.c.expires_at).label("over"))
    rows = connection.execute(found.select_from(joined).where(changed))
    return {MailboxId(row.name): _head(row) for row in rows}


def _arrays(known: Sequence[tuple[str, Head]]) -> FromClause:
    values = (
        literal([name for name, _ in known], ARRAY(Text)),
        literal([head.last_seq for _, head in known], ARRAY(BigInteger)),
        literal([head.turn for _, head in known], ARRAY(BigInteger)),
    )
    return func.unnest(*values).table_valued(*COLUMNS).render_derived()


def _json(known: Sequence[tuple[str, Head]]) -> FromClause:
    rows = json.dumps([(name, head.last_seq, head.turn) for name, head in known])
    each = func.json_each(rows).table_valued("value")
    fields = (func.json_extract(each.c.value, f"$[{at}]").label(name) for at, name in enumerate(COLUMNS))
    return select(*fields).subquery("known")


def _head(row: Any) -> Head:
    if row.id is None:
        return Head(0, gone=True)
    if row.over is None:
        return Head(row.last_seq, gone=False, turn=row.turn)
    left = timedelta(microseconds=max(0, -row.over))
    return Head(row.last_seq, gone=row.over >= 0, expires_in=left, turn=row.turn)
