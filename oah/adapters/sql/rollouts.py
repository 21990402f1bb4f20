"""Rolling restarts: one row each, moved by compare-and-set, the commands in the same transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, select, update

from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.audits import entry, record
from oah.adapters.sql.columns import now
from oah.adapters.sql.commands import command
from oah.adapters.sql.fleet_tables import rollouts as table
from oah.adapters.sql.pages import paged
from oah.adapters.sql.text import cleaned_or_none, require_sound
from oah.core.model.drain import drain_from
from oah.core.model.ids import WorkerId
from oah.core.model.rollout import Member, Rollout, RolloutRules, RolloutState, Stage
from oah.errors import Conflict, NotFound
from oah.ports.rollouts import Order
from oah.ports.store import Page

_MOMENTS = ("since", "told_at", "gone_at")
_MOST_ERROR = 2_000


class Rollouts(Aggregate):
    """See ports.rollouts.RolloutStore."""

    def create_rollout(
        self, rollout_id: str, pool: str, members: Sequence[Member], rules: RolloutRules, *, by: str, reason: str | None
    ) -> Rollout:
        """The unique index keeps a second one of the pool out."""
        require_sound(pool=pool, by=by)
        row = {
            "id": rollout_id,
            "pool": pool,
            "batch": rules.batch,
            "arguments": _arguments(rules),
            "members": _members(members),
            "reason": cleaned_or_none(reason),
            "created_by": by,
        }
        with self._transaction() as transaction:
            connection = transaction.connection
            values = {**row, "created_at": now(), "updated_at": now()}
            made = transaction.upsert(table).values(**values).on_conflict_do_nothing().returning(table.c.id)
            if connection.execute(made).first() is None:
                raise Conflict(
                    f"a rollout of pool '{pool[:80]}' goes on",
                    code="rollout_open",
                    hint="`oah rollout list` shows it, `oah rollout abort` ends it",
                )
            data = {"rollout_id": rollout_id, "workers": len(members), "reason": row["reason"]}
            record(connection, [entry(by, "rollout.started", pool, data)])
            return _found(connection, rollout_id)

    def rollout(self, rollout_id: str) -> Rollout:
        """Raises NotFound."""
        with self._database.read() as connection:
            return _found(connection, rollout_id)

    def rollouts(self, *, pool: str | None = None, cursor: str | None = None, limit: int = 100) -> Page[Rollout]:
        """Newest first."""
        statement = select(table)
        if pool is not None:
            statement = statement.where(table.c.pool == pool)
        with self._database.read() as connection:
            return paged(
                connection, statement, table, _made, lambda one: (one.created_at, one.id), cursor=cursor, limit=limit
            )

    def open_rollouts(self) -> list[Rollout]:
        """By the partial index."""
        statement = select(table).where(table.c.ended_at.is_(None)).order_by(table.c.created_at, table.c.id)
        with self._database.read() as connection:
            return [_made(row) for row in connection.execute(statement)]

    def save_rollout(self, rollout: Rollout, orders: Sequence[Order], *, by: str) -> bool:
        """Only the revision that was read, and only one that goes on."""
        changed = {
            "state": rollout.state.value,
            "members": _members(rollout.members),
            "error": None if rollout.error is None else rollout.error[:_MOST_ERROR],
            "revision": rollout.revision + 1,
            "updated_at": now(),
        }
        if not rollout.state.open:
            changed["ended_at"] = now()
        with self._database.write() as connection:
            moved = connection.execute(
                update(table)
                .where(table.c.id == rollout.id, table.c.revision == rollout.revision, table.c.ended_at.is_(None))
                .values(**changed)
            )
            if not moved.rowcount:
                return False
            for order in orders:
                data = None if order.drain is None else order.drain.data()
                command(connection, order.worker_id, order.kind, by=by, data=data)
            if not rollout.state.open:
                data = {"rollout_id": rollout.id, "error": changed["error"]}
                record(connection, [entry(by, f"rollout.{rollout.state.value}", rollout.pool, data)])
        return True


def _found(connection: Connection, rollout_id: str) -> Rollout:
    row = connection.execute(select(table).where(table.c.id == rollout_id)).first()
    if row is None:
        raise NotFound(f"no rollout {rollout_id[:80]}")
    return _made(row)


def _arguments(rules: RolloutRules) -> dict[str, Any]:
    return {
        "drain": rules.drain.data(),
        "settle_ms": round(rules.settle.total_seconds() * 1000),
        "health_ms": round(rules.health.total_seconds() * 1000),
        "version": rules.version,
    }


def _members(members: Sequence[Member]) -> dict[str, Any]:
    """By worker id, with a number: JSONB keeps no order."""
    return {member.worker_id: {"number": number, **_told(member)} for number, member in enumerate(members)}


def _told(member: Member) -> dict[str, Any]:
    said = {each.name: getattr(member, each.name) for each in fields(member) if each.name != "worker_id"}
    for name in _MOMENTS:
        moment: datetime | None = said[name]
        said[name] = None if moment is None else moment.astimezone(UTC).isoformat(timespec="microseconds")
    return {**said, "profiles": list(member.profiles), "stage": member.stage.value}


def _member(worker_id: str, said: Mapping[str, Any]) -> Member:
    moments = {name: None if said.get(name) is None else datetime.fromisoformat(said[name]) for name in _MOMENTS}
    rest = {each.name: said[each.name] for each in fields(Member) if each.name in said and each.name not in _MOMENTS}
    return Member(
        **{
            **rest,
            **moments,
            "worker_id": WorkerId(worker_id),
            "profiles": tuple(said["profiles"]),
            "stage": Stage(said["stage"]),
        }
    )


def _made(row: Any) -> Rollout:
    said, members = row.arguments, row.members
    rules = RolloutRules(
        batch=row.batch,
        drain=drain_from(said.get("drain", {})),
        settle=timedelta(milliseconds=said["settle_ms"]),
        health=timedelta(milliseconds=said["health_ms"]),
        version=said.get("version"),
    )
    ordered = sorted(members.items(), key=lambda each: int(each[1]["number"]))
    return Rollout(
        id=row.id,
        pool=row.pool,
        rules=rules,
        members=tuple(_member(worker_id, told) for worker_id, told in ordered),
        created_by=row.created_by,
        created_at=row.created_at,
        updated_at=row.updated_at,
        state=RolloutState(row.state),
        reason=row.reason,
        error=row.error,
        ended_at=row.ended_at,
        revision=row.revision,
    )
