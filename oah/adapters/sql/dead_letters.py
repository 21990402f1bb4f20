"""Dead letters as operators see them: listed, redriven, purged, and evicted when there are too many.

Whatever changes a letter that has a session locks that session first, as every change of a run does: a redrive, a
requeue by hand and an eviction of one letter come one after the other, and each looks again after it has the lock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    LargeBinary,
    Select,
    and_,
    delete,
    func,
    literal,
    null,
    or_,
    select,
    text,
    update,
)

from oah.adapters.sql.agent_messages import redrive_for_agent
from oah.adapters.sql.aggregate import Aggregate, Transaction, picked
from oah.adapters.sql.columns import MICROSECOND, later, now
from oah.adapters.sql.deliveries import deliver_again
from oah.adapters.sql.governance_tables import DEAD, dead_letters, jobs
from oah.adapters.sql.jobs import advance
from oah.adapters.sql.letters import put, write_down
from oah.adapters.sql.mail_letters import lock_for_letters, post_again
from oah.adapters.sql.pages import paged
from oah.adapters.sql.put_back import queue_again
from oah.adapters.sql.rows import RUN_COLUMNS, parsed, required, run_of
from oah.adapters.sql.rows import moment as moment_of
from oah.adapters.sql.tables import runs
from oah.adapters.sql.text import cleaned, dumped, require_sound
from oah.core.model.event import EventType
from oah.core.model.ids import SessionId, WorkspaceId
from oah.errors import Conflict, NotFound, RequestError
from oah.ports.dead_letters import DeadLetter, Evicted, LetterDone, LetterFilter, LetterKind, LetterState, NewLetter
from oah.ports.jobs import JobFence, JobItem
from oah.ports.store import Accepted, Page

IS_DEAD = text(DEAD)
LOOK = "look at it (oah dead-letter show), then purge it"
SYSTEM = "system"
"""Who evicts: nobody asked for it."""
COLUMNS = (
    "id", "workspace_id", "kind", "subject", "session_id", "state", "code", "reason", "payload", "payload_bytes",
    "attempts", "first_at", "last_at", "redriven_at", "redriven_by", "note",
)  # fmt: skip
WHOLE = tuple(picked(dead_letters, COLUMNS))
SUMMARY: tuple[ColumnElement[Any], ...] = tuple(
    literal("{}").label("payload")
    if column.name == "payload"
    else null().cast(LargeBinary)
    if column.name == "payload_bytes"
    else column
    for column in WHOLE
)

Work = Callable[[Transaction, DeadLetter], Accepted | None]


class DeadLetters(Aggregate):
    """The aggregate of dead letters."""

    def add_dead_letter(self, letter: NewLetter) -> bool:
        """With its event, if its session is there."""
        require_sound(id=letter.id, workspace=letter.workspace_id, subject=letter.subject, session=letter.session_id)
        payload = json.loads(dumped("payload", letter.payload))
        row: dict[str, Any] = {
            "id": letter.id,
            "workspace_id": letter.workspace_id,
            "kind": letter.kind.value,
            "subject": letter.subject,
            "session_id": letter.session_id,
            "code": letter.code,
            "reason": cleaned(letter.reason),
            "payload": payload,
            "payload_bytes": letter.payload_bytes,
            "attempts": letter.attempts,
            "note": letter.note,
        }
        with self._transaction([letter.session_id] if letter.session_id else []) as transaction:
            new = put(transaction, row, first_at=later(-(letter.failing_for // MICROSECOND)))
            if new:
                _tell(transaction, letter.session_id, EventType.DEAD_LETTER_ADDED, letter.id, letter.kind, letter.code)
        return new

    def dead_letters(self, where: LetterFilter) -> Page[DeadLetter]:
        """By the moment of their last failure."""
        statement = _filtered(select(*SUMMARY), where)
        with self._database.read() as connection:
            return paged(
                connection,
                statement,
                dead_letters,
                _made,
                lambda letter: (letter.last_at, letter.id),
                cursor=where.cursor,
                limit=where.limit,
                by="last_at",
            )

    def dead_letter(self, letter_id: str, workspace_id: WorkspaceId | None) -> DeadLetter:
        """Raises NotFound."""
        with self._database.read() as connection:
            return _letter(connection, letter_id, workspace_id)

    def redrive_chunk(
        self, ids: Sequence[str], workspace_id: WorkspaceId | None, *, by: str, fence: JobFence | None = None
    ) -> list[LetterDone]:
        """A run is queued again, which marks its letter in the same transaction."""
        return self._chunk(ids, workspace_id, _redrive, "redriven", by=by, fence=fence)

    def purge_chunk(
        self, ids: Sequence[str], workspace_id: WorkspaceId | None, *, by: str, fence: JobFence | None = None
    ) -> list[LetterDone]:
        """Rows go, whatever their state; what they were about stays as it is."""
        return self._chunk(ids, workspace_id, _purge, "purged", by=by, fence=fence)

    def _chunk(
        self,
        ids: Sequence[str],
        workspace_id: WorkspaceId | None,
        work: Callable[[str], Work],
        what: str,
        *,
        by: str,
        fence: JobFence | None,
    ) -> list[LetterDone]:
        require_sound(by=by)
        wanted = [each for each in dict.fromkeys(ids) if "\0" not in each]
        if not wanted:
            return []
        with self._database.read() as connection:
            named = select(dead_letters.c.session_id).where(dead_letters.c.id.in_(wanted))
            found = {SessionId(name) for name in connection.execute(named).scalars() if name is not None}
        with self._transaction(found) as transaction:
            if work is _redrive:
                lock_for_letters(transaction, wanted)
            done = [_done(transaction, each, workspace_id, work(by)) for each in wanted]
            if fence is not None:
                _advance(transaction.connection, fence, done, what)
        return done

    def evict_dead_letters(self, *, keep: int, since: timedelta | None, limit: int = 500) -> list[Evicted]:
        """One transaction per workspace and kind that has too many."""
        with self._database.read() as connection:
            groups = select(dead_letters.c.workspace_id, dead_letters.c.kind).where(IS_DEAD).distinct()
            if since is not None:
                cutoff = connection.execute(select(later(-(since // MICROSECOND)))).scalar_one()
                groups = groups.where(dead_letters.c.last_at > cutoff)
            touched = connection.execute(groups).all()
        evicted: list[Evicted] = []
        for workspace_id, kind in touched:
            if len(evicted) >= limit:
                break
            evicted += self._evict(workspace_id, kind, keep=keep, limit=limit - len(evicted))
        return evicted

    def _evict(self, workspace_id: str, kind: str, *, keep: int, limit: int) -> list[Evicted]:
        """Found, their sessions locked, found again: what went or came meanwhile is another pass's."""
        with self._database.read() as connection:
            rows = _excess(connection, workspace_id, kind, keep=keep, limit=limit)
        if not rows:
            return []
        named = {SessionId(row.session_id) for row in rows if row.session_id is not None}
        done: list[Evicted] = []
        with self._transaction(named) as transaction:
            for row in _excess(transaction.connection, workspace_id, kind, keep=keep, limit=limit):
                if row.session_id is not None and row.session_id not in named:
                    continue
                gone = delete(dead_letters).where(dead_letters.c.id == row.id, IS_DEAD)
                if not transaction.connection.execute(gone).rowcount:
                    continue
                letter_kind = LetterKind(kind)
                transaction.letters[kind, "evicted"] += 1
                number = _tell(
                    transaction, row.session_id, EventType.DEAD_LETTER_EVICTED, row.id, letter_kind, row.code, keep=keep
                )
                write_down(
                    transaction, SYSTEM, "dead_letter.evicted", row.id, workspace_id=workspace_id, kind=kind, keep=keep
                )
                done.append(Evicted(row.id, WorkspaceId(workspace_id), letter_kind, row.session_id, number))
        return done

    def count_dead_letters(self) -> Mapping[LetterKind, int]:
        """By the index of the dead ones alone."""
        counted = select(dead_letters.c.kind, func.count()).where(IS_DEAD).group_by(dead_letters.c.kind)
        with self._database.read() as connection:
            found = {row[0]: int(row[1]) for row in connection.execute(counted)}
        return {kind: found.get(kind.value, 0) for kind in LetterKind}


