"""Accepting runs: one transaction a batch, an answer a member."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.child_submits import Parents
from oah.adapters.sql.columns import MICROSECOND
from oah.adapters.sql.rates import Rates
from oah.adapters.sql.rows import run_of
from oah.adapters.sql.statements import (
    ActiveRow,
    CommandRow,
    Inserted,
    KeyRow,
    RunRow,
    Statements,
    SubmitSession,
)
from oah.adapters.sql.tables import CLASS_RANKS
from oah.adapters.sql.text import dumped, require_sound
from oah.core.model.event import EventType
from oah.core.model.ids import EpochId, RunId, WorkerId
from oah.core.model.run import OnBusy, ReadyClass, Run, RunStatus, StopReason
from oah.core.model.session import SessionState
from oah.core.policy.waiting import WaitCode
from oah.errors import Conflict, Forbidden, InvalidRequest, LimitReached, NotFound, RequestError
from oah.ports.commands import CommandKind
from oah.ports.store import Accepted, NewRun, Stopped, SubmitLimits

NEEDS_ACTIVE = (OnBusy.INTERRUPT, OnBusy.ROLLBACK, OnBusy.STEER)
MILLISECOND = timedelta(milliseconds=1)


class Member(NamedTuple):
    """A run to accept whose texts are known to be storable."""

    new: NewRun
    metadata: str
    retry: str | None = None

    @property
    def key(self) -> tuple[str, str] | None:
        """Its idempotency key, within its workspace."""
        if self.new.idempotency_key is None:
            return None
        return (self.new.workspace_id, self.new.idempotency_key)


def checked(new: NewRun) -> Member | RequestError:
    """The member, or why the database would refuse it."""
    try:
        require_sound(
            input=new.input,
            run_id=new.id,
            session_id=new.session_id,
            workspace_id=new.workspace_id,
            parent_run_id=new.parent_run_id,
            idempotency_key=new.idempotency_key,
            request_hash=new.request_hash,
            by=new.by,
        )
        for name, length in (
            ("delay", new.delay),
            ("timeout", new.timeout),
            ("start_timeout", new.start_timeout),
            ("idle_timeout", new.idle_timeout),
            ("step_timeout", new.step_timeout),
        ):
            if length is not None and length < timedelta(0):
                raise InvalidRequest(f"{name} is negative")
        for name, at in (("due_at", new.due_at), ("deadline_at", new.deadline_at)):
            if at is not None and at.tzinfo is None:
                raise InvalidRequest(f"{name} has no time zone")
        retry = None if new.retry is None else dumped("retry", new.retry)
        return Member(new, dumped("metadata", new.metadata), retry)
    except RequestError as error:
        return error


class Batch:
    """One transaction's worth of submits: decides member by member, in order, against the locked sessions."""

    def __init__(self, sql: Statements, members: Sequence[Member], limits: SubmitLimits) -> None:
        self._sql = sql
        self._members = members
        self._limits = limits
        parents = {new.parent.session_id for new, *_ in members if new.parent is not None}
        self._sessions = sql.lock_for_submit(sorted({member.new.session_id for member in members} | parents))
        self._in_workspace = {s.session.workspace_id: s.queued_in_workspace for s in self._sessions.values()}
        self._answers: list[Accepted | RequestError | None] = [None] * len(members)
        self._rows: dict[int, RunRow] = {}
        self._stopped: dict[int, Stopped] = {}
        self._rates = Rates(sql, ())
        self._parents = Parents(sql, ())

    def run(self) -> list[Accepted | RequestError]:
        """Decide and write."""
        firsts = self._first_of_keys()
        self._replay(firsts)
        busy = self._busy()
        self._rates = self._rates_of_open()
        self._parents = Parents(self._sql, (member.new.parent for member in self._open_members()))
        for index, member in enumerate(self._members):
            if self._answers[index] is None and firsts.get(member.key or ("", ""), index) == index:
                self._decide(index, member, busy)
        self._write()
        self._give_back(firsts)
        return [self._answered(index, member, firsts) for index, member in enumerate(self._members)]

    def _session(self, member: Member) -> SubmitSession | None:
        found = self._sessions.get(member.new.session_id)
        return found if found is not None and found.session.workspace_id == member.new.workspace_id else None

    def _first_of_keys(self) -> dict[tuple[str, str], int]:
        """The first member of each key; members without a session here are refused at once."""
        firsts: dict[tuple[str, str], int] = {}
        for index, member in enumerate(self._members):
            if self._session(member) is None:
                self._answers[index] = NotFound(f"no session {member.new.session_id}")
            elif member.key is not None:
                firsts.setdefault(member.key, index)
        return firsts

    def _replay(self, firsts: dict[tuple[str, str], int]) -> None:
        """Take the keys; answer those that somebody has taken before."""
        if not firsts:
            return
        keys = [
            KeyRow(key[0], key[1], self._members[index].new.request_hash or "", self._members[index].new.id)
            for key, index in sorted(firsts.items())
        ]
        taken = self._sql.take_keys(keys)
        runs = self._sql.read_runs([row.run_id for row in taken.values()]) if taken else {}
        steered = self._steered_before(taken, runs)
        for key, row in taken.items():
            index = firsts[key]
            earlier = runs.get(row.run_id)
            new = self._members[index].new
            if earlier is None or row.request_hash != (new.request_hash or "") or earlier[1] != new.session_id:
                self._answers[index] = _key_conflict(key[1])
            else:
                accepted = self._accepted(run_of(earlier), None, replayed=True)
                steer = row.run_id if row.run_id in steered else None
                self._answers[index] = replace(accepted, steer=None if steer is None else RunId(steer))

    def _steered_before(self, taken: Mapping[tuple[str, str], KeyRow], runs: dict[str, Sequence[Any]]) -> set[str]:
        """Requests that were said into a run instead of becoming one: ``runs`` gets those runs under their ids."""
        missing = [row.run_id for row in taken.values() if row.run_id not in runs]
        into = self._sql.steered(missing) if missing else {}
        live = self._sql.read_runs(list(into.values())) if into else {}
        runs.update({request: live[run] for request, run in into.items() if run in live})
        return set(into)

    def _rates_of_open(self) -> Rates:
        """Of those that are still to be decided: what was accepted before counts no second time."""
        open_ = {member.new.session_id for member in self._open_members()}
        return Rates(self._sql, [self._sessions[session] for session in sorted(open_)])

    def _open_members(self) -> list[Member]:
        return [member for member, answer in zip(self._members, self._answers, strict=True) if answer is None]

    def _busy(self) -> set[str]:
        asked = sorted({member.new.session_id for member in self._members if member.new.on_busy is OnBusy.REJECT})
        return self._sql.active_sessions(asked) if asked else set()

    def _decide(self, index: int, member: Member, busy: set[str]) -> None:
        state = self._session(member)
        assert state is not None  # refused before
        new = member.new
        active = self._sql.active_run(new.session_id) if new.on_busy in NEEDS_ACTIVE else None
        steers = new.on_busy is OnBusy.STEER and active is not None and not active.stopping
        refusal = _not_below(new, active) or self._refusal(new, state, busy, queues=not steers)
        if refusal is not None:
            self._answers[index] = refusal
            return
        if steers and active is not None:
            self._answers[index] = _wants_answer(active) if active.waiting else self._steer(new, active)
            return
        if new.on_busy.stops and active is not None:
            self._stopped[index] = self._stop(new, active, state)
        state.number += 1
        position = state.front if new.on_busy.stops else state.next_position
        before = 0 if new.on_busy.stops else state.queued
        data: dict[str, Any] = {"class": new.run_class, "position": position, "queued_before": before}
        if (why := _waits(new, state, before)) is not None:
            data["wait_reason"] = {"code": why}
        if index in self._stopped:
            data["stops"] = self._stopped[index].run_id
        self._rows[index] = RunRow(
            id=new.id,
            session_id=new.session_id,
            workspace_id=new.workspace_id,
            parent_run_id=new.parent_run_id,
            position=position,
            number=state.number,
            run_class=new.run_class,
            class_rank=CLASS_RANKS[new.run_class],
            input=new.input,
            metadata=member.metadata,
            delay_us=None if new.delay is None else new.delay // MICROSECOND,
            due_at=new.due_at,
            timeout_ms=None if new.timeout is None else new.timeout // MILLISECOND,
            deadline_at=new.deadline_at,
            max_retries=new.max_retries,
            order_mode=new.order_mode,
            start_timeout_us=None if new.start_timeout is None else new.start_timeout // MICROSECOND,
            idle_timeout_ms=None if new.idle_timeout is None else new.idle_timeout // MILLISECOND,
            step_timeout_ms=None if new.step_timeout is None else new.step_timeout // MILLISECOND,
            retry=member.retry,
            recovery_strategy=new.recovery_strategy,
            recovery_max_attempts=new.recovery_max_attempts,
            data=json.dumps(data),
            priority=new.priority,
            front=new.on_busy.stops,
        )
        if new.on_busy.stops:
            state.front -= 1
        else:
            state.next_position += 1
        state.queued += 1
        self._in_workspace[new.workspace_id] += 1

    def _stop(self, new: NewRun, active: ActiveRow, state: SubmitSession) -> Stopped:
        """Ask the active run to stop for this one; a rollback voids what it did, whoever asked it first."""
        void = new.on_busy is OnBusy.ROLLBACK
        reason = StopReason.ROLLBACK if void else StopReason.INTERRUPT
        self._sql.stop_run(active.run_id, new.by, reason, void=void)
        if void and not active.voided:
            state.number += 1
            data = json.dumps({"by": new.by, "for": new.id})
            self._sql.tell(new.session_id, state.number, active.run_id, active.attempt, EventType.RUN_VOIDED, data)
            self._sql.tell_webhooks([(new.session_id, state.number)])
        return Stopped(RunId(active.run_id), None if active.worker_id is None else WorkerId(active.worker_id))

    def _steer(self, new: NewRun, active: ActiveRow) -> Accepted:
        """The text goes to the active run's worker, under the id that a run of its own would have had."""
        data = json.dumps({"text": new.input}, ensure_ascii=False)
        worker = active.worker_id or ""
        command = CommandRow(worker, CommandKind.STEER, new.by, active.run_id, active.attempt, data, new.id)
        self._sql.put_command(command)
        row = self._sql.read_runs([active.run_id])[active.run_id]
        return replace(self._accepted(run_of(row), None), steer=new.id)

    def _refusal(self, new: NewRun, state: SubmitSession, busy: set[str], *, queues: bool) -> RequestError | None:
        if state.session.state is not SessionState.OPEN:
            return Conflict(f"session {new.session_id} is {state.session.state}", code="session_closed")
        if new.on_busy is OnBusy.REJECT and (state.queued or new.session_id in busy):
            return Conflict(f"session {new.session_id} has work", code="session_busy")
        if not queues:
            return None
        if state.queued >= self._limits.queued_per_session:
            return LimitReached(f"session {new.session_id} has {state.queued} queued runs", hint="wait for some to end")
        cap = self._limits.queued_per_workspace if state.workspace_cap is None else state.workspace_cap
        if self._in_workspace[new.workspace_id] >= cap:
            return LimitReached(f"workspace {new.workspace_id} has {cap} queued runs", code="quota_exceeded")
        refused = None if new.parent is None else self._parents.refuse(new.parent)
        return refused or self._rates.refuse(new.workspace_id)

    def _write(self) -> None:
        if not self._rows:
            return
        self._rates.write()
        inserted = self._sql.insert_runs(list(self._rows.values()))
        for index, row in self._rows.items():
            made = inserted[row.id]
            run = _run(self._members[index].new, row, made)
            accepted = self._accepted(run, made.due_in, number=row.number)
            self._answers[index] = replace(accepted, stopped=self._stopped.get(index))

    def _give_back(self, firsts: dict[tuple[str, str], int]) -> None:
        """Keys whose first run was refused here are free again; one that somebody took before stays theirs."""
        unused = [
            KeyRow(key[0], key[1], "", self._members[index].new.id)
            for key, index in firsts.items()
            if isinstance(self._answers[index], RequestError) and not _is_key_conflict(self._answers[index])
        ]
        if unused:
            self._sql.drop_keys(unused)

    def _answered(self, index: int, member: Member, firsts: dict[tuple[str, str], int]) -> Accepted | RequestError:
        """The member's answer; a later one with a key of this batch repeats the first of it."""
        answer = self._answers[index]
        if answer is not None:
            return answer
        assert member.key is not None  # only such members are left without an answer
        first = firsts[member.key]
        earlier, original = self._answers[first], self._members[first].new
        assert earlier is not None  # the first of a key was decided
        same = (original.request_hash, original.session_id) == (member.new.request_hash, member.new.session_id)
        if isinstance(earlier, RequestError):
            return earlier
        return replace(earlier, replayed=True) if same else _key_conflict(member.key[1])

    def _accepted(self, run: Run, due_in: timedelta | None, *, number: int = 0, replayed: bool = False) -> Accepted:
        lane = self._sessions[run.session_id].session.lane
        return Accepted(run, lane, ReadyClass(run.run_class.value), due_in, number, replayed)


