"""The worker's own table: which sessions it believes to own, and by which confirmations.

The table is what renewals and marks name, and where deadlines come from: CLOCK_BOOTTIME before sending the later of
the confirmations (renew or mark) that named this session and token, + lease - margin. It is the only state that
claimer, slots, settler and witnesses share; every method is one short critical section.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from oah.core.model.ids import ClaimToken, SessionId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass, StopReason
from oah.ports.broker import Claimed, Held
from oah.ports.store import RunFence, Started, Stop


class Phase(StrEnum):
    """How far a session of this worker is."""

    CLAIMED = "claimed"
    RUNNING = "running"
    ENDING = "ending"
    """The agent is gone or going; what SQL says of the row is the settler's business."""
    PARKED = "parked"
    TAKEN = "taken"
    """Parked and claimed: its next run is being started, nobody ends its agent meanwhile."""
    WAITING = "waiting"
    """Parked with an active run that waits for an answer."""
    RESUMING = "resuming"
    """Waiting and claimed: it was called, because there may be an answer."""

    @property
    def parked(self) -> bool:
        """Whether Redis has it as parked."""
        return self in (Phase.PARKED, Phase.WAITING)


_UNTAKEN = {Phase.TAKEN: Phase.PARKED, Phase.RESUMING: Phase.WAITING}


@dataclass(slots=True)
class Entry:
    """One session. Moments are CLOCK_BOOTTIME seconds of the sending of a confirmed call."""

    session_id: SessionId
    token: ClaimToken
    phase: Phase
    ready_class: ReadyClass
    redis_at: float
    sql_at: float = 0.0
    lane: Lane | None = None
    workspace_id: WorkspaceId | None = None
    agent_id: str | None = None
    fence: RunFence | None = None
    suspect: bool = False
    doubted: bool = False
    """Redis has said "lost": the next mark decides."""
    cancel_requested: bool = False
    kill_after: timedelta | None = None
    """How long after the cancel its agent is killed, whatever the ladder says."""
    stop_reason: StopReason | None = None
    heard_at: float | None = None
    """When SQL last heard from the run itself: a step, a progress call, or that it waits."""

    @property
    def confirmed_at(self) -> float:
        """The later confirmation."""
        return max(self.redis_at, self.sql_at)