def _excess(connection: Connection, workspace_id: str, kind: str, *, keep: int, limit: int) -> Sequence[Any]:
    """The oldest of those beyond ``keep``: walks of the index of the dead, as long as the bound, not the history."""
    theirs = (dead_letters.c.workspace_id == workspace_id, dead_letters.c.kind == kind, IS_DEAD)
    at, name = dead_letters.c.last_at, dead_letters.c.id
    newest_first = select(at, name).where(*theirs).order_by(at.desc(), name.desc())
    newest = connection.execute(newest_first.offset(keep).limit(1)).first()
    if newest is None:
        return []
    upto = or_(at < newest.last_at, and_(at == newest.last_at, name <= newest.id))
    wanted = select(name, dead_letters.c.session_id, dead_letters.c.code).where(*theirs, at <= newest.last_at, upto)
    return connection.execute(wanted.order_by(at, name).limit(limit)).all()


def _done(transaction: Transaction, letter_id: str, workspace_id: WorkspaceId | None, work: Work) -> LetterDone:
    """One letter behind a savepoint: what cannot be done of it is its own answer."""
    savepoint = transaction.savepoint()
    kind: LetterKind | None = None
    try:
        letter = _letter(transaction.connection, letter_id, workspace_id)
        kind = letter.kind
        accepted = work(transaction, letter)
    except RequestError as error:
        savepoint.rollback()
        return LetterDone(letter_id, error.code, error.message, kind=kind, hint=error.hint)
    except BaseException:
        savepoint.rollback()
        raise
    savepoint.commit()
    return LetterDone(letter_id, accepted=accepted, kind=kind)