def submit_within(sql: Statements, new: NewRun, limits: SubmitLimits) -> Accepted | RequestError:
    """One run in a transaction of others. What the database refuses of it is raised."""
    member = checked(new)
    return Batch(sql, [member], limits).run()[0] if isinstance(member, Member) else member


class Submits(Aggregate):
    """``submit`` and ``heard``."""

    def submit(self, runs: Sequence[NewRun], *, limits: SubmitLimits) -> list[Accepted | RequestError]:
        """One transaction. Where the database refuses the batch for what a member contains, each gets its own."""
        members = [checked(new) for new in runs]
        good = [member for member in members if isinstance(member, Member)]
        answers = iter(self._submitted(good, limits))
        return [next(answers) if isinstance(member, Member) else member for member in members]

    def _submitted(self, members: Sequence[Member], limits: SubmitLimits) -> list[Accepted | RequestError]:
        if not members:
            return []
        try:
            with self._database.hot() as sql:
                answers = Batch(sql, members, limits).run()
        except RequestError as error:
            if len(members) == 1:
                return [error]
            return [self._submitted([member], limits)[0] for member in members]
        return answers

    def heard(self, runs: Sequence[RunId], epoch: EpochId) -> None:
        """Mark what the broker has heard of; skips what somebody is changing."""
        if runs:
            with self._database.hot() as sql:
                sql.heard(sorted(set(runs)), epoch)


