"""Cordons that outlive a worker, as rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Select, and_, delete, or_, select

from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.audits import entry, record
from oah.adapters.sql.columns import MICROSECOND, age_us, later, now
from oah.adapters.sql.commands import command
from oah.adapters.sql.fleet_tables import worker_cordons as table
from oah.adapters.sql.rows import moment, required
from oah.adapters.sql.text import require_sound
from oah.core.model.cordon import Cordon
from oah.core.model.ids import WorkerId
from oah.core.model.worker import WorkerReport
from oah.ports.commands import KEPT, CommandKind

STANDS = or_(table.c.until.is_(None), table.c.until > now())


class Cordons(Aggregate):
    """See ports.cordons.CordonStore."""

    def cordon_workers(self, workers: Sequence[WorkerReport], *, lasting: timedelta | None, by: str) -> None:
        """In the order of the rows' keys; those whose time is over go."""
        require_sound(by=by)
        us = None if lasting is None else lasting // MICROSECOND
        told = {KEPT: True} if lasting is None else {KEPT: True, "for_ms": lasting // timedelta(milliseconds=1)}
        with self._transaction() as transaction:
            transaction.connection.execute(delete(table).where(table.c.until <= now()))
            for each in sorted(workers, key=lambda worker: (worker.host, worker.name)):
                changed = {
                    "pool": each.pool,
                    "worker_id": each.id,
                    "by": by,
                    "at": now(),
                    "until": None if us is None else later(us),
                }
                made = transaction.upsert(table).values(host=each.host, name=each.name, **changed)
                transaction.connection.execute(
                    made.on_conflict_do_update(index_elements=["host", "name"], set_=changed)
                )
                command(transaction.connection, each.id, CommandKind.CORDON, by=by, data=told)

    def uncordon_workers(self, workers: Sequence[WorkerReport], gone: Sequence[Cordon] = (), *, by: str) -> None:
        """With the commands, so that who reads its row again because of one finds none."""
        require_sound(by=by)
        whose = {(each.host, each.name) for each in workers} | {(each.host, each.name) for each in gone}
        with self._database.write() as connection:
            for host, name in sorted(whose):
                connection.execute(delete(table).where(table.c.host == host, table.c.name == name))
            for each in workers:
                command(connection, each.id, CommandKind.UNCORDON, by=by)
            record(connection, [entry(by, f"worker.{CommandKind.UNCORDON}", each.worker_id) for each in gone])

    def cordon_of(self, host: str, name: str) -> Cordon | None:
        """By primary key."""
        with self._database.read() as connection:
            statement = _standing().where(and_(table.c.host == host, table.c.name == name))
            row = connection.execute(statement).first()
        return None if row is None else _made(row)

    def cordons(self, pool: str | None = None) -> list[Cordon]:
        """As many as people have made."""
        statement = _standing().order_by(table.c.name, table.c.host)
        if pool is not None:
            statement = statement.where(table.c.pool == pool)
        with self._database.read() as connection:
            return [_made(row) for row in connection.execute(statement)]


def _standing() -> Select[Any]:
    return select(table, age_us(table.c.until).label("over")).where(STANDS)


def _made(row: Any) -> Cordon:
    return Cordon(
        host=row.host,
        name=row.name,
        pool=row.pool,
        worker_id=WorkerId(row.worker_id),
        by=row.by,
        at=required(row.at),
        until=moment(row.until),
        left=None if row.over is None else timedelta(microseconds=max(-int(row.over), 0)),
    )
