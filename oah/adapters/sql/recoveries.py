"""Applying what recovery decided, by compare-and-set, and the epochs of dispatch.

The owner row is deleted only while it carries the ``seen_at`` that was read: a mark that came since refuses it. The run
is changed only in the status and attempt and under the token that were read. Either refusal undoes the other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import delete, exists, insert, select, update
from sqlalchemy.exc import IntegrityError

from oah.adapters.sql.aggregate import Aggregate, Transaction, after, picked
from oah.adapters.sql.columns import now
from oah.adapters.sql.faults import translate
from oah.adapters.sql.letters import bury
from oah.adapters.sql.owners import ACTIVE, asked_for, seen_at_of
from oah.adapters.sql.rows import RUN_COLUMNS, run_of
from oah.adapters.sql.statements import Look
from oah.adapters.sql.tables import LOST, dispatch_epochs, run_attempts, runs, session_owners, workers
from oah.core.model.event import EventType
from oah.core.model.ids import EpochId, WorkerId
from oah.core.model.run import RecoveryState, Run, RunStatus
from oah.errors import RequestError
from oah.ports.store import AfterRun, RecoveryAction, RecoveryWrite

log = logging.getLogger(__name__)
HISTORY = 10
"""Recoveries that a run's record tells one by one; the counts tell of all."""
GONE = Look(waiting=None, held=False, holds={}, now_us=0, number=0)


class Recoveries(Aggregate):
    """What the leader and a starting worker write."""

    def apply_recovery(self, writes: Sequence[RecoveryWrite]) -> list[AfterRun]:
        """Each in a savepoint: one that lost its race, or fails, leaves the others alone."""
        if not writes:
            return []
        with self._transaction(write.owner.session_id for write in writes) as transaction:
            return [self._recovered(transaction, write) for write in writes]

    def _recovered(self, transaction: Transaction, write: RecoveryWrite) -> AfterRun:
        session_id = write.owner.session_id
        if session_id not in transaction.sessions:
            return after(GONE, applied=False)
        savepoint = transaction.savepoint()
        try:
            done = _apply(transaction, write)
        except BaseException as error:
            savepoint.rollback()
            if not isinstance(translate(error), RequestError):
                raise
            log.error("session %s cannot be recovered: %s", session_id, error)
            return after(transaction.look(session_id), applied=False)
        if done is None:
            savepoint.rollback()
            return after(transaction.look(session_id), applied=False)
        savepoint.commit()
        status, number = done
        return after(transaction.look(session_id), applied=True, status=status, number=number)

    def current_epoch(self) -> EpochId | None:
        """The newest one."""
        statement = select(dispatch_epochs.c.id).order_by(dispatch_epochs.c.number.desc()).limit(1)
        with self._database.read() as connection:
            newest = connection.execute(statement).scalar()
        return None if newest is None else EpochId(newest)

    def mint_epoch(self, new: EpochId, *, over: EpochId | None) -> bool:
        """False when the newest is another one by now, also when somebody mints at this very moment."""
        statement = select(dispatch_epochs.c.number, dispatch_epochs.c.id).order_by(dispatch_epochs.c.number.desc())
        with self._database.write() as connection:
            newest = connection.execute(statement.limit(1)).first()
            if (newest.id if newest is not None else None) != over:
                return False
            number = 1 if newest is None else newest.number + 1
            try:
                with connection.begin_nested():
                    connection.execute(insert(dispatch_epochs).values(number=number, id=new, created_at=now()))
            except IntegrityError:
                return False
            return True

    def knows_epoch(self, epoch: EpochId) -> bool:
        """Whether it was ever minted here."""
        with self._database.read() as connection:
            return bool(connection.execute(select(exists().where(dispatch_epochs.c.id == epoch))).scalar())

    def record_worker(self, worker_id: WorkerId, name: str, host: str) -> None:
        """That an incarnation has started; once more changes nothing."""
        with self._transaction() as transaction:
            transaction.insert_or_ignore(workers, id=worker_id, name=name, host=host, started_at=now())


def _apply(transaction: Transaction, write: RecoveryWrite) -> tuple[RunStatus | None, int] | None:
    """The status after and the last event's number; None: the compare-and-set lost."""
    owner = write.owner
    gone = transaction.connection.execute(
        delete(session_owners).where(
            session_owners.c.session_id == owner.session_id,
            session_owners.c.claim_token == owner.token,
            session_owners.c.worker_id == owner.worker_id,
            session_owners.c.seen_at == seen_at_of(owner.seen_at),
        )
    )
    if not gone.rowcount:
        return None
    run = _active_run(transaction, write)
    expected = (owner.run_id, owner.run_status, owner.attempt, owner.token) if owner.run_id else None
    if expected != (run and (run.id, run.status, run.attempt, run.claim_token)):
        return None
    if run is None:
        transaction.close_if_empty(owner.session_id)
        return None, 0
    wanted = run.cancel_requested_at is not None and asked_for(run.stop_reason)
    action = RecoveryAction.CANCEL if wanted else write.action
    if action is RecoveryAction.DROP_OWNER:
        return None  # the row of a run that is active cannot go without a word about the run
    transaction.connection.execute(
        update(run_attempts)
        .where(run_attempts.c.run_id == run.id, run_attempts.c.attempt == run.attempt)
        .values(ended_at=now(), outcome=LOST)
    )
    change = _change(run, write, action, transaction.stamp())
    transaction.connection.execute(update(runs).where(runs.c.id == run.id).values(**change))
    number = _tell(transaction, run, write, action, change.get("recovery") or {})
    transaction.close_if_empty(owner.session_id)
    return _STATUS[action], number


