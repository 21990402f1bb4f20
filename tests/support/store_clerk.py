"""A clerk in front of a store: short words for what tests do all the time, a look behind it, and the audit of rows.

The audit states the invariants in plain SQL, independent of the code under test.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import psycopg

from oah.core.model.ids import ClaimToken, EpochId, RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import Outcome, Run, RunClass, RunError, RunStatus
from oah.core.model.session import Session, SessionState
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.errors import RequestError
from oah.ports.store import (
    Accepted,
    AfterRun,
    NewRun,
    OwnerRow,
    RecoveryAction,
    RecoveryWrite,
    RunFence,
    Settlement,
    StartClaim,
    Started,
    StartReply,
    Store,
    SubmitLimits,
)

EPOCH = EpochId("epoch-1")
LANE = Lane("default", "shell")
ACTIVE = ("running", "waiting_tool")


class Behind:
    """The same database without the store."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Rows of a statement whose parameters are question marks."""
        if self._url.startswith("sqlite"):
            with closing(sqlite3.connect(self._url.removeprefix("sqlite:///"), timeout=10)) as connection:
                rows = connection.execute(statement, arguments).fetchall()
                connection.commit()
                return rows
        with psycopg.connect(self._url, autocommit=True) as connection:
            given = (statement.replace("?", "%s"), arguments) if arguments else (statement,)
            cursor = connection.execute(*given)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def age_owner(self, session_id: str, by: timedelta) -> None:
        """Let the mark of a session's owner be older by so much."""
        if self._url.startswith("sqlite"):
            us = by // timedelta(microseconds=1)
            self.query("UPDATE session_owners SET seen_at = seen_at - ? WHERE session_id = ?", us, session_id)
        else:
            self.query("UPDATE session_owners SET seen_at = seen_at - ? WHERE session_id = ?", by, session_id)


class Clerk:
    """Short words."""

    def __init__(self, store: Store, url: str) -> None:
        self.store = store
        self.url = url
        self.behind = Behind(url)
        self._runs = count(1)
        self._tokens = count(1)

    def session(
        self, session_id: str = "s1", *, workspace: WorkspaceId = DEFAULT_WORKSPACE, lane: Lane = LANE
    ) -> SessionId:
        """A new open session."""
        session = Session(SessionId(session_id), workspace, lane, SessionState.OPEN, datetime.now(UTC))
        return self.store.create_session(session).id

    def new(self, session_id: str = "s1", run_id: str | None = None, **more: Any) -> NewRun:
        """A run to submit; ids count up."""
        run_id = run_id or f"r{next(self._runs):04d}"
        more.setdefault("workspace_id", DEFAULT_WORKSPACE)
        more.setdefault("input", f"input of {run_id}")
        return NewRun(id=RunId(run_id), session_id=SessionId(session_id), **more)

    def send(self, *runs: NewRun, limits: SubmitLimits | None = None) -> list[Accepted | RequestError]:
        """Submit them in one batch."""
        return self.store.submit(runs, limits=limits or SubmitLimits())

    def submit(self, session_id: str = "s1", run_id: str | None = None, **more: Any) -> Run:
        """Submit one that is accepted."""
        return accepted(self.send(self.new(session_id, run_id, **more))[0]).run

    def token(self) -> ClaimToken:
        """A token that was never given before."""
        return ClaimToken(f"{next(self._tokens):032x}")

    def claim(self, session_id: str = "s1", token: str | None = None, *, suspect: bool = True) -> StartClaim:
        """A claimed session."""
        return StartClaim(SessionId(session_id), ClaimToken(token) if token else self.token(), suspect)

    def try_start(self, *claims: StartClaim, worker: str = "w.1", epoch: EpochId = EPOCH) -> list[StartReply]:
        """Start them in one batch."""
        return self.store.start(WorkerId(worker), epoch, claims)

    def start(self, session_id: str = "s1", token: str | None = None, *, worker: str = "w.1") -> Started:
        """Start one that starts."""
        return started(self.try_start(self.claim(session_id, token), worker=worker)[0])

    def settle(
        self, start: Started | RunFence, status: RunStatus = RunStatus.COMPLETED, *, keep: bool = False, **more: Any
    ) -> AfterRun:
        """Settle an attempt."""
        fence = start if isinstance(start, RunFence) else fence_of(start)
        error = RunError("agent_failed", "it broke") if status is RunStatus.FAILED else None
        outcome = Outcome(status, more.pop("output", "done"), error=error)
        return self.store.settle([Settlement(fence, outcome, keep_owner=keep, **more)])[0]

    def owner(self, session_id: str = "s1") -> OwnerRow:
        """The session's owner row."""
        return self.store.owners_of([SessionId(session_id)])[0]

    def recover(self, owner: OwnerRow, action: RecoveryAction = RecoveryAction.REQUEUE, **more: Any) -> AfterRun:
        """Apply a recovery."""
        words = {"strategy": "requeue_running", "max_attempts": 3, "reason": "worker_lost", "by": "controller", **more}
        return self.store.apply_recovery([RecoveryWrite(owner, action, **words)])[0]

    def run(self, run_id: str) -> Run:
        """The row."""
        return self.store.run(RunId(run_id), None)

    def events(self, session_id: str = "s1") -> list[str]:
        """The types of its events, in order."""
        return [event.type for event in self.store.events(SessionId(session_id), after=0, limit=10_000)]

    def audit(self) -> None:
        """Every invariant that rows can show."""
        audit(self.behind)


