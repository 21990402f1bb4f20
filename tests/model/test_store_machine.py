"""A small model of the store beside the real one: every step of any order keeps I2, I3 and I4.

The model knows a session as a list of places, a run as its status, and who holds what; it is written from the words of
the protocol, not from the statements.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from oah.adapters.sql.store import open_store
from oah.core.model.ids import RunId, SessionId
from oah.core.model.run import ReadyClass, RunClass, RunStatus, StartReason
from oah.core.model.session import HoldReason
from oah.ports.store import (
    AlreadyActive,
    CancelResult,
    IsHeld,
    IsSuspect,
    NothingEligible,
    OwnerRow,
    RecoveryAction,
    RunFence,
    Started,
)
from tests.support.store_clerk import EPOCH, Clerk, fence_of

SESSIONS = ["s1", "s2"]
CLASSES = [RunClass.INTERACTIVE, RunClass.SUBAGENT, RunClass.BACKGROUND]
HOUR = timedelta(hours=1)
NAMES = st.sampled_from(["s1", "s1", "s1", "s2"])
SELDOM = st.sampled_from([False, False, False, False, True])


@dataclass
class ModelRun:
    """A run as the model knows it."""

    id: str
    session: str
    run_class: RunClass
    place: float
    status: RunStatus = RunStatus.QUEUED
    deferred: bool = False
    attempt: int = 0
    recoveries: int = 0
    reason: StartReason = StartReason.FIRST
    cancelled: bool = False
    token: str | None = None


@dataclass
class ModelSession:
    """A session: its runs, who owns it, how often its owner was marked, and its holds."""

    runs: list[ModelRun] = field(default_factory=list)
    owner: str | None = None
    parked: bool = False
    held: bool = False
    places: int = 0

    @property
    def active(self) -> ModelRun | None:
        found = [run for run in self.runs if run.status.active]
        assert len(found) <= 1
        return found[0] if found else None

    @property
    def eligible(self) -> list[ModelRun]:
        waiting = [run for run in self.runs if run.status is RunStatus.QUEUED and not run.deferred]
        return sorted(waiting, key=lambda run: run.place)

    @property
    def waiting(self) -> ReadyClass | None:
        eligible = self.eligible
        if not eligible:
            return None
        if eligible[0].recoveries:
            return ReadyClass.SUSPECT
        return ReadyClass(min((run.run_class for run in eligible), key=CLASSES.index).value)

    def next_place(self) -> int:
        self.places += 1
        return self.places


class StoreMachine(RuleBasedStateMachine):
    """Random lives of two sessions."""

    runs = Bundle("runs")
    fences = Bundle("fences")
    owners = Bundle("owners")

    template: Path

    @initialize(target=runs, classes=st.lists(st.sampled_from(CLASSES), min_size=3, max_size=3))
    def open(self, classes: list[RunClass]):  # type: ignore[no-untyped-def]
        shared = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
        self.directory = Path(tempfile.mkdtemp(prefix="oah-model-", dir=shared))
        shutil.copy(self.template, self.directory / "oah.db")
        url = f"sqlite:///{self.directory / 'oah.db'}"
        self.clerk = Clerk(open_store(url), url)
        self.model = {name: ModelSession() for name in SESSIONS}
        self.by_id: dict[str, ModelRun] = {}
        for name in SESSIONS:
            self.clerk.session(name)
        return multiple(*(self.submit_one("s1", run_class, deferred=False) for run_class in classes))

    def teardown(self) -> None:
        if hasattr(self, "clerk"):
            self.clerk.audit()
            self.clerk.store.close()
            shutil.rmtree(self.directory)

    @rule(target=runs, name=NAMES, run_class=st.sampled_from(CLASSES), deferred=SELDOM)
    def submit(self, name: str, run_class: RunClass, deferred: bool) -> str:
        return self.submit_one(name, run_class, deferred=deferred)

    def submit_one(self, name: str, run_class: RunClass, *, deferred: bool) -> str:
        run = self.clerk.submit(name, run_class=run_class, delay=HOUR if deferred else None)
        session = self.model[name]
        made = ModelRun(run.id, name, run_class, session.next_place(), deferred=deferred)
        assert run.position == made.place
        session.runs.append(made)
        self.by_id[run.id] = made
        return run.id

    @rule(target=fences, name=NAMES, no_place=SELDOM, own=st.booleans())
    def start(self, name: str, no_place: bool, own: bool):  # type: ignore[no-untyped-def]
        session = self.model[name]
        token = session.owner if own and session.owner else None
        claim = self.clerk.claim(name, token, suspect=not no_place)
        reply = self.clerk.try_start(claim)[0]
        first = session.eligible[0] if session.eligible else None
        if session.active or (session.owner and session.owner != claim.token):
            assert isinstance(reply, AlreadyActive)
            assert (reply.token, reply.parked) == (session.owner, session.parked)
        elif session.held:
            assert isinstance(reply, IsHeld)
        elif first is None:
            assert isinstance(reply, NothingEligible)
        elif first.recoveries and no_place:
            assert isinstance(reply, IsSuspect)
        else:
            assert isinstance(reply, Started)
            assert (reply.run.id, reply.reason) == (first.id, first.reason), "I4: the first eligible one"
            first.status, first.token, first.attempt = RunStatus.RUNNING, claim.token, first.attempt + 1
            assert reply.run.attempt == first.attempt
            session.owner, session.parked = claim.token, False
            return fence_of(reply)
        return multiple()

    def fence_holds(self, fence: RunFence) -> ModelRun | None:
        """I3."""
        run = self.by_id[fence.run_id]
        same = (run.attempt, run.token) == (fence.attempt, fence.token)
        return run if same and run.status.active else None

    @rule(fence=fences, keep=st.booleans(), status=st.sampled_from([RunStatus.COMPLETED, RunStatus.FAILED]))
    def settle(self, fence: RunFence, keep: bool, status: RunStatus) -> None:
        after = self.clerk.settle(fence, status, keep=keep)
        run, session = self.fence_holds(fence), self.model[fence.session_id]
        assert after.applied == (run is not None)
        if run is not None:
            run.status, run.token = status, None
            session.owner, session.parked = (fence.token, True) if keep else (None, False)
        assert after.waiting == session.waiting

    @rule(fence=fences)
    def release(self, fence: RunFence) -> None:
        after = self.clerk.store.release([fence])[0]
        run, session = self.fence_holds(fence), self.model[fence.session_id]
        assert after.applied == (run is not None)
        if run is not None:
            run.token, session.owner, session.parked = None, None, False
            run.status = RunStatus.CANCELLED if run.cancelled else RunStatus.QUEUED
            run.reason = StartReason.RELEASED
            assert after.status is run.status
        assert after.waiting == session.waiting

    @rule(run_id=runs)
    def cancel(self, run_id: str) -> None:
        result = self.clerk.store.cancel(RunId(run_id), None, by="model").result
        run = self.by_id[run_id]
        if run.status is RunStatus.QUEUED:
            assert result is CancelResult.REMOVED
            run.status = RunStatus.CANCELLED
        elif run.status.active:
            assert result is CancelResult.SIGNALLED
            run.cancelled = True
        else:
            assert result is CancelResult.TOO_LATE

    @rule(run_id=runs)
    def promote(self, run_id: str) -> None:
        run = self.by_id[run_id]
        session = self.model[run.session]
        if run.status is RunStatus.QUEUED and run.deferred:
            run.deferred, run.place = False, session.next_place()
        (found,) = self.clerk.store.promote([RunId(run_id)], [], EPOCH)
        assert found.ready_class == session.waiting

    @rule(run_id=runs)
    def requeue(self, run_id: str) -> None:
        run = self.by_id[run_id]
        if not run.status.terminal:
            return
        self.clerk.store.requeue(RunId(run_id), None, by="model")
        run.status, run.deferred, run.cancelled = RunStatus.QUEUED, False, False
        run.recoveries, run.reason = 0, StartReason.REQUEUED
        run.place = self.model[run.session].next_place()

    @rule(target=owners, name=NAMES)
    def look(self, name: str):  # type: ignore[no-untyped-def]
        found = self.clerk.store.owners_of([SessionId(name)])
        session = self.model[name]
        assert [(owner.token, owner.parked) for owner in found] == (
            [(session.owner, session.parked)] if session.owner else []
        )
        return multiple(*found)

    @rule(name=NAMES)
    def mark(self, name: str) -> None:
        session = self.model[name]
        if session.owner:
            self.clerk.behind.age_owner(name, timedelta(seconds=1))
            table = [(SessionId(name), self.clerk.owner(name).token)]
            worker = self.clerk.owner(name).worker_id
            assert self.clerk.store.mark(worker, table, timeout=timedelta(seconds=5)).confirmed == {name}

    @rule(owner=consumes(owners), action=st.sampled_from(RecoveryAction), marked=st.booleans())
    def recover(self, owner: OwnerRow, action: RecoveryAction, marked: bool) -> None:
        session = self.model[owner.session_id]
        if marked:
            self.mark(owner.session_id)
        now = self.clerk.store.owners_of([owner.session_id])
        run = session.active
        same_run = (run and (run.id, run.attempt)) == (owner.run_id and (owner.run_id, owner.attempt))
        unmarked = bool(now) and (now[0].token, now[0].seen_at) == (owner.token, owner.seen_at)
        cancelled = run is not None and run.cancelled
        refused = run is not None and action is RecoveryAction.DROP_OWNER and not cancelled
        after = self.clerk.recover(owner, action)
        assert after.applied == (unmarked and same_run and not refused)
        if after.applied:
            session.owner, session.parked = None, False
            if run is not None:
                run.token = None
                if cancelled or action is RecoveryAction.CANCEL:
                    run.status = RunStatus.CANCELLED
                else:
                    run.recoveries += 1
                    requeued = action is RecoveryAction.REQUEUE
                    run.status = RunStatus.QUEUED if requeued else RunStatus.FAILED
                    run.reason = StartReason.RECOVERED
        assert after.waiting == session.waiting

    @rule(name=NAMES)
    def drop_owner(self, name: str) -> None:
        session = self.model[name]
        if session.owner:
            row = self.clerk.owner(name)
            after = self.clerk.store.drop_owner(row.worker_id, [(row.session_id, row.token)])[0]
            assert after.applied == session.parked
            if after.applied:
                session.owner, session.parked = None, False

    @rule(name=NAMES, held=SELDOM)
    def hold_or_unhold(self, name: str, held: bool) -> None:
        if held:
            self.clerk.store.hold_session(SessionId(name), None, HoldReason.PAUSED, until_in=None)
        else:
            self.clerk.store.unhold_session(SessionId(name), None, HoldReason.PAUSED)
        self.model[name].held = held

    @precondition(lambda self: hasattr(self, "clerk"))
    @invariant()
    def rows_and_model_agree(self) -> None:
        rows = self.clerk.behind.query(
            "SELECT id, status, deferred, attempt, recovery_attempts, position, claim_token FROM runs"
        )
        assert {row[0]: row[1:] for row in rows} == {
            run.id: (run.status, int(run.deferred and run.status is RunStatus.QUEUED), run.attempt, run.recoveries,
                     run.place, run.token)
            for run in self.by_id.values()
        }  # fmt: skip


def test_any_order_of_steps_keeps_the_invariants(sqlite_template: Path) -> None:
    StoreMachine.template = sqlite_template
    # Without shrinking: it takes longer than a test may. The steps of the failure are printed in any case.
    chosen = settings(
        max_examples=60,
        stateful_step_count=40,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(StoreMachine, settings=chosen)
