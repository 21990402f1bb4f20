"""Firings: the run of a schedule whose time has come, and the row that says so, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, RowMapping, delete, select, text, update

from oah.adapters.sql.aggregate import Aggregate, Transaction
from oah.adapters.sql.columns import now
from oah.adapters.sql.faults import translate
from oah.adapters.sql.fleet_tables import FIRING, schedule_firings, schedules
from oah.adapters.sql.rows import moment, required
from oah.adapters.sql.schedules import schedule_of, written_down
from oah.adapters.sql.sessions import insert_session
from oah.adapters.sql.submits import submit_within
from oah.adapters.sql.tables import sessions
from oah.adapters.sql.text import cleaned_or_none
from oah.core.model.ids import RunId
from oah.core.model.schedule import Firing, FiringOutcome, Schedule, refused
from oah.core.model.session import SessionState
from oah.errors import NotFound, RequestError
from oah.ports.schedules import DueRun, DueSchedule, Fired
from oah.ports.store import Accepted, SubmitLimits


class Firings(Aggregate):
    """See ports.schedules.ScheduleStore."""

    def firings(self, schedule_id: str, *, limit: int = 100) -> list[Firing]:
        """Newest first."""
        statement = (
            select(schedule_firings)
            .where(schedule_firings.c.schedule_id == schedule_id)
            .order_by(schedule_firings.c.fire_at.desc())
            .limit(limit)
        )
        with self._database.read() as connection:
            return [_firing_of(row) for row in connection.execute(statement).mappings()]

    def due_schedules(self, *, limit: int) -> tuple[datetime, list[DueSchedule]]:
        """By the index of what fires."""
        statement = (
            select(schedules)
            .where(text(FIRING), schedules.c.next_at <= now())
            .order_by(schedules.c.next_at, schedules.c.id)
            .limit(limit)
        )
        with self._database.read() as connection:
            found = [schedule_of(row) for row in connection.execute(statement).mappings()]
            at = required(moment(connection.execute(select(now())).scalar_one()))
            return at, [DueSchedule(each, _last_run(connection, each.id)) for each in found]

    def fire(
        self,
        schedule: Schedule,
        firings: Sequence[Firing],
        *,
        due: DueRun | None,
        next_at: datetime | None,
        limits: SubmitLimits,
        keep: int,
    ) -> Fired | None:
        """Compare-and-set on `next_at` and `updated_at`: its lock is what a second leader waits for."""
        mine = (
            schedules.c.id == schedule.id,
            schedules.c.next_at == schedule.next_at,
            schedules.c.updated_at == schedule.updated_at,
        )
        with self._transaction() as transaction:
            connection = transaction.connection
            if connection.execute(update(schedules).where(*mine).values(next_at=next_at)).rowcount != 1:
                return None
            accepted = None
            if due is not None and not _dealt_with(connection, schedule, due.fire_at):
                answer = _submitted(transaction, due, limits)
                if isinstance(answer, RequestError):
                    firings = [*firings, refused(schedule, due.fire_at, answer)]
                else:
                    accepted = answer
                    firings = [*firings, _of_run(schedule, due.fire_at, FiringOutcome.SUBMITTED, answer)]
                    ran = update(schedules).where(schedules.c.id == schedule.id).values(last_at=due.fire_at)
                    connection.execute(ran)
            for each in firings:
                _write(transaction, each)
            _forget_oldest(connection, schedule, keep)
            return Fired(firings=firings, accepted=accepted)

    def trigger(self, schedule: Schedule, due: DueRun, *, limits: SubmitLimits, by: str) -> Accepted:
        """Under the schedule's lock, so that none is left of one that is deleted meanwhile."""
        with self._transaction() as transaction:
            found = select(schedules.c.id).where(schedules.c.id == schedule.id).with_for_update()
            if transaction.connection.execute(found).first() is None:
                raise NotFound(f"no schedule '{schedule.name}'")
            answer = _submitted(transaction, due, limits)
            if isinstance(answer, RequestError):
                raise answer
            _write(transaction, _of_run(schedule, due.fire_at, FiringOutcome.TRIGGERED, answer, detail=by))
            written_down(transaction.connection, schedule, by, "triggered", run_id=answer.run.id)
            return answer


def _submitted(transaction: Transaction, due: DueRun, limits: SubmitLimits) -> Accepted | RequestError:
    """Where it is refused, nothing of it is left: the session of its own neither."""
    savepoint = transaction.savepoint()
    try:
        if due.session is not None:
            insert_session(transaction.connection, due.session)
        answer = submit_within(transaction.hot, due.run, limits)
        if isinstance(answer, RequestError):
            raise answer
        if due.session is not None:  # it takes no other run
            closing = update(sessions).where(sessions.c.id == due.session.id).values(state=SessionState.CLOSING.value)
            transaction.connection.execute(closing)
    except Exception as error:
        ours = translate(error)
        if not isinstance(ours, RequestError):
            raise
        savepoint.rollback()
        return ours
    savepoint.commit()
    return answer


def _dealt_with(connection: Connection, schedule: Schedule, fire_at: datetime) -> bool:
    """Whether there is a row of this time: somebody has put the schedule back."""
    mine = (schedule_firings.c.schedule_id == schedule.id, schedule_firings.c.fire_at == fire_at)
    return connection.execute(select(schedule_firings.c.fire_at).where(*mine)).first() is not None


def _write(transaction: Transaction, firing: Firing) -> None:
    transaction.insert_or_ignore(
        schedule_firings,
        schedule_id=firing.schedule_id,
        fire_at=firing.fire_at,
        at=now(),
        outcome=firing.outcome.value,
        run_id=firing.run_id,
        detail=cleaned_or_none(firing.detail),
    )


def _forget_oldest(connection: Connection, schedule: Schedule, keep: int) -> None:
    kept = (
        select(schedule_firings.c.fire_at)
        .where(schedule_firings.c.schedule_id == schedule.id)
        .order_by(schedule_firings.c.fire_at.desc())
        .offset(keep)
        .limit(1)
    )
    oldest = connection.execute(kept).scalar_one_or_none()
    if oldest is not None:
        old = (schedule_firings.c.schedule_id == schedule.id, schedule_firings.c.fire_at <= oldest)
        connection.execute(delete(schedule_firings).where(*old))


def _last_run(connection: Connection, schedule_id: str) -> RunId | None:
    statement = (
        select(schedule_firings.c.run_id)
        .where(schedule_firings.c.schedule_id == schedule_id, schedule_firings.c.run_id.is_not(None))
        .order_by(schedule_firings.c.fire_at.desc())
        .limit(1)
    )
    found = connection.execute(statement).scalar_one_or_none()
    return None if found is None else RunId(found)


def _of_run(
    schedule: Schedule, fire_at: datetime, outcome: FiringOutcome, accepted: Accepted, *, detail: str | None = None
) -> Firing:
    return Firing(schedule_id=schedule.id, fire_at=fire_at, outcome=outcome, run_id=accepted.run.id, detail=detail)


def _firing_of(row: RowMapping) -> Firing:
    return Firing(
        schedule_id=row["schedule_id"],
        fire_at=required(row["fire_at"]),
        at=moment(row["at"]),
        outcome=FiringOutcome(row["outcome"]),
        run_id=None if row["run_id"] is None else RunId(row["run_id"]),
        detail=row["detail"],
    )
