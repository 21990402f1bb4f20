"""Starting, settling and releasing runs, their output and their owner's mark: every write behind the fence."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import select

from oah.adapters.sql.aggregate import Aggregate, Transaction, after, picked
from oah.adapters.sql.database import Signal
from oah.adapters.sql.pauses import paused_of
from oah.adapters.sql.retries import Retried, deferred_run, retry
from oah.adapters.sql.rows import RUN_COLUMNS, SESSION_COLUMNS, parsed, run_of, session_of
from oah.adapters.sql.statements import ClaimRow, FencedRow, Look, OutputRow, SettleRow, StartRow, Statements
from oah.adapters.sql.tables import run_attempts, run_events, runs
from oah.adapters.sql.text import cleaned, cleaned_or_none
from oah.core.model.home import session_home
from oah.core.model.ids import ClaimToken, EpochId, RunId, SessionId, WorkerId
from oah.core.model.lane import Lane
from oah.core.model.run import RunStatus, StartReason, StopReason
from oah.errors import InvalidRequest, RequestError
from oah.ports.pauses import IsPaused
from oah.ports.store import (
    AfterRun,
    AlreadyActive,
    IsElsewhere,
    IsHeld,
    IsSuspect,
    MarkReply,
    NothingEligible,
    OutputChunk,
    RunFence,
    Settlement,
    StartClaim,
    Started,
    StartReply,
    Stop,
)

log = logging.getLogger(__name__)
HOLDS = SESSION_COLUMNS.index("holds")
HOME = SESSION_COLUMNS.index("home")
GONE = Look(waiting=None, held=False, holds={}, now_us=0, number=0)


class Executions(Aggregate):
    """The hot path after the submit."""

    def start(self, worker_id: WorkerId, epoch: EpochId, claims: Sequence[StartClaim]) -> list[StartReply]:
        """Two statements: lock, then choose and update with a new snapshot."""
        if not claims:
            return []
        try:
            return self._started(worker_id, epoch, claims)
        except RequestError as error:  # the database refused the batch for one of them
            if len(claims) == 1:
                log.error("session %s cannot be started: %s", claims[0].session_id, error)
                return [NothingEligible(claims[0].session_id)]
            return [self.start(worker_id, epoch, [claim])[0] for claim in claims]

    def _started(self, worker_id: WorkerId, epoch: EpochId, claims: Sequence[StartClaim]) -> list[StartReply]:
        wanted = {claim.session_id: claim for claim in claims}
        with self._database.hot() as sql:
            locked = sql.lock(sorted(wanted))
            elsewhere: dict[str, Lane] = {
                session: lane
                for session, claim in wanted.items()
                if session in locked and (lane := _elsewhere(locked[session], claim)) is not None
            }
            paused = paused_of(sql.pauses(), locked)
            rows = [
                ClaimRow(
                    claim.session_id,
                    claim.token,
                    claim.suspect_place,
                    session in elsewhere or session in paused or locked[session][HOLDS] not in ({}, "{}"),
                )
                for session, claim in wanted.items()
                if session in locked
            ]
            found = {row.session_id: row for row in (sql.start(worker_id, epoch, rows) if rows else ())}
            held = [row.session_id for row in rows if locked[row.session_id][HOLDS] not in ({}, "{}")]
            looks = sql.look(held) if held else {}
        replies: dict[str, StartReply] = {
            session: _reply(
                locked[session], wanted[SessionId(session)], row, looks.get(session), elsewhere.get(session)
            )
            for session, row in found.items()
        }
        replies |= {
            session: IsPaused(SessionId(session))
            for session in paused
            if isinstance(replies.get(session), IsSuspect | IsElsewhere)  # a run, and nothing but the pause
        }
        return [replies.get(claim.session_id, NothingEligible(claim.session_id)) for claim in claims]

    def start_outcome(self, worker_id: WorkerId, claims: Sequence[StartClaim]) -> list[StartReply]:
        """Under the lock, which waits for a commit still in flight."""
        if not claims:
            return []
        with self._transaction(claim.session_id for claim in claims) as transaction:
            return [self._start_outcome(transaction, worker_id, claim) for claim in claims]

    def _start_outcome(self, transaction: Transaction, worker_id: WorkerId, claim: StartClaim) -> StartReply:
        condition = (
            runs.c.session_id == claim.session_id,
            runs.c.claim_token == claim.token,
            runs.c.worker_id == worker_id,
            runs.c.status.in_(["running", "waiting_tool"]),
        )
        row = transaction.connection.execute(select(*picked(runs, RUN_COLUMNS)).where(*condition)).first()
        if row is None:
            return NothingEligible(claim.session_id)
        run = run_of(row)
        reason = transaction.connection.execute(
            select(run_attempts.c.reason).where(run_attempts.c.run_id == run.id, run_attempts.c.attempt == run.attempt)
        ).scalar_one()
        number = transaction.connection.execute(
            select(run_events.c.number).where(
                run_events.c.run_id == run.id,
                run_events.c.attempt == run.attempt,
                run_events.c.type == "run.started",
            )
        ).scalar_one()
        session = session_of(transaction.sessions[claim.session_id])
        return Started(session, run, StartReason(reason), number)

    def settle(self, settlements: Sequence[Settlement]) -> list[AfterRun]:
        """Fenced; the sessions as they stand afterwards. A retry is part of the same transaction."""
        if not settlements:
            return []
        if any(settlement.retry is not None for settlement in settlements):
            return self._settle_or_retry(settlements)
        with self._database.hot() as sql:
            ids = sorted({settlement.fence.session_id for settlement in settlements})
            sql.lock_only(ids)
            done = _settled(sql, settlements)
            looks = sql.look(ids)
        return _afters([settlement.fence.session_id for settlement in settlements], done, looks)

    def _settle_or_retry(self, settlements: Sequence[Settlement]) -> list[AfterRun]:
        ids = sorted({settlement.fence.session_id for settlement in settlements})
        with self._transaction(ids) as transaction:
            again: dict[int, Retried] = {}
            for index, settlement in enumerate(settlements):
                plan = settlement.retry
                retried = None if plan is None else retry(transaction, _settle_row(settlement), plan)
                if retried is not None:
                    again[index] = retried
            left = [settlement for index, settlement in enumerate(settlements) if index not in again]
            ended = iter(_settled(transaction.hot, left) if left else ())
            done = [
                FencedRow(RunStatus.QUEUED, again[index].number) if index in again else next(ended)
                for index in range(len(settlements))
            ]
            looks = transaction.hot.look(ids)
        afters = _afters([settlement.fence.session_id for settlement in settlements], done, looks)
        return [replace(each, due=again[n].due) if n in again else each for n, each in enumerate(afters)]

    def settle_outcome(self, settlements: Sequence[Settlement]) -> list[AfterRun]:
        """Under the lock. The attempt's record says whether it ended as asked, and not by somebody else's hand."""
        if not settlements:
            return []
        with self._transaction(settlement.fence.session_id for settlement in settlements) as transaction:
            return [_settle_outcome(transaction, settlement) for settlement in settlements]

    def release(self, fences: Sequence[RunFence]) -> list[AfterRun]:
        """Back to queued; one whose cancel was asked for ends cancelled, for nobody else would do it."""
        if not fences:
            return []
        with self._database.hot() as sql:
            ids = sorted({fence.session_id for fence in fences})
            sql.lock_only(ids)
            done = sql.release(fences)
            sql.tell_webhooks(
                [
                    (fence.session_id, now.number)
                    for fence, now in zip(fences, done, strict=True)
                    if now.status == RunStatus.CANCELLED
                ]
            )
            looks = sql.look(ids)
        return _afters([fence.session_id for fence in fences], done, looks)

    def drop_owner(self, worker_id: WorkerId, sessions: Sequence[tuple[SessionId, ClaimToken]]) -> list[AfterRun]:
        """Refused while a run is active under the row."""
        if not sessions:
            return []
        with self._database.hot() as sql:
            ids = sorted({session for session, _ in sessions})
            sql.lock_only(ids)
            gone = sql.drop_owners(worker_id, sorted(set(sessions)))
            looks = sql.look(ids)
        return [after(looks.get(session, GONE), applied=session in gone) for session, _ in sessions]

    def output(self, chunks: Sequence[OutputChunk]) -> list[int | None]:
        """Fenced in a statement after the lock."""
        if not chunks:
            return []
        rows = [
            OutputRow(
                chunk.fence.session_id,
                chunk.fence.run_id,
                chunk.fence.attempt,
                chunk.fence.token,
                json.dumps({"text": cleaned(chunk.text)}, ensure_ascii=False),
            )
            for chunk in chunks
        ]
        with self._database.hot() as sql:
            sql.lock_only(sorted({row.session_id for row in rows}))
            return sql.output(rows)

    def mark(
        self, worker_id: WorkerId, table: Sequence[tuple[SessionId, ClaimToken]], *, timeout: timedelta
    ) -> MarkReply:
        """Rows that match are ours still. Raises Unavailable after ``timeout``; it confirms nothing then."""
        if not table:
            return MarkReply(frozenset())
        marked = self._database.mark(worker_id, table, timeout=timeout)
        return MarkReply(
            frozenset(SessionId(session) for session in marked.sessions),
            tuple(_stop(signal) for signal in marked.signals if signal.stop),
            frozenset(SessionId(session) for session in marked.unread),
            {
                SessionId(signal.session): timedelta(microseconds=max(0, signal.heard_us))
                for signal in marked.signals
                if signal.heard_us is not None
            },
        )


def _elsewhere(session: Sequence[Any], claim: StartClaim) -> Lane | None:
    """The lane of the place where its home is, if that is not here."""
    if claim.place is None or not session[HOME]:
        return None
    home = session_home(parsed(session[HOME]))
    if home is None or home.only_at in (None, claim.place):
        return None
    return session_of(session).lane.at(home.place)


def _reply(
    session: Sequence[Any], claim: StartClaim, row: StartRow, look: Look | None, elsewhere: Lane | None
) -> StartReply:
    """What a start found, the owner first: a held session that runs has to go back to whom it belongs."""
    if row.run is not None:
        assert row.reason is not None  # set with the run
        before = session_of(session)
        now = replace(before, event_seq=row.number, queued_count=before.queued_count - 1)
        return Started(now, run_of(row.run), StartReason(row.reason), row.number)
    foreign = row.owner_token is not None and row.owner_token != claim.token
    if row.active or foreign:
        return AlreadyActive(
            claim.session_id,
            WorkerId(row.owner_worker or ""),
            ClaimToken(row.owner_token or ""),
            row.owner_parked,
            timedelta(microseconds=row.owner_age_us or 0),
        )
    if look is not None:
        return IsHeld(claim.session_id, look.reasons, look.until_in)
    if row.first_run is None:
        return NothingEligible(claim.session_id)
    return IsSuspect(claim.session_id) if elsewhere is None else IsElsewhere(claim.session_id, elsewhere)


def _stop(signal: Signal) -> Stop:
    fence = RunFence(SessionId(signal.session), RunId(signal.run), signal.attempt, ClaimToken(signal.token))
    return Stop(fence, StopReason(signal.reason or StopReason.CANCEL), signal.by or "")


def _settled(sql: Statements, settlements: Sequence[Settlement]) -> list[FencedRow]:
    """Terminal under the fence; holds what is to be held."""
    rows = [_settle_row(settlement) for settlement in settlements]
    done = sql.settle(rows)
    sql.tell_webhooks([(row.session_id, now.number) for row, now in zip(rows, done, strict=True) if now.status])
    for settlement, answer in zip(settlements, done, strict=True):
        if settlement.hold is not None and answer.status is not None:
            session = settlement.fence.session_id
            sql.hold(session, {**sql.look([session])[session].holds, settlement.hold.value: None})
    return done


def _settle_row(settlement: Settlement) -> SettleRow:
    outcome, fence = settlement.outcome, settlement.fence
    if not outcome.status.terminal:
        raise InvalidRequest(f"a run cannot be settled as {outcome.status}")
    code = None if outcome.error is None else cleaned(outcome.error.code)
    message = None if outcome.error is None else cleaned(outcome.error.message)
    data: dict[str, Any] = {} if outcome.exit_code is None else {"exit_code": outcome.exit_code}
    if outcome.output_cut:
        data["output_cut"] = True
    if code is not None:
        data["error"] = {"code": code, "message": message}
    return SettleRow(
        session_id=fence.session_id,
        run_id=fence.run_id,
        attempt=fence.attempt,
        token=fence.token,
        status=outcome.status,
        result=cleaned(outcome.output),
        result_blob=cleaned_or_none(outcome.result_blob),
        exit_code=code_of(outcome.exit_code),
        error_code=code,
        error_message=message,
        recording_blob=cleaned_or_none(outcome.recording_blob),
        agent=cleaned(outcome.agent),
        keep_owner=settlement.keep_owner,
        data=json.dumps(data, ensure_ascii=False),
        agent_reason=cleaned_or_none(outcome.agent_reason),
        home_mode=cleaned_or_none(outcome.home_mode),
        session_ref=cleaned_or_none(outcome.session_ref),
        home=None if outcome.home is None else json.dumps(outcome.home.document()),
    )


def code_of(exit_code: int | None) -> int | None:
    """What a process can end with; another number would cost the whole batch."""
    return exit_code if exit_code is not None and -(2**31) <= exit_code < 2**31 else None


def _settle_outcome(transaction: Transaction, settlement: Settlement) -> AfterRun:
    fence = settlement.fence
    row = transaction.connection.execute(
        select(runs.c.status, runs.c.attempt, runs.c.voided, run_attempts.c.outcome)
        .join(run_attempts, (run_attempts.c.run_id == runs.c.id) & (run_attempts.c.attempt == fence.attempt))
        .where(runs.c.id == fence.run_id, runs.c.session_id == fence.session_id)
    ).first()
    if row is None:
        return after(GONE, applied=False)
    ours = row.attempt == fence.attempt and row.outcome == settlement.outcome.status
    # After a retry the run is queued, and may have been cancelled since.
    applied = ours and (row.status == row.outcome or settlement.retry is not None)
    found = after(
        transaction.look(fence.session_id), applied=applied, status=RunStatus(row.status), voided=bool(row.voided)
    )
    if applied and settlement.retry is not None:
        return replace(found, due=deferred_run(transaction, fence.session_id, fence.run_id))
    return found


def _afters(ids: Sequence[str], done: Sequence[FencedRow], looks: dict[str, Look]) -> list[AfterRun]:
    return [
        after(
            looks.get(session, GONE),
            applied=answer.status is not None,
            status=None if answer.status is None else RunStatus(answer.status),
            number=answer.number,
            voided=answer.voided,
        )
        for session, answer in zip(ids, done, strict=True)
    ]