def _redrive(by: str) -> Work:
    def redrive(transaction: Transaction, letter: DeadLetter) -> Accepted | None:
        if letter.state is LetterState.REDRIVEN:
            raise Conflict(f"{letter.id} was redriven by {letter.redriven_by}", code="already_redriven")
        if letter.kind is LetterKind.OUTBOX:
            deliver_again(transaction, letter.subject, by=by)
            _mark(transaction, letter, by=by)
            return None
        if letter.kind is LetterKind.MESSAGE and letter.session_id is None:
            post_again(transaction, letter)
            _mark(transaction, letter, by=by)
            return None
        if letter.kind is LetterKind.MESSAGE:
            again = redrive_for_agent(transaction, letter.subject, by=by)
            _mark(transaction, letter, by=by)
            return again
        if letter.kind is not LetterKind.RUN:
            raise Conflict(f"a letter of kind {letter.kind} cannot be redriven", code="not_redrivable", hint=LOOK)
        row = transaction.connection.execute(
            select(*picked(runs, RUN_COLUMNS)).where(runs.c.id == letter.subject)
        ).first()
        if row is None or letter.session_id not in transaction.sessions:
            gone = f"the run of {letter.id} is not there any more"
            raise Conflict(gone, code="not_redrivable", hint="its payload says how to submit it anew")
        return queue_again(transaction, run_of(row), by=by)

    return redrive


def _mark(transaction: Transaction, letter: DeadLetter, *, by: str) -> None:
    """What it is about goes on; of two at once the second finds that. A run's letter is marked by its requeue."""
    marked = transaction.connection.execute(
        update(dead_letters)
        .where(dead_letters.c.id == letter.id, IS_DEAD)
        .values(state=LetterState.REDRIVEN.value, redriven_at=now(), redriven_by=by)
    )
    if not marked.rowcount:
        raise Conflict(f"{letter.id} was redriven meanwhile", code="already_redriven")
    transaction.letters[letter.kind.value, "redriven"] += 1
    _tell(transaction, letter.session_id, EventType.DEAD_LETTER_REDRIVEN, letter.id, letter.kind, letter.code, by=by)
    facts = {"workspace_id": letter.workspace_id, "kind": letter.kind.value, "subject": letter.subject}
    write_down(transaction, by, "dead_letter.redriven", letter.id, **facts)