def _run(new: NewRun, row: RunRow, made: Inserted) -> Run:
    return Run(
        id=new.id,
        session_id=new.session_id,
        workspace_id=new.workspace_id,
        position=row.position,
        run_class=new.run_class,
        status=RunStatus.QUEUED,
        input=new.input,
        created_at=made.created_at,
        queued_at=made.created_at,
        deferred=made.due_in is not None,
        due_at=made.due_at,
        max_retries=new.max_retries,
        timeout=new.timeout,
        deadline_at=new.deadline_at,
        parent_run_id=new.parent_run_id,
        metadata=dict(new.metadata),
        priority=new.priority,
        order_mode=new.order_mode,
        start_by=made.start_by,
        idle_timeout=new.idle_timeout,
        step_timeout=new.step_timeout,
        retry=new.retry,
        recovery_strategy=new.recovery_strategy,
        recovery_max_attempts=new.recovery_max_attempts,
    )


def _waits(new: NewRun, state: SubmitSession, before: int) -> WaitCode | None:
    """Why it will not run at once, as far as the submit knows; who asks for the run later is told all."""
    if new.delay is not None or new.due_at is not None:
        return WaitCode.DELAYED
    if state.session.holds:
        return WaitCode.SESSION_HELD
    return WaitCode.BEHIND_RUN if before else None


def _wants_answer(active: ActiveRow) -> Conflict:
    return Conflict(
        f"run {active.run_id} waits for an answer", code="run_waiting", hint=f"oah run input {active.run_id} TEXT"
    )


def _not_below(new: NewRun, active: ActiveRow | None) -> Forbidden | None:
    """An agent stops no run in a session that it has opened but its own child."""
    if new.parent is None or not new.on_busy.stops or active is None or active.parent_run_id == new.parent.run_id:
        return None
    return Forbidden("what runs there is none of the run's children", code="not_its_child", hint="enqueue it")


def _key_conflict(key: str) -> Conflict:
    return Conflict(f"the idempotency key '{key}' was used for another request", code="idempotency_conflict")


def _is_key_conflict(answer: object) -> bool:
    return isinstance(answer, Conflict) and answer.code == "idempotency_conflict"