class Table:
    """Thread safe."""

    def __init__(self, *, lease: timedelta, margin: timedelta) -> None:
        self._life = (lease - margin).total_seconds()
        self._lock = threading.Lock()
        self._entries: dict[SessionId, Entry] = {}
        self._counter = 0
        self._pending: set[ClaimToken] = set()
        self._left = 0

    # --- claims ---

    def request(self, request: ClaimToken) -> int:
        """Enter a claim before it is sent; its number."""
        with self._lock:
            self._counter += 1
            self._pending.add(request)
            return self._counter

    def answered(self, request: ClaimToken, claimed: Iterable[Claimed], *, sent_at: float) -> list[Claimed]:
        """The claim was answered: its sessions are ours, and listed from now on. Returns those that may be started.

        A parked session whose agent is being ended is not among them (its new token comes after the tree's end), nor
        is one that runs already.
        """
        with self._lock:
            self._pending.discard(request)
            ours = [self._take(claim, sent_at) for claim in claimed]
            return [claim for claim in ours if claim is not None]

    def forget_request(self, request: ClaimToken) -> None:
        """The claim is given up (epoch, rebuilding): what it may have taken goes back with the next renewal, whose
        number is therefore a later one."""
        with self._lock:
            self._pending.discard(request)
            self._counter += 1
            self._left += 1

    # --- runs ---

    def started(self, started: Started, token: ClaimToken, *, begun_at: float) -> Entry:
        """SQL says that the run is ours, which also is a confirmation by the mark."""
        run = started.run
        with self._lock:
            entry = self._entries.get(run.session_id)
            if entry is None or entry.token != token:
                entry = Entry(run.session_id, token, Phase.RUNNING, ReadyClass(run.run_class), 0.0)
                self._entries[run.session_id] = entry
            entry.phase = Phase.RUNNING
            entry.sql_at = max(entry.sql_at, begun_at)
            entry.lane = started.session.lane
            entry.workspace_id = run.workspace_id
            entry.suspect = run.recovery_attempts > 0
            entry.fence = RunFence(run.session_id, run.id, run.attempt, token)
            entry.cancel_requested = run.cancel_requested_at is not None
            entry.stop_reason, entry.heard_at, entry.kill_after = run.stop_reason, None, None
            return entry

    def agent(self, session_id: SessionId, token: ClaimToken, agent_id: str | None) -> None:
        """Which tree the deadline of this session is for."""
        with self._lock:
            entry = self._mine(session_id, token)
            if entry is not None:
                entry.agent_id = agent_id

    def ending(self, session_id: SessionId, token: ClaimToken) -> bool:
        """The turn is over, or a parked agent is being ended; False when the session is no longer ours."""
        with self._lock:
            entry = self._mine(session_id, token)
            if entry is None:
                return False
            entry.phase = Phase.ENDING
            return True

    def untaken(self, session_id: SessionId, token: ClaimToken) -> None:
        """Nothing was started, and Redis has it parked again."""
        with self._lock:
            entry = self._mine(session_id, token)
            if entry is not None and entry.phase in _UNTAKEN:
                entry.phase = _UNTAKEN[entry.phase]

    def unpark(self, session_id: SessionId, token: ClaimToken) -> bool:
        """Its warm agent is to be ended; False: not now, it has been claimed for its next run."""
        with self._lock:
            entry = self._mine(session_id, token)
            if entry is None:
                return True
            if entry.phase not in (Phase.PARKED, Phase.ENDING):
                return False
            entry.phase = Phase.ENDING
            return True

    def parked(self, session_id: SessionId, token: ClaimToken) -> None:
        """The run is settled, the agent stays warm."""
        with self._lock:
            entry = self._mine(session_id, token)
            if entry is not None:
                entry.phase, entry.fence, entry.suspect = Phase.PARKED, None, False

    def waits(self, fence: RunFence) -> Entry | None:
        """Its run waits without a slot; None: it is no longer ours. A suspect is none while it does nothing."""
        with self._lock:
            entry = self._mine(fence.session_id, fence.token)
            if entry is None or entry.fence != fence:
                return None
            entry.phase, entry.suspect = Phase.WAITING, False
            return entry

    def lends(self, fence: RunFence) -> bool:
        """Its run waits for its children, in its turn; False: it is over, or no longer ours."""
        with self._lock:
            entry = self._mine(fence.session_id, fence.token)
            if entry is None or entry.fence != fence or entry.phase is not Phase.RUNNING:
                return False
            entry.phase, entry.suspect = Phase.WAITING, False
            return True

    def resumed(self, fence: RunFence, *, suspect: bool) -> Entry | None:
        """Its run goes on in a slot; None: it is no longer ours."""
        with self._lock:
            entry = self._mine(fence.session_id, fence.token)
            if entry is None or entry.fence != fence:
                return None
            entry.phase, entry.suspect = Phase.RUNNING, suspect
            return entry

    def resuming(self, session_id: SessionId, token: ClaimToken) -> RunFence | None:
        """The run that waits, of a session that was claimed because it may go on."""
        with self._lock:
            entry = self._mine(session_id, token)
            return entry.fence if entry is not None and entry.phase is Phase.RESUMING else None

    def drop(self, session_id: SessionId, token: ClaimToken) -> Entry | None:
        """The session is no longer ours (freed, released, lost). Should Redis think otherwise, the next renewal gives
        it back, so its number is a later one."""
        with self._lock:
            entry = self._mine(session_id, token)
            if entry is None:
                return None
            self._left += 1
            self._counter += 1
            return self._entries.pop(session_id)

    def get(self, session_id: SessionId, token: ClaimToken) -> Entry | None:
        """The entry, if it is still ours under this token."""
        with self._lock:
            return self._mine(session_id, token)

    def knows(self, session_id: SessionId) -> bool:
        """Whether the session is listed, under whatever token."""
        with self._lock:
            return session_id in self._entries

    def by_run(self, fence: RunFence) -> Entry | None:
        """The entry whose active run this fence names."""
        with self._lock:
            entry = self._mine(fence.session_id, fence.token)
            return entry if entry is not None and entry.fence == fence else None

    def stop(self, stop: Stop) -> bool:
        """Somebody wants the run stopped. True: that is news, and the run is ours."""
        with self._lock:
            entry = self._mine(stop.fence.session_id, stop.fence.token)
            if entry is None or entry.fence != stop.fence or entry.stop_reason is not None:
                return False
            entry.cancel_requested, entry.stop_reason = True, stop.reason
            return True

    def hurry(self, fence: RunFence, kill_after: timedelta) -> None:
        """Somebody wants the run stopped, and its agent killed should that take longer."""
        with self._lock:
            entry = self._mine(fence.session_id, fence.token)
            if entry is not None and entry.fence == fence:
                entry.cancel_requested, entry.kill_after = True, kill_after

    # --- witnesses ---

    @property
    def left(self) -> int:
        """How often something was given up. Redis may not know it yet: a renewal after the last time finds it."""
        with self._lock:
            return self._left

    def renew_view(self) -> tuple[list[Held], int, list[ClaimToken]]:
        """What a renewal lists, the number of the last claim, and the requests without an answer."""
        with self._lock:
            held = [Held(e.session_id, e.token) for e in self._entries.values()]
            return held, self._counter, list(self._pending)

    def mark_view(self) -> list[tuple[SessionId, ClaimToken]]:
        """Sessions with an owner row."""
        with self._lock:
            return [(e.session_id, e.token) for e in self._entries.values() if e.phase is not Phase.CLAIMED]

    def renewed(self, sessions: Iterable[Held], *, sent_at: float) -> None:
        """Redis has extended these."""
        with self._lock:
            for held in sessions:
                entry = self._mine(held.session_id, held.token)
                if entry is not None:
                    entry.redis_at, entry.doubted = max(entry.redis_at, sent_at), False

    def doubt(self, sessions: Iterable[Held]) -> None:
        """Redis says that these are lost: the mark decides about those with an owner row, the others go."""
        with self._lock:
            for held in sessions:
                entry = self._mine(held.session_id, held.token)
                if entry is None:
                    continue
                if entry.phase is Phase.CLAIMED:
                    del self._entries[held.session_id]
                    self._left += 1
                else:
                    entry.doubted = True

    def heard(self, ages: Mapping[SessionId, timedelta], *, begun_at: float) -> None:
        """How long ago SQL heard from these runs. Before ``marked``, which makes it count."""
        with self._lock:
            for session_id, age in ages.items():
                entry = self._entries.get(session_id)
                if entry is not None:
                    at = begun_at - age.total_seconds()
                    entry.heard_at = at if entry.heard_at is None else max(entry.heard_at, at)

    def marked(
        self, view: Iterable[tuple[SessionId, ClaimToken]], confirmed: frozenset[SessionId], *, begun_at: float
    ) -> tuple[list[Entry], list[Entry]]:
        """Apply a mark. Returns the doubted that SQL confirms (restore them) and those it does not know (lost)."""
        back: list[Entry] = []
        lost: list[Entry] = []
        with self._lock:
            for session_id, token in view:
                entry = self._mine(session_id, token)
                if entry is None or entry.phase is Phase.CLAIMED:
                    continue
                if session_id in confirmed:
                    entry.sql_at = max(entry.sql_at, begun_at)
                    if entry.doubted:
                        back.append(entry)
                elif entry.sql_at < begun_at and entry.phase is not Phase.ENDING:
                    lost.append(entry)
        return back, lost

    def deadlines(self) -> dict[str, float]:
        """Deadline by agent id, CLOCK_BOOTTIME seconds."""
        with self._lock:
            return {e.agent_id: e.confirmed_at + self._life for e in self._entries.values() if e.agent_id is not None}

    def deadline(self, session_id: SessionId, token: ClaimToken) -> float | None:
        """Until when this session is ours for certain; None: it is not."""
        with self._lock:
            entry = self._mine(session_id, token)
            return entry.confirmed_at + self._life if entry is not None else None

    # --- figures ---

    @property
    def suspects(self) -> int:
        """Runs with a recovery behind them that this worker holds (at most one)."""
        with self._lock:
            return sum(1 for e in self._entries.values() if e.suspect)

    def doubtful(self) -> bool:
        """Whether the mark has something to decide at once."""
        with self._lock:
            return any(e.doubted for e in self._entries.values())

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    def _take(self, claim: Claimed, sent_at: float) -> Claimed | None:
        entry = self._entries.get(claim.session_id)
        if entry is None or (entry.token != claim.token and entry.phase is Phase.CLAIMED):
            self._entries[claim.session_id] = Entry(
                claim.session_id, claim.token, Phase.CLAIMED, claim.ready_class, sent_at
            )
            return replace(claim, parked=False)  # whatever agent it had, it is not ours
        if entry.token != claim.token:
            # Redis forgot whose it is. What we own goes on; the start says so, unless SQL knows no owner any more.
            return replace(claim, parked=False)
        entry.redis_at = max(entry.redis_at, sent_at)
        if entry.phase.parked:
            entry.phase = Phase.TAKEN if entry.phase is Phase.PARKED else Phase.RESUMING
        elif entry.phase is not Phase.CLAIMED:
            return None
        return claim

    def _mine(self, session_id: SessionId, token: ClaimToken) -> Entry | None:
        entry = self._entries.get(session_id)
        return entry if entry is not None and entry.token == token else None
