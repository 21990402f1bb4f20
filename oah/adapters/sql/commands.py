"""Commands for workers: rows, because losing one matters. The broker's control list only says "look"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Select, insert, select, update

from oah.adapters.sql.agent_messages import steered
from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.audits import entry, record
from oah.adapters.sql.columns import now
from oah.adapters.sql.tables import runs, session_owners, worker_commands
from oah.adapters.sql.text import dumped, require_sound
from oah.core.model.event import EventType
from oah.core.model.ids import RunId, SessionId, WorkerId
from oah.errors import NotFound
from oah.ports.commands import CommandKind, Delivery, Spoken, WorkerCommand

_KNOWN = frozenset(map(str, CommandKind))
"""A word of a later release says nothing to a worker of this one: what was given with it counts all the same."""
WITHDRAWN = {"delivery": Delivery.MISSED.value}


def command(
    connection: Connection, worker_id: WorkerId, kind: CommandKind, *, by: str, data: Mapping[str, Any] | None = None
) -> None:
    """Write a command and its audit row, in the transaction of what it follows from."""
    values = {"worker_id": worker_id, "kind": kind.value, "given_by": by, "data": dict(data or {})}
    connection.execute(insert(worker_commands).values(**values, at=now()))
    record(connection, [entry(by, f"worker.{kind.value}", worker_id, data)])


class Commands(Aggregate):
    """See ports.commands.CommandStore."""

    def command_worker(
        self, worker_id: WorkerId, kind: CommandKind, *, by: str, data: Mapping[str, Any] | None = None
    ) -> None:
        """Write a command, and who gave it."""
        require_sound(worker_id=worker_id, by=by)
        with self._database.write() as connection:
            command(connection, worker_id, kind, by=by, data=data)

    def command_run(
        self,
        worker_id: WorkerId,
        kind: CommandKind,
        run_id: RunId,
        attempt: int,
        *,
        by: str,
        data: Mapping[str, Any],
    ) -> int:
        """Its id."""
        require_sound(worker_id=worker_id, by=by)
        dumped("data", data)
        values = {"worker_id": worker_id, "kind": kind.value, "given_by": by, "run_id": run_id, "attempt": attempt}
        with self._database.write() as connection:
            statement = insert(worker_commands).values(**values, data=dict(data), at=now())
            return int(connection.execute(statement.returning(worker_commands.c.id)).scalar_one())

    def command_session(self, session_id: SessionId, kind: CommandKind, *, by: str) -> WorkerId | None:
        """In one statement: an owner that goes meanwhile has no use for it."""
        require_sound(session_id=session_id, by=by)
        with self._database.write() as connection:
            owner = connection.execute(
                select(session_owners.c.worker_id).where(session_owners.c.session_id == session_id)
            ).scalar()
            if owner is None:
                return None
            values = {"worker_id": owner, "kind": kind.value, "given_by": by, "data": {"session_id": session_id}}
            connection.execute(insert(worker_commands).values(**values, at=now()))
            return WorkerId(owner)

    def take_commands(self, worker_id: WorkerId) -> list[WorkerCommand]:
        """Those nobody has taken, oldest first. Looks before it writes: mostly there are none."""
        waiting = select(worker_commands.c.id).where(
            worker_commands.c.worker_id == worker_id, worker_commands.c.taken_at.is_(None)
        )
        with self._database.read() as connection:
            if connection.execute(waiting.limit(1)).first() is None:
                return []
        c = worker_commands.c
        taken = (
            update(worker_commands)
            .where(c.worker_id == worker_id, c.taken_at.is_(None))
            .values(taken_at=now())
            .returning(c.id, c.kind, c.given_by, c.run_id, c.attempt, c.data)
        )
        with self._database.write() as connection:
            rows = sorted(connection.execute(taken).all(), key=lambda row: int(row.id))
        return [_command(worker_id, row) for row in rows if row.kind in _KNOWN]

    def answer_command(self, command_id: int, delivery: Delivery) -> int:
        """Under the lock of the run's session, which numbers the event."""
        with self._database.read() as connection:
            asked = connection.execute(_about_a_run().where(worker_commands.c.id == command_id)).first()
        if asked is None:
            raise NotFound(f"no command {command_id} about a run")
        with self._transaction([asked.session_id]) as transaction:
            answered = (
                update(worker_commands)
                .where(worker_commands.c.id == command_id, worker_commands.c.answered_at.is_(None))
                .values(answer={"delivery": delivery.value}, answered_at=now())
            )
            if not transaction.connection.execute(answered).rowcount:
                return 0
            data = {"delivery": delivery.value, "by": asked.given_by, "request_id": asked.request_id}
            if asked.message_id is not None:
                steered(transaction, asked.session_id, asked.request_id, delivery)
                data["message_id"] = asked.message_id
            return transaction.append_event(
                asked.session_id, EventType.RUN_STEERED, run_id=asked.run_id, attempt=asked.attempt, data=data
            )

    def spoken(self, request_id: RunId) -> Spoken | None:
        """By the index of requests."""
        c = worker_commands.c
        statement = select(c.id, c.run_id, c.taken_at, c.answer).where(c.request_id == request_id)
        with self._database.read() as connection:
            row = connection.execute(statement).first()
        if row is None:
            return None
        answer = None if row.answer is None else Delivery(row.answer["delivery"])
        return Spoken(row.id, RunId(row.run_id), row.taken_at is not None, answer)

    def withdraw_command(self, command_id: int) -> bool:
        """As if a worker had taken it and come too late."""
        statement = (
            update(worker_commands)
            .where(worker_commands.c.id == command_id, worker_commands.c.taken_at.is_(None))
            .values(taken_at=now(), answer=WITHDRAWN, answered_at=now())
        )
        with self._database.write() as connection:
            return bool(connection.execute(statement).rowcount)


def _about_a_run() -> Select[Any]:
    c = worker_commands.c
    message_id = c.data["message_id"].as_string().label("message_id")
    return select(c.id, c.given_by, c.run_id, c.attempt, c.request_id, message_id, runs.c.session_id).join(
        runs, runs.c.id == c.run_id
    )


def _command(worker_id: WorkerId, row: Any) -> WorkerCommand:
    run_id = None if row.run_id is None else RunId(row.run_id)
    return WorkerCommand(
        row.id, worker_id, CommandKind(row.kind), row.given_by, run_id, row.attempt, dict(row.data or {})
    )
