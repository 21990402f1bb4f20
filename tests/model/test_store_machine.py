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
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from oah.adapters.sql.store import open_store
from oah.core.model.ids import RunId, SessionId
from oah.core.model.run import OnBusy, OrderMode, ReadyClass, RunClass, RunStatus, StartReason
from oah.core.model.session import HoldReason
from oah.ports.store import (
    AlreadyActive,
    CancelResult,
    IsHeld,
    IsSuspect,
    NothingEligible,
    OwnerRow,
    RecoveryAction,
    RetryPlan,
    RunFence,
    Started,
)
from tests.support.store_clerk import EPOCH, Clerk, accepted, fence_of

SESSIONS = ["s1", "s2"]
CLASSES = [RunClass.INTERACTIVE, RunClass.SUBAGENT, RunClass.BACKGROUND]
HOUR = timedelta(hours=1)
MAX_RETRIES = 2
NAMES = st.sampled_from(["s1", "s1", "s1", "s2"])
STEPS = [
    *("submit", "start", "start", "start", "settle", "settle", "release", "look", "look", "recover", "recover"),
    *("cancel", "promote", "requeue", "mark", "drop_owner", "hold_or_unhold", "retry", "retry", "backoff_ends"),
    "interrupt",
]
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
    voided: bool = False
    token: str | None = None
    order: OrderMode = OrderMode.STRICT
    failures: int = 0


