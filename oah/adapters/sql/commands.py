"""Commands for workers: rows, because losing one matters. The broker's control list only says "look"."""

from __future__ import annotations

from sqlalchemy import insert, select, update

from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.columns import now
from oah.adapters.sql.tables import audit, worker_commands
from oah.adapters.sql.text import require_sound
from oah.core.model.ids import WorkerId
from oah.ports.store import CommandKind, WorkerCommand


class Commands(Aggregate):
    """Writing and taking commands."""

    def command_worker(self, worker_id: WorkerId, kind: CommandKind, *, by: str) -> None:
        """Write a command, and who gave it."""
        require_sound(worker_id=worker_id, by=by)
        with self._database.write() as connection:
            values = {"worker_id": worker_id, "kind": kind.value, "given_by": by, "at": now()}
            connection.execute(insert(worker_commands).values(**values))
            entry = {"actor": by, "action": f"worker.{kind.value}", "subject": worker_id, "data": {}, "at": now()}
            connection.execute(insert(audit).values(**entry))

    def take_commands(self, worker_id: WorkerId) -> list[WorkerCommand]:
        """Those nobody has taken, oldest first. Looks before it writes: mostly there are none."""
        waiting = select(worker_commands.c.id).where(
            worker_commands.c.worker_id == worker_id, worker_commands.c.taken_at.is_(None)
        )
        with self._database.read() as connection:
            if connection.execute(waiting.limit(1)).first() is None:
                return []
        taken = (
            update(worker_commands)
            .where(worker_commands.c.worker_id == worker_id, worker_commands.c.taken_at.is_(None))
            .values(taken_at=now())
            .returning(worker_commands.c.id, worker_commands.c.kind, worker_commands.c.given_by)
        )
        with self._database.write() as connection:
            rows = sorted(connection.execute(taken).all())
        return [WorkerCommand(row.id, worker_id, CommandKind(row.kind), row.given_by) for row in rows]
