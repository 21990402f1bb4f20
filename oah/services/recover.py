"""Recover: decide about the runs of owners that are gone, in SQL, then tell the broker.

Whether an owner is gone was judged before (``orphans.py``), or is known: a starting worker that holds the lock of its
name's directory has killed what earlier incarnations left. One member's error never stops the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from oah.core.model.ids import WorkerId
from oah.core.policy import recovery
from oah.core.policy.recovery import Cancel, DropOwner, Fail, Quarantine, Requeue
from oah.errors import EpochMismatch, LeaseError, OahError, Unavailable
from oah.ports.epochs import EpochSource
from oah.ports.store import AfterRun, OwnerRow, RecoveryAction, RecoveryStore, RecoveryWrite
from oah.ports.telemetry import Telemetry
from oah.services.decisions import Decisions
from oah.services.place import DeadLease, Places

_ACTIONS: dict[type[recovery.Decision], RecoveryAction] = {
    Requeue: RecoveryAction.REQUEUE,
    Fail: RecoveryAction.FAIL,
    Quarantine: RecoveryAction.QUARANTINE,
    Cancel: RecoveryAction.CANCEL,
    DropOwner: RecoveryAction.DROP_OWNER,
}

_COUNTED = {
    RecoveryAction.REQUEUE: "requeued",
    RecoveryAction.FAIL: "failed",
    RecoveryAction.QUARANTINE: "quarantined",
    RecoveryAction.CANCEL: "cancelled",
    RecoveryAction.DROP_OWNER: "freed",
}


@dataclass(frozen=True, slots=True)
class Recovered:
    """What became of one owner row. ``applied`` False: somebody else was faster, or the owner is alive after all."""

    owner: OwnerRow
    action: RecoveryAction
    reason: str
    applied: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RecoverOwners:
    """One batch of orphans. Raises Unavailable: repeat it, the compare-and-set makes that harmless.

    ``rules``: the deployment's; ``profiles``: what the profiles that this process knows say, by name.
    """

    store: RecoveryStore
    places: Places
    epochs: EpochSource
    telemetry: Telemetry
    rules: recovery.Rules
    decisions: Decisions
    profiles: Mapping[str, recovery.Override] = field(default_factory=dict)

    def __call__(self, orphans: Sequence[OwnerRow], *, cause: str, by: str) -> list[Recovered]:
        """Decide, commit, tell the broker. ``cause``: ``worker_lost``, ``worker_restarted``."""
        if not orphans:
            return []
        writes = [self._decide(owner, cause=cause, by=by) for owner in orphans]
        results = [self._result(write, reply) for write, reply in zip(writes, self._apply(writes), strict=True)]
        applied = [DeadLease(each.owner.session_id, each.owner.token) for each in results if each.applied]
        self._tell(applied)
        return results

    def known_dead(self, workers: Sequence[WorkerId], *, by: str) -> list[Recovered]:
        """All owner rows of incarnations whose trees the caller has killed and verified: orphans at once."""
        if not workers:
            return []
        return self(self.store.owners_by_worker(workers), cause="worker_restarted", by=by)

    def _decide(self, owner: OwnerRow, *, cause: str, by: str) -> RecoveryWrite:
        view = recovery.View(owner.run_status, owner.recovery_attempts, owner.cancel_requested)
        resolved = recovery.resolve(
            self.rules,
            run=owner.run_policy,
            profile=self.profiles.get(owner.lane.profile, recovery.SAYS_NOTHING),
            workspace=owner.workspace_policy,
        )
        decision = recovery.decide(view, resolved.rules)
        return RecoveryWrite(
            owner=owner,
            action=_ACTIONS[type(decision)],
            strategy=str(resolved.rules.strategy),
            max_attempts=resolved.rules.max_attempts,
            reason=_reason(decision, cause),
            by=by,
            policy_from=resolved.policy_from,
        )

    def _apply(self, writes: Sequence[RecoveryWrite]) -> list[AfterRun | OahError]:
        try:
            return list(self.store.apply_recovery(writes))
        except Unavailable:
            raise
        except OahError:
            return [self._apply_one(write) for write in writes]

    def _apply_one(self, write: RecoveryWrite) -> AfterRun | OahError:
        try:
            return self.store.apply_recovery([write])[0]
        except Unavailable:
            raise
        except OahError as error:
            return error

    def _result(self, write: RecoveryWrite, reply: AfterRun | OahError) -> Recovered:
        owner = write.owner
        if isinstance(reply, OahError):
            self.decisions.note("recovery", owner.session_id, "error", reply.message, run_id=owner.run_id)
            return Recovered(owner, write.action, write.reason, applied=False, error=reply.message)
        if not reply.applied:
            self.telemetry.count("oah_writes_refused_total", write="recover")
            return Recovered(owner, write.action, write.reason, applied=False)
        self.telemetry.count("oah_recoveries_total", decision=_COUNTED[write.action])
        if write.action is RecoveryAction.QUARANTINE:
            self.telemetry.count("oah_runs_quarantined_total")
        self.decisions.note(
            "recovery",
            owner.session_id,
            _COUNTED[write.action],
            write.reason,
            run_id=owner.run_id,
            worker_id=owner.worker_id,
        )
        return Recovered(owner, write.action, write.reason, applied=True)

    def _tell(self, dead: Sequence[DeadLease]) -> None:
        """SQL has decided. What the broker misses now it hears from the sweep, rehydrate or reconcile."""
        try:
            try:
                self.places.hand_back(self.epochs.current(), dead)
            except EpochMismatch:
                self.places.hand_back(self.epochs.refresh(), dead)
        except (Unavailable, LeaseError):
            self.telemetry.count("oah_redis_errors_total", kind="other")


def _reason(decision: recovery.Decision, cause: str) -> str:
    """Why the run is where it is: what the policy found special about it, else what happened to its owner."""
    match decision:
        case Quarantine(reason=reason) | Cancel(reason=reason):
            return reason
        case Requeue() | Fail() | DropOwner():
            return cause