def _purge(by: str) -> Work:
    def purge(transaction: Transaction, letter: DeadLetter) -> None:
        gone = transaction.connection.execute(delete(dead_letters).where(dead_letters.c.id == letter.id))
        if not gone.rowcount:
            raise NotFound(f"no dead letter {letter.id}")
        transaction.letters[letter.kind.value, "purged"] += 1
        _tell(transaction, letter.session_id, EventType.DEAD_LETTER_PURGED, letter.id, letter.kind, letter.code, by=by)
        facts = {"workspace_id": letter.workspace_id, "kind": letter.kind.value, "subject": letter.subject}
        write_down(transaction, by, "dead_letter.purged", letter.id, **{**facts, "state": letter.state.value})

    return purge


def _tell(
    transaction: Transaction,
    session_id: SessionId | None,
    event: EventType,
    letter_id: str,
    kind: LetterKind,
    code: str,
    **more: Any,
) -> int:
    """An event in the session's stream, if there is one; its number."""
    if session_id is None or session_id not in transaction.sessions:
        return 0
    data = {"dead_letter_id": letter_id, "kind": kind.value, "code": code, **more}
    return transaction.append_event(session_id, event, data=data)


def _advance(connection: Connection, fence: JobFence, done: Sequence[LetterDone], what: str) -> None:
    """How far the job came, with what it did."""
    begun = connection.execute(select(jobs.c.done + jobs.c.failed).where(jobs.c.id == fence.job_id)).scalar() or 0
    failed = sum(each.code is not None for each in done)
    items = [
        JobItem(begun + number, each.id, each.code or what, each.message) for number, each in enumerate(done, start=1)
    ]
    advance(connection, fence, done=len(done) - failed, failed=failed, cursor=done[-1].id, items=items)


def _filtered(statement: Select[Any], where: LetterFilter) -> Select[Any]:
    for column, value in (
        (dead_letters.c.workspace_id, where.workspace_id),
        (dead_letters.c.kind, where.kind and where.kind.value),
        (dead_letters.c.session_id, where.session_id),
        (dead_letters.c.code, where.code),
        (dead_letters.c.state, where.state and where.state.value),
    ):
        if value is not None:
            statement = statement.where(column == value)
    if where.ids is not None:
        statement = statement.where(dead_letters.c.id.in_([each for each in where.ids if "\0" not in each]))
    if where.since is not None:
        statement = statement.where(dead_letters.c.last_at > where.since)
    return statement


def _letter(connection: Connection, letter_id: str, workspace_id: WorkspaceId | None) -> DeadLetter:
    row = connection.execute(select(*WHOLE).where(dead_letters.c.id == letter_id)).first()
    if row is None or (workspace_id is not None and row.workspace_id != workspace_id):
        raise NotFound(f"no dead letter {letter_id}")
    return _made(row)


def _made(row: Sequence[Any]) -> DeadLetter:
    (
        letter_id, workspace_id, kind, subject, session_id, state, code, reason, payload, payload_bytes, attempts,
        first_at, last_at, redriven_at, redriven_by, note,
    ) = row  # fmt: skip
    return DeadLetter(
        id=letter_id,
        workspace_id=WorkspaceId(workspace_id),
        kind=LetterKind(kind),
        subject=subject,
        session_id=None if session_id is None else SessionId(session_id),
        state=LetterState(state),
        code=code,
        reason=reason,
        payload=parsed(payload) or {},
        payload_bytes=None if payload_bytes is None else bytes(payload_bytes),
        attempts=attempts,
        first_at=required(first_at),
        last_at=required(last_at),
        redriven_at=moment_of(redriven_at),
        redriven_by=redriven_by,
        note=note,
    )