@dataclass
class ModelSession:
    """A session: its runs, who owns it, how often its owner was marked, and its holds."""

    runs: list[ModelRun] = field(default_factory=list)
    owner: str | None = None
    parked: bool = False
    paused: bool = False
    backoff: str | None = None
    """The run for whose retry the session waits."""
    places: int = 0
    fronts: int = 0

    @property
    def held(self) -> bool:
        return self.paused or self.backoff is not None

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

    template: Path

    @initialize(classes=st.lists(st.sampled_from(CLASSES), min_size=3, max_size=3))
    def open(self, classes: list[RunClass]) -> None:
        shared = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
        self.directory = Path(tempfile.mkdtemp(prefix="oah-model-", dir=shared))
        shutil.copy(self.template, self.directory / "oah.db")
        url = f"sqlite:///{self.directory / 'oah.db'}"
        self.clerk = Clerk(open_store(url), url)
        self.model = {name: ModelSession() for name in SESSIONS}
        self.by_id: dict[str, ModelRun] = {}
        self.runs: list[str] = []
        self.fences: list[RunFence] = []
        self.owners: list[OwnerRow] = []
        for name in SESSIONS:
            self.clerk.session(name)
        for run_class in classes:
            self.submit("s1", run_class, deferred=False)

    def teardown(self) -> None:
        if hasattr(self, "clerk"):
            self.clerk.audit()
            self.clerk.store.close()
            shutil.rmtree(self.directory)

    @rule(
        what=st.sampled_from(STEPS),
        name=NAMES,
        which=st.integers(0, 2),
        yes=st.booleans(),
        seldom=SELDOM,
        run_class=st.sampled_from(CLASSES),
        action=st.sampled_from(RecoveryAction),
    )
    def step(
        self, what: str, name: str, which: int, yes: bool, seldom: bool, run_class: RunClass, action: RecoveryAction
    ) -> None:
        """One rule for all: the kinds of steps stay mixed in every example. ``which`` prefers what is recent."""
        run_id = self.runs[-1 - which * which] if which * which < len(self.runs) else self.runs[0]
        fence = self.fences[-1 - which] if which < len(self.fences) else None
        owner = self.owners[-1 - which] if which < len(self.owners) else None
        match what:
            case "submit":
                self.submit(name, run_class, deferred=seldom, order=OrderMode.STRICT if yes else OrderMode.SKIP_FAILED)
            case "interrupt":
                self.interrupt(name, run_class, OnBusy.ROLLBACK if yes else OnBusy.INTERRUPT)
            case "start":
                self.start(name, no_place=seldom, own=yes)
            case "settle" if fence:
                self.settle(fence, keep=yes, status=RunStatus.FAILED if seldom else RunStatus.COMPLETED)
            case "retry" if fence:
                self.retry(fence, keep=yes)
            case "release" if fence:
                self.release(fence)
            case "recover" if owner:
                self.recover(owner, action if yes else RecoveryAction.REQUEUE, marked=seldom)
            case "cancel":
                self.cancel(run_id)
            case "promote":
                self.promote(run_id)
            case "requeue":
                self.requeue(run_id)
            case "look" | "mark" | "drop_owner" | "backoff_ends":
                getattr(self, what)(name)
            case "hold_or_unhold":
                self.hold_or_unhold(name, held=seldom)

    def submit(self, name: str, run_class: RunClass, *, deferred: bool, order: OrderMode = OrderMode.STRICT) -> None:
        run = self.clerk.submit(name, run_class=run_class, delay=HOUR if deferred else None, order_mode=order)
        session = self.model[name]
        made = ModelRun(run.id, name, run_class, session.next_place(), deferred=deferred, order=order)
        assert run.position == made.place
        session.runs.append(made)
        self.by_id[run.id] = made
        self.runs.append(run.id)

    def interrupt(self, name: str, run_class: RunClass, on_busy: OnBusy) -> None:
        session, active = self.model[name], self.model[name].active
        answer = accepted(self.clerk.send(self.clerk.new(name, run_class=run_class, on_busy=on_busy))[0])
        assert (answer.stopped and answer.stopped.run_id) == (active and active.id)
        if active is not None:
            active.cancelled = True
            active.voided = active.voided or on_busy is OnBusy.ROLLBACK
        made = ModelRun(answer.run.id, name, run_class, -session.fronts)
        session.fronts += 1
        assert answer.run.position == made.place
        session.runs.append(made)
        assert session.eligible[0] is made
        self.by_id[made.id] = made
        self.runs.append(made.id)

    def start(self, name: str, *, no_place: bool, own: bool) -> None:
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
            self.fences.append(fence_of(reply))

    def fence_holds(self, fence: RunFence) -> ModelRun | None:
        """I3."""
        run = self.by_id[fence.run_id]
        same = (run.attempt, run.token) == (fence.attempt, fence.token)
        return run if same and run.status.active else None

    def settle(self, fence: RunFence, *, keep: bool, status: RunStatus) -> None:
        after = self.clerk.settle(fence, status, keep=keep)
        run, session = self.fence_holds(fence), self.model[fence.session_id]
        assert after.applied == (run is not None)
        if run is not None:
            assert after.voided == run.voided
            run.status, run.token = status, None
            run.failures += status is RunStatus.FAILED
            session.owner, session.parked = (fence.token, True) if keep else (None, False)
        assert after.waiting == session.waiting

    def retry(self, fence: RunFence, *, keep: bool) -> None:
        plan = RetryPlan(HOUR, MAX_RETRIES)
        after = self.clerk.settle(fence, RunStatus.FAILED, keep=keep, retry=plan)
        run, session = self.fence_holds(fence), self.model[fence.session_id]
        assert after.applied == (run is not None)
        if run is not None:
            again = not run.cancelled and run.failures < MAX_RETRIES
            run.status, run.token = RunStatus.QUEUED if again else RunStatus.FAILED, None
            run.failures += 1
            session.owner, session.parked = (fence.token, True) if keep else (None, False)
            if again:
                run.reason, run.deferred = StartReason.RETRIED, run.order is OrderMode.SKIP_FAILED
                session.backoff = None if run.deferred else run.id
            assert after.status is run.status
            assert (after.due is not None) is (again and run.deferred)
            assert (HoldReason.BACKOFF in after.held) is (session.backoff is not None)
        assert after.waiting == session.waiting

    def backoff_ends(self, name: str) -> None:
        session = self.model[name]
        if session.backoff is not None:
            self.clerk.store.hold_session(SessionId(name), None, HoldReason.BACKOFF, until_in=timedelta(0))
            session.backoff = None
        (found,) = self.clerk.store.promote([], [SessionId(name)], EPOCH)
        assert bool(found.holds) is session.held
        assert found.ready_class == session.waiting

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

    def cancel(self, run_id: str) -> None:
        result = self.clerk.store.cancel(RunId(run_id), None, by="model").result
        run = self.by_id[run_id]
        if run.status is RunStatus.QUEUED:
            assert result is CancelResult.REMOVED
            run.status = RunStatus.CANCELLED
            session = self.model[run.session]
            session.backoff = None if session.backoff == run_id else session.backoff
        elif run.status.active:
            assert result is CancelResult.SIGNALLED
            run.cancelled = True
        else:
            assert result is CancelResult.TOO_LATE

    def promote(self, run_id: str) -> None:
        run = self.by_id[run_id]
        session = self.model[run.session]
        if run.status is RunStatus.QUEUED and run.deferred:
            run.deferred, run.place = False, session.next_place()
        (found,) = self.clerk.store.promote([RunId(run_id)], [], EPOCH)
        assert found.ready_class == session.waiting

    def requeue(self, run_id: str) -> None:
        run = self.by_id[run_id]
        if not run.status.terminal:
            return
        self.clerk.store.requeue(RunId(run_id), None, by="model")
        run.status, run.deferred, run.cancelled, run.voided = RunStatus.QUEUED, False, False, False
        run.recoveries, run.failures, run.reason = 0, 0, StartReason.REQUEUED
        self.model[run.session].backoff = None
        run.place = self.model[run.session].next_place()

    def look(self, name: str) -> None:
        found = self.clerk.store.owners_of([SessionId(name)])
        session = self.model[name]
        assert [(owner.token, owner.parked) for owner in found] == (
            [(session.owner, session.parked)] if session.owner else []
        )
        self.owners += found

    def mark(self, name: str) -> None:
        session = self.model[name]
        if session.owner:
            self.clerk.behind.age_owner(name, timedelta(seconds=1))
            table = [(SessionId(name), self.clerk.owner(name).token)]
            worker = self.clerk.owner(name).worker_id
            assert self.clerk.store.mark(worker, table, timeout=timedelta(seconds=5)).confirmed == {name}

    def recover(self, owner: OwnerRow, action: RecoveryAction, *, marked: bool) -> None:
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

    def drop_owner(self, name: str) -> None:
        session = self.model[name]
        if session.owner:
            row = self.clerk.owner(name)
            after = self.clerk.store.drop_owner(row.worker_id, [(row.session_id, row.token)])[0]
            assert after.applied == session.parked
            if after.applied:
                session.owner, session.parked = None, False

    def hold_or_unhold(self, name: str, *, held: bool) -> None:
        if held:
            self.clerk.store.hold_session(SessionId(name), None, HoldReason.PAUSED, until_in=None)
        else:
            self.clerk.store.unhold_session(SessionId(name), None, HoldReason.PAUSED)
        self.model[name].paused = held

    @precondition(lambda self: hasattr(self, "clerk"))
    @invariant()
    def rows_and_model_agree(self) -> None:
        rows = self.clerk.behind.query(
            "SELECT id, status, deferred, attempt, recovery_attempts, failed_attempts, position, claim_token, voided"
            " FROM runs"
        )
        assert {row[0]: row[1:] for row in rows} == {
            run.id: (run.status, int(run.deferred and run.status is RunStatus.QUEUED), run.attempt, run.recoveries,
                     run.failures, run.place, run.token, int(run.voided))
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
