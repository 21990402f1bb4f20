"""Deletes of what has aged out, a window at a time.

A window is chosen by an index on age and a limit, never by what may go: a lap costs what is old, not what there is.
The sessions of ended runs are locked before these go: a requeue either comes before and keeps its run, or finds none.
Events go as a prefix of their session: the numbers that are left have no gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, exists, func, or_, select, text, tuple_, update
from sqlalchemy.sql.elements import TextClause

from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.columns import MICROSECOND, later, now
from oah.adapters.sql.fleet_tables import OPEN_DECISION, rollouts, scale_decisions
from oah.adapters.sql.governance_tables import DEAD, audit, dead_letters, job_items, jobs, webhook_deliveries
from oah.adapters.sql.mail_tables import agent_messages, mailboxes, messages
from oah.adapters.sql.tables import (
    ACTIVE,
    ENDED,
    QUEUED,
    idempotency_keys,
    run_attempts,
    run_events,
    run_steps,
    runs,
    session_owners,
    sessions,
    worker_commands,
    workers,
)
from oah.core.model.ids import RunId, SessionId
from oah.core.model.session import HoldReason, SessionState
from oah.core.policy.retention import Aged
from oah.errors import Broken
from oah.ports.retention import AgedRuns, Archived, Mark, Over, Pruned, Recorded, Recordings

Condition = ColumnElement[bool] | TextClause
UNENDED = text("runs.status NOT IN ('completed', 'failed', 'cancelled', 'timed_out')")
EVENTS_OF_A_SESSION = 5_000
"""Events that one window takes from one session at most."""


@dataclass(frozen=True, slots=True)
class ByAge:
    """A table whose rows go by themselves: ``at`` orders them (an index begins with it), ``keys`` name one.

    ``among``: what the index is restricted to; ``may_go``: what must be true of a row at the moment of its end."""

    table: Table
    at: str
    keys: tuple[str, ...] = ("id",)
    among: Condition | None = None
    may_go: Callable[[datetime], Condition] | None = None


def _over(table: Table) -> Callable[[datetime], Condition]:
    return lambda cutoff: and_(table.c.ended_at.is_not(None), table.c.ended_at < cutoff)


def _run_is_over(_: datetime) -> Condition:
    return ~exists().where(runs.c.id == idempotency_keys.c.run_id, UNENDED)


def _session_is_empty(_: datetime) -> Condition:
    theirs = (runs, session_owners, run_events, agent_messages)
    return and_(*(~exists().where(table.c.session_id == sessions.c.id) for table in theirs))


def _is_no_letter(_: datetime) -> Condition:
    letter = and_(dead_letters.c.kind == "message", dead_letters.c.subject == agent_messages.c.message_id)
    return ~exists().where(letter, text(f"dead_letters.{DEAD}"))


def _owns_nothing(_: datetime) -> Condition:
    return ~exists().where(session_owners.c.worker_id == workers.c.id)


def _is_done(_: datetime) -> Condition:
    return text(f"NOT ({OPEN_DECISION})")


TABLES: Mapping[Aged, ByAge] = {
    Aged.DEAD_LETTERS: ByAge(dead_letters, "last_at"),
    Aged.IDEMPOTENCY_KEYS: ByAge(idempotency_keys, "created_at", ("workspace_id", "key"), may_go=_run_is_over),
    Aged.MESSAGES: ByAge(agent_messages, "ended_at", ("message_id",), may_go=_is_no_letter),
    Aged.SESSIONS: ByAge(sessions, "closed_at", among=text("state = 'closed'"), may_go=_session_is_empty),
    Aged.AUDIT: ByAge(audit, "at"),
    Aged.JOBS: ByAge(jobs, "created_at", may_go=_over(jobs)),
    Aged.ROLLOUTS: ByAge(rollouts, "created_at", may_go=_over(rollouts)),
    Aged.WEBHOOK_DELIVERIES: ByAge(webhook_deliveries, "created_at", may_go=_over(webhook_deliveries)),
    Aged.COMMANDS: ByAge(worker_commands, "at"),
    Aged.WORKERS: ByAge(workers, "started_at", may_go=_owns_nothing),
    Aged.SCALE_DECISIONS: ByAge(scale_decisions, "at", may_go=_is_done),
}


class Retention(Aggregate):
    """Pruning."""

    def prune(
        self,
        what: Aged,
        age: timedelta,
        *,
        after: Mark | None,
        limit: int,
        keep: Collection[str] = (),
        dry_run: bool = False,
    ) -> Pruned:
        """One window, one transaction."""
        if what in (Aged.RUNS, Aged.RECORDINGS, Aged.HOMES):
            raise Broken(f"{what} go with their blobs: aged_…")
        with self._database.read() if dry_run else self._database.write() as connection:
            self._database.by_index(connection)
            cutoff = _cutoff(connection, age)
            if what is Aged.EVENTS:
                return _prune_events(connection, cutoff, after, limit=limit, dry_run=dry_run)
            return _prune_table(connection, TABLES[what], cutoff, after, limit=limit, keep=keep, dry_run=dry_run)

    def aged_recordings(self, age: timedelta, *, after: Mark | None, limit: int) -> Recordings:
        """By the index of ended runs and the key of their attempts."""
        named = select(run_attempts.c.run_id, run_attempts.c.attempt, run_attempts.c.recording_blob)
        with self._database.read() as connection:
            self._database.by_index(connection)
            window = _ended(connection, _cutoff(connection, age), after, limit=limit)
            ids = [row.id for row in window]
            found = connection.execute(
                named.where(run_attempts.c.run_id.in_(ids), run_attempts.c.recording_blob.is_not(None))
            ).all()
        return Recordings(tuple(Recorded(RunId(row[0]), row[1], row[2]) for row in found), _mark(window, limit))

    def forget_recordings(self, recordings: Sequence[Recorded]) -> None:
        """Their blobs are gone."""
        with self._database.write() as connection:
            self._database.by_index(connection)
            for each in recordings:
                connection.execute(
                    update(run_attempts)
                    .where(
                        run_attempts.c.run_id == each.run_id,
                        run_attempts.c.attempt == each.attempt,
                        run_attempts.c.recording_blob == each.key,
                    )
                    .values(recording_blob=None)
                )

    def aged_archives(self, age: timedelta, *, after: Mark | None, limit: int) -> Archived:
        """By the index of closed sessions."""
        with self._database.read() as connection:
            self._database.by_index(connection)
            window = _window(connection, TABLES[Aged.SESSIONS], _cutoff(connection, age), after, limit=limit)
            homes = select(sessions.c.id, sessions.c.home).where(sessions.c.id.in_([row.id for row in window]))
            found = connection.execute(homes).all() if window else []
        archived = [row.id for row in found if row.home and row.home.get("archive")]
        return Archived(tuple(SessionId(each) for each in archived), _mark(window, limit))

    def forget_archives(self, sessions_: Sequence[SessionId]) -> None:
        """Their blobs are gone: nobody has their homes."""
        with self._database.write() as connection:
            homes = select(sessions.c.id, sessions.c.home).where(sessions.c.id.in_(sessions_))
            for row in connection.execute(homes.with_for_update()).all():
                home = {**row.home, "archive": None, "place": ""}
                connection.execute(update(sessions).where(sessions.c.id == row.id).values(home=home))

    def over(self, sessions_: Sequence[SessionId], age: timedelta) -> Over:
        """By their ids."""
        if not sessions_:
            return Over()
        with self._database.read() as connection:
            cutoff = _cutoff(connection, age)
            columns = (sessions.c.id, sessions.c.state, sessions.c.closed_at, sessions.c.holds)
            found = connection.execute(select(*columns).where(sessions.c.id.in_(sessions_))).all()
            named = session_owners.c.session_id
            owned = set(connection.execute(select(named).where(named.in_(sessions_))).scalars())
        ended = {
            SessionId(row.id)
            for row in found
            if row.state == SessionState.CLOSED and row.closed_at is not None and row.closed_at < cutoff
            if HoldReason.UNKILLABLE.value not in (row.holds or {})
        }
        known = {row.id for row in found}
        return Over(frozenset(ended - owned), frozenset(each for each in sessions_ if each not in known | owned))

    def aged_runs(self, age: timedelta, *, after: Mark | None, limit: int, with_events: bool = False) -> AgedRuns:
        """By the index of ended runs; what keeps one is looked up by index as well."""
        with self._database.read() as connection:
            self._database.by_index(connection)
            window = _ended(connection, _cutoff(connection, age), after, limit=limit)
            if not window:
                return AgedRuns()
            free = select(runs.c.id, runs.c.result_blob).where(
                runs.c.id.in_([row.id for row in window]), _needed_by_nobody(with_events=with_events)
            )
            going = connection.execute(free).all()
            recorded = select(run_attempts.c.recording_blob).where(
                run_attempts.c.run_id.in_([row.id for row in going]), run_attempts.c.recording_blob.is_not(None)
            )
            blobs = [row.result_blob for row in going if row.result_blob is not None]
            blobs += connection.execute(recorded).scalars().all() if going else []
        return AgedRuns(tuple(RunId(row.id) for row in going), tuple(blobs), _mark(window, limit))

    def prune_runs(self, runs_: Sequence[RunId], age: timedelta) -> int:
        """Their sessions are locked as for every change of a run, but not waited for: one that somebody works on keeps
        its old runs until the next lap."""
        if not runs_:
            return 0
        with self._database.write() as connection:
            self._database.by_index(connection)
            theirs = select(runs.c.session_id).where(runs.c.id.in_(runs_))
            locked = select(sessions.c.id).where(sessions.c.id.in_(theirs)).with_for_update(skip_locked=True)
            free = connection.execute(locked).scalars().all()
            still = select(runs.c.id).where(
                runs.c.id.in_(runs_),
                runs.c.session_id.in_(free),
                text(ENDED),
                runs.c.ended_at < _cutoff(connection, age),
                _needed_by_nobody(with_events=False),
            )
            ids = connection.execute(still).scalars().all()
            for table in (run_steps, run_attempts):
                connection.execute(delete(table).where(table.c.run_id.in_(ids)))
            connection.execute(delete(runs).where(runs.c.id.in_(ids)))
        return len(ids)


def _cutoff(connection: Connection, age: timedelta) -> datetime:
    """A value, not an expression: the clock moves while a statement runs, so no index could be used with it."""
    moment: datetime = connection.execute(select(later(-(age // MICROSECOND)))).scalar_one()
    return moment


def _ended(connection: Connection, cutoff: datetime, after: Mark | None, *, limit: int) -> Sequence[Any]:
    """A window of ended runs, oldest end first."""
    return _window(connection, ByAge(runs, "ended_at", among=text(ENDED)), cutoff, after, limit=limit)


def _window(connection: Connection, spec: ByAge, cutoff: datetime, after: Mark | None, *, limit: int) -> Sequence[Any]:
    """Rows (keys, then the moment as ``at``) that are old enough, in the order of their age."""
    at = spec.table.c[spec.at]
    keys = [spec.table.c[name] for name in spec.keys]
    statement = select(*keys, at.label("at")).where(at < cutoff).order_by(at, *keys).limit(limit)
    if spec.among is not None:
        statement = statement.where(spec.among)
    if after is not None and after.at is not None:
        behind = tuple_(*keys) > tuple_(*after.keys) if len(keys) > 1 else keys[0] > after.keys[0]
        statement = statement.where(at >= after.at, or_(at > after.at, behind))
    return connection.execute(statement).all()


def _mark(window: Sequence[Any], limit: int) -> Mark | None:
    if len(window) < limit:
        return None
    *keys, at = window[-1]
    return Mark(tuple(keys), at)


def _prune_table(
    connection: Connection,
    spec: ByAge,
    cutoff: datetime,
    after: Mark | None,
    *,
    limit: int,
    keep: Collection[str],
    dry_run: bool,
) -> Pruned:
    window = _window(connection, spec, cutoff, after, limit=limit)
    mark = _mark(window, limit)
    named = [tuple(row[:-1]) for row in window if row[0] not in keep]
    if not named:
        return Pruned(0, mark)
    keys = [spec.table.c[name] for name in spec.keys]
    chosen = tuple_(*keys).in_(named) if len(keys) > 1 else keys[0].in_([row[0] for row in named])
    conditions: list[Condition] = [chosen, spec.table.c[spec.at] < cutoff]
    conditions += [each for each in (spec.among, spec.may_go and spec.may_go(cutoff)) if each is not None]
    if dry_run:
        counted = select(func.count()).select_from(spec.table).where(*conditions)
        return Pruned(int(connection.execute(counted).scalar_one()), mark)
    if spec.table is jobs:
        going = select(jobs.c.id).where(*conditions)
        connection.execute(delete(job_items).where(job_items.c.job_id.in_(going)))
    gone = connection.execute(delete(spec.table).where(*conditions).returning(keys[0])).scalars().all()
    if spec.table is agent_messages:
        connection.execute(delete(messages).where(messages.c.id.in_(gone)))
    if spec.table is sessions:  # the mailbox sweep deletes it, with what is in it
        theirs = update(mailboxes).where(mailboxes.c.session_id.in_(gone))
        connection.execute(theirs.values(session_id=None, expires_at=now()))
    return Pruned(len(gone), mark)


def _prune_events(connection: Connection, cutoff: datetime, after: Mark | None, *, limit: int, dry_run: bool) -> Pruned:
    """Of a window of sessions, in the order of their ids: what is old at the beginning of each one's stream."""
    statement = select(sessions.c.id).order_by(sessions.c.id).limit(limit)
    if after is not None:
        statement = statement.where(sessions.c.id > after.keys[0])
    names = connection.execute(statement).scalars().all()
    oldest = run_events.alias("oldest")
    first = (
        select(func.min(oldest.c.number))
        .where(oldest.c.session_id == sessions.c.id)
        .correlate(sessions)
        .scalar_subquery()
    )
    aged = (
        select(sessions.c.id)
        .select_from(sessions)
        .join(run_events, and_(run_events.c.session_id == sessions.c.id, run_events.c.number == first))
        .where(sessions.c.id.in_(names), run_events.c.at < cutoff)
        .order_by(sessions.c.id)
    )
    count = 0
    for name in connection.execute(aged).scalars().all():
        count += _prune_stream(connection, name, cutoff, dry_run=dry_run)
        if count >= EVENTS_OF_A_SESSION and not dry_run:
            return Pruned(count, Mark((name,)))
    return Pruned(count, Mark((names[-1],)) if len(names) == limit else None)


