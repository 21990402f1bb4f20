"""Decisions of scaling, as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.columns import now
from oah.adapters.sql.commands import command
from oah.adapters.sql.fleet_tables import OPEN_DECISION
from oah.adapters.sql.fleet_tables import scale_decisions as table
from oah.adapters.sql.pages import paged
from oah.core.model.ids import WorkerId
from oah.core.model.scaling import Going
from oah.errors import Conflict
from oah.ports.rollouts import Order
from oah.ports.scaling import DecisionFilter, NewDecision, Outcome, ScaleDecision
from oah.ports.store import Page


class ScaleDecisions(Aggregate):
    """See ports.scaling.ScalingStore."""

    def scale_decisions(self, where: DecisionFilter) -> Page[ScaleDecision]:
        """By the index of times, of the pool or of all."""
        statement = select(table)
        if where.pool is not None:
            statement = statement.where(table.c.pool == where.pool)
        with self._database.read() as connection:
            return paged(
                connection,
                statement,
                table,
                _decision,
                lambda each: (each.at, each.id),
                cursor=where.cursor,
                limit=where.limit,
                by="at",
            )

    def open_decision(self, pool: str) -> ScaleDecision | None:
        """By the index of open ones."""
        with self._database.read() as connection:
            row = connection.execute(select(table).where(table.c.pool == pool, text(OPEN_DECISION))).first()
        return None if row is None else _decision(row)

    def add_decision(
        self, decision: NewDecision, *, over: ScaleDecision | None = None, orders: Sequence[Order] = ()
    ) -> ScaleDecision:
        """The index of open ones lets one of two leaders win."""
        values = {
            "id": decision.id,
            "pool": decision.pool,
            "target": decision.target,
            "holder": decision.holder,
            "current": decision.current,
            "desired": decision.desired,
            "reason": decision.reason,
            "inputs": dict(decision.inputs),
            "outcome": decision.outcome.value,
            "detail": dict(decision.detail),
            "going": _written(decision.going),
        }
        with self._database.write() as connection:
            if over is not None:
                overtaken = _as_read(over).values(outcome=Outcome.OVERTAKEN.value, version=over.version + 1)
                if not connection.execute(overtaken).rowcount:
                    raise _taken(decision.pool)
            try:
                row = connection.execute(insert(table).values(**values, at=now()).returning(table)).one()
            except IntegrityError as error:
                raise _taken(decision.pool) from error
            _give(connection, orders, by=decision.holder)
        return _decision(row)

    def change_decision(
        self,
        decision: ScaleDecision,
        *,
        outcome: Outcome,
        detail: Mapping[str, Any],
        going: Mapping[str, Going],
        by: str,
        orders: Sequence[Order] = (),
    ) -> ScaleDecision:
        """By compare-and-set of the version."""
        values = {"outcome": outcome.value, "detail": dict(detail), "going": _written(going)}
        statement = _as_read(decision).values(**values, version=decision.version + 1).returning(table)
        with self._database.write() as connection:
            row = connection.execute(statement).first()
            if row is None:
                raise _taken(decision.pool)
            _give(connection, orders, by=by)
        return _decision(row)


def _give(connection: Connection, orders: Sequence[Order], *, by: str) -> None:
    for order in orders:
        data = None if order.drain is None else order.drain.data()
        command(connection, order.worker_id, order.kind, by=f"controller:{by}", data=data)


def _as_read(decision: ScaleDecision) -> Any:
    return update(table).where(table.c.id == decision.id, table.c.version == decision.version)


def _taken(pool: str) -> Conflict:
    return Conflict(f"another controller scales pool '{pool}' now", code="scaling_taken")


def _written(going: Mapping[str, Going]) -> dict[str, Any]:
    return {
        name: {
            "since": each.since.isoformat(),
            "worker_id": each.worker_id,
            "ours": each.ours,
            "removing": each.removing,
        }
        for name, each in going.items()
    }


def _read(written: Mapping[str, Any]) -> dict[str, Going]:
    return {
        name: Going(
            since=datetime.fromisoformat(each["since"]),
            worker_id=None if each["worker_id"] is None else WorkerId(each["worker_id"]),
            ours=each["ours"],
            removing=each["removing"],
        )
        for name, each in written.items()
    }


def _decision(row: Any) -> ScaleDecision:
    return ScaleDecision(
        id=row.id,
        at=row.at,
        pool=row.pool,
        target=row.target,
        holder=row.holder,
        current=row.current,
        desired=row.desired,
        reason=row.reason,
        outcome=Outcome(row.outcome),
        inputs=row.inputs,
        detail=row.detail,
        going=_read(row.going),
        version=row.version,
    )