_STATUS = {
    RecoveryAction.REQUEUE: RunStatus.QUEUED,
    RecoveryAction.FAIL: RunStatus.FAILED,
    RecoveryAction.QUARANTINE: RunStatus.FAILED,
    RecoveryAction.CANCEL: RunStatus.CANCELLED,
}
_STATE = {
    RecoveryAction.REQUEUE: RecoveryState.REQUEUED,
    RecoveryAction.FAIL: RecoveryState.FAILED,
    RecoveryAction.QUARANTINE: RecoveryState.QUARANTINED,
}


def _active_run(transaction: Transaction, write: RecoveryWrite) -> Run | None:
    statement = select(*picked(runs, RUN_COLUMNS)).where(
        runs.c.session_id == write.owner.session_id, runs.c.status.in_(ACTIVE)
    )
    row = transaction.connection.execute(statement).first()
    return None if row is None else run_of(row)


def _change(run: Run, write: RecoveryWrite, action: RecoveryAction, stamp: str) -> dict[str, Any]:
    change: dict[str, Any] = {"status": _STATUS[action], "worker_id": None, "claim_token": None}
    if action is RecoveryAction.CANCEL:
        return {**change, "ended_at": now()}
    attempts = run.recovery_attempts + 1
    change.update(
        recovery_attempts=attempts,
        recovery_state=_STATE[action],
        recovery=_record(run, write, action, stamp),
    )
    if action is RecoveryAction.REQUEUE:
        cleared = (
            "started_at",
            "ended_at",
            "error_code",
            "error_message",
            "cancel_requested_at",
            "cancel_requested_by",
            "stop_reason",
        )
        change.update(dict.fromkeys(cleared))
        return {**change, "queued_reason": "recovered", "queued_at": now(), "dispatched_epoch": ""}
    message = f"its worker {write.owner.worker_id} was lost ({write.reason})"
    return {**change, "ended_at": now(), "error_code": LOST, "error_message": message}


def _record(run: Run, write: RecoveryWrite, action: RecoveryAction, stamp: str) -> dict[str, Any]:
    """What is told of the run's recoveries: the last one, the counts, and the last few one by one."""
    before = run.recovery or {}
    told = {
        "attempt": run.attempt,
        "worker": write.owner.worker_id,
        "at": stamp,
        "decision": _STATE[action].value,
        "reason": write.reason,
    }
    return {
        "manual_requeue_count": 0,
        "first_recovered_at": stamp,
        **before,
        "state": _STATE[action].value,
        "strategy": write.strategy,
        "attempts": run.recovery_attempts + 1,
        "max_attempts": write.max_attempts,
        "policy_from": dict(write.policy_from),
        "reason": write.reason,
        "last_recovered_by": write.by,
        "last_recovered_at": stamp,
        "history": [*(before.get("history") or ()), told][-HISTORY:],
    }


def _tell(
    transaction: Transaction, run: Run, write: RecoveryWrite, action: RecoveryAction, record: Mapping[str, Any]
) -> int:
    """Events and steps, and the dead letter; the number of the last event."""

    def event(kind: EventType, data: dict[str, Any]) -> int:
        return transaction.append_event(
            run.session_id, kind, run_id=run.id, attempt=run.attempt, data={"reason": write.reason, **data}
        )

    if action is RecoveryAction.CANCEL:
        by, why = run.cancel_requested_by or write.by, run.stop_reason or write.reason
        return event(EventType.RUN_CANCELLED, {"by": by, "reason": why})
    facts = {
        "strategy": write.strategy,
        "attempts": run.recovery_attempts + 1,
        "max_attempts": write.max_attempts,
        "worker_id": write.owner.worker_id,
        "by": write.by,
    }
    if action is RecoveryAction.REQUEUE:
        event(EventType.RUN_RECOVERED, facts)
        transaction.count_queued(run.session_id, run.workspace_id, 1)
        transaction.append_step(run.id, run.attempt, "system", "run.requeued", {"reason": write.reason, **facts})
        return event(EventType.RUN_QUEUED, {"position": run.position, "recovered": True})
    if action is RecoveryAction.QUARANTINE:
        event(EventType.RUN_QUARANTINED, facts)
        bury(transaction, run, code=LOST, reason=write.reason, recovery=record)
    return event(EventType.RUN_FAILED, {"error": {"code": LOST, "message": "its worker was lost"}, **facts})