def accepted(answer: Accepted | RequestError) -> Accepted:
    """The answer of a submit that must have been accepted."""
    assert isinstance(answer, Accepted), answer
    return answer


def started(reply: StartReply) -> Started:
    """The reply of a start that must have started."""
    assert isinstance(reply, Started), reply
    return reply


def fence_of(start: Started) -> RunFence:
    """The fence of a started run."""
    run = start.run
    assert run.claim_token is not None
    return RunFence(run.session_id, run.id, run.attempt, run.claim_token)


def audit(behind: Behind) -> None:
    """Raise AssertionError with the first broken invariant."""
    runs = behind.query(
        "SELECT id, session_id, workspace_id, status, attempt, worker_id, claim_token, started_at IS NULL,"
        " ended_at IS NULL, position, deferred FROM runs"
    )
    owners = {row[0]: row[1:] for row in behind.query("SELECT session_id, claim_token, parked FROM session_owners")}
    active = [run for run in runs if run[3] in ACTIVE]
    assert max(Counter(run[1] for run in active).values(), default=0) <= 1, "I2: two active runs in a session"
    for run in runs:
        _audit_run(run, owners)
    for session, (_, parked) in owners.items():
        there = [run[3] for run in active if run[1] == session]
        # A parked session has no active run, or one that waits without a slot.
        fits = there in ([], ["waiting_tool"]) if parked else bool(there)
        assert fits, f"owner of {session}: parked {parked}, active {there}"
    _audit_counts(behind, runs)
    _audit_events(behind)
    attempts = Counter(row[0] for row in behind.query("SELECT run_id FROM run_attempts"))
    unended = {row[0] for row in behind.query("SELECT run_id FROM run_attempts WHERE ended_at IS NULL")}
    for run in runs:
        assert attempts[run[0]] == run[4], f"{run[0]}: attempt {run[4]}, recorded {attempts[run[0]]}"
    assert unended == {run[0] for run in active}, "attempts without an end are those of active runs"


def _audit_run(run: Sequence[Any], owners: dict[str, tuple[Any, ...]]) -> None:
    run_id, session, _, status, _, worker, token, not_started, not_ended = run[:9]
    if status in ACTIVE:
        assert worker and token and not not_started and not_ended, f"active {run_id}: {run}"
        assert session in owners and owners[session][0] == token, f"I3: {run_id} runs without its owner row"
    else:
        assert worker is None and token is None, f"I3: the fence of {run_id} ({status}) is open"
        assert (status == "queued") == bool(not_ended), f"{run_id} ({status}) ended: {not not_ended}"
        assert status != "queued" or not_started, f"queued {run_id} has a start time"


def _audit_counts(behind: Behind, runs: Sequence[Sequence[Any]]) -> None:
    queued = Counter(run[1] for run in runs if run[3] == "queued")
    for session, counted in behind.query("SELECT id, queued_count FROM sessions"):
        assert counted == queued[session], f"{session} counts {counted} queued, has {queued[session]}"
    by_workspace = Counter(run[2] for run in runs if run[3] == "queued")
    kept = behind.query("SELECT workspace_id, sum(queued) FROM workspace_counters GROUP BY workspace_id")
    assert Counter({name: int(number) for name, number in kept if number}) == by_workspace, "workspace counters"
    places = Counter((run[1], run[9]) for run in runs)
    assert max(places.values(), default=1) == 1, "two runs of a session in one place"


def _audit_events(behind: Behind) -> None:
    numbers = defaultdict(list)
    for session, number in behind.query("SELECT session_id, number FROM run_events ORDER BY session_id, number"):
        numbers[session].append(number)
    for session, last in behind.query("SELECT id, event_seq FROM sessions"):
        assert numbers[session] == list(range(1, last + 1)), f"events of {session} have gaps: {numbers[session]}"


__all__ = ["EPOCH", "LANE", "Behind", "Clerk", "RunClass", "accepted", "audit", "fence_of", "started"]