def _prune_stream(connection: Connection, session_id: str, cutoff: datetime, *, dry_run: bool) -> int:
    """Up to the first event that is young or belongs to a run that has not ended."""
    theirs = select(runs.c.id).where(runs.c.session_id == session_id)
    open_runs = [theirs.where(text(QUEUED)), theirs.where(text(ACTIVE))]
    ids = [name for each in open_runs for name in connection.execute(each).scalars()]
    needed = select(func.min(run_events.c.number)).where(run_events.c.run_id.in_(ids))
    until = connection.execute(needed).scalar()
    numbers = (
        select(run_events.c.number, run_events.c.at)
        .where(run_events.c.session_id == session_id)
        .order_by(run_events.c.number)
        .limit(None if dry_run else EVENTS_OF_A_SESSION)
    )
    last, count = 0, 0
    for number, at in connection.execute(numbers):
        if at >= cutoff or (until is not None and number >= until):
            break
        last, count = number, count + 1
    if count and not dry_run:
        connection.execute(delete(run_events).where(run_events.c.session_id == session_id, run_events.c.number <= last))
    return count


def _needed_by_nobody(*, with_events: bool) -> ColumnElement[bool]:
    child = runs.alias("child")
    needs = [
        exists().where(dead_letters.c.kind == "run", dead_letters.c.subject == runs.c.id, text(f"dead_letters.{DEAD}")),
        exists().where(child.c.parent_run_id == runs.c.id),
    ]
    if not with_events:
        needs.append(exists().where(run_events.c.run_id == runs.c.id))
    return and_(*(~each for each in needs))
