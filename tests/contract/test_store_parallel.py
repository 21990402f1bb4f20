"""Many threads and several stores at once: no deadlock, no lost update, every invariant at the end."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from oah.adapters.sql.store import open_store
from oah.core.model.ids import ClaimToken, RunId, SessionId, WorkerId
from oah.core.model.run import Outcome, RunStatus
from oah.ports.store import OutputChunk, RecoveryAction, RecoveryWrite, RunFence, Settlement, StartClaim, Started
from tests.support.store_clerk import EPOCH, Behind, Clerk, accepted, fence_of

SESSIONS = [SessionId(f"t{n}") for n in range(12)]


class Player:
    """One worker, one API and one recoverer in a thread, all at random; remembers what it was told."""

    def __init__(self, clerk: Clerk, number: int) -> None:
        self.clerk = clerk
        self.store = clerk.store
        self.worker = WorkerId(f"w{number}.1")
        self.chance = random.Random(number)
        self.fences: dict[SessionId, RunFence] = {}
        self.submitted: list[RunId] = []
        self.completed: list[RunId] = []
        self.serial = 0

    def play(self, moves: int) -> None:
        """So many moves."""
        moves_there_are: list[Callable[[], None]] = [
            self.submit,
            self.submit,
            self.start,
            self.start,
            self.settle,
            self.settle,
            self.release,
            self.cancel,
            self.output,
            self.mark,
            self.recover,
            self.read,
        ]
        for _ in range(moves):
            self.chance.choice(moves_there_are)()

    def some(self) -> list[SessionId]:
        return self.chance.sample(SESSIONS, self.chance.randint(1, 5))  # in any order: batches cross

    def submit(self) -> None:
        batch = []
        for session in self.some():
            self.serial += 1
            batch.append(self.clerk.new(session, f"{self.worker}-{self.serial:04}"))
        self.submitted += [accepted(answer).run.id for answer in self.clerk.send(*batch)]

    def start(self) -> None:
        claims = []
        for session in self.some():
            if session not in self.fences:
                self.serial += 1
                claims.append(StartClaim(session, ClaimToken(f"{self.worker}-{self.serial}")))
        for reply in self.store.start(self.worker, EPOCH, claims):
            if isinstance(reply, Started):
                self.fences[reply.run.session_id] = fence_of(reply)

    def settle(self) -> None:
        batch = [self.fences.pop(session) for session in self.chance.sample(sorted(self.fences), len(self.fences))]
        done = self.store.settle([Settlement(fence, Outcome(RunStatus.COMPLETED, "x")) for fence in batch])
        self.completed += [fence.run_id for fence, after in zip(batch, done, strict=True) if after.applied]

    def release(self) -> None:
        batch = [self.fences.pop(session) for session in sorted(self.fences)[:2]]
        self.store.release(batch)

    def cancel(self) -> None:
        if self.submitted:
            self.store.cancel(self.chance.choice(self.submitted), None, by="player")

    def output(self) -> None:
        self.store.output([OutputChunk(fence, "out") for fence in self.fences.values()])

    def mark(self) -> None:
        table = [(session, fence.token) for session, fence in self.fences.items()]
        self.store.mark(self.worker, table, timeout=timedelta(seconds=30))

    def recover(self) -> None:
        owners = self.store.owners_of(self.some())
        if self.chance.random() < 0.3:
            action = self.chance.choice([RecoveryAction.REQUEUE, RecoveryAction.FAIL])
            self.store.apply_recovery([RecoveryWrite(owner, action, "x", 3, "y", "z") for owner in owners])

    def read(self) -> None:
        self.store.queued_sessions(EPOCH, after=None, limit=5)
        self.store.unheard(EPOCH, older_than=timedelta(0), limit=5)
        self.store.heard(self.submitted[-5:], EPOCH)


def test_sixteen_threads_at_once_keep_every_invariant(clerk: Clerk) -> None:
    for session in SESSIONS:
        clerk.session(session)
    other = open_store(clerk.url)
    clerks = [clerk, Clerk(other, clerk.url)]
    players = [Player(clerks[n % 2], n) for n in range(16)]
    with ThreadPoolExecutor(16) as pool:
        for future in [pool.submit(player.play, 25) for player in players]:
            future.result()
    other.close()
    clerk.audit()
    for player in players:
        for run_id in player.submitted:
            clerk.run(run_id)  # I1: what was accepted is there
    completed = [run_id for player in players for run_id in player.completed]
    assert completed, "the game reached the end of some runs"
    assert len(completed) == len(set(completed)), "an outcome was taken twice"
    assert {clerk.run(run_id).status for run_id in completed} == {RunStatus.COMPLETED}
    _starts_are_in_order(clerk.behind)


def _starts_are_in_order(behind: Behind) -> None:
    """I4: a run starts for the first time after every earlier one of its session that starts at all."""
    rows = behind.query(
        "SELECT r.session_id, r.position, e.number FROM runs r JOIN run_events e ON e.run_id = r.id"
        " WHERE e.type = 'run.started' AND e.attempt = 1 ORDER BY r.session_id, r.position"
    )
    last: dict[str, int] = {}
    for session, _, number in rows:
        assert number > last.get(session, 0), f"{session} started a later run first"
        last[session] = number


def test_crossing_batches_do_not_deadlock(clerk: Clerk) -> None:
    """Two processes' batches over the same sessions in opposite orders, again and again."""
    for session in SESSIONS:
        clerk.session(session)
    other = open_store(clerk.url)
    barrier = threading.Barrier(2)

    def rounds(store: object, who: str, order: int) -> int:
        sessions, mine = SESSIONS[::order], 0
        for n in range(15):
            barrier.wait(30)
            Clerk(store, clerk.url).send(*(clerk.new(s, f"{who}-{s}-{n}") for s in sessions))  # type: ignore[arg-type]
            claims = [StartClaim(s, ClaimToken(f"{who}-{s}-{n}")) for s in sessions]
            replies = store.start(WorkerId(who), EPOCH, claims)  # type: ignore[attr-defined]
            fences = [fence_of(reply) for reply in replies if isinstance(reply, Started)]
            mine += len(fences)
            store.mark(WorkerId(who), [(f.session_id, f.token) for f in fences], timeout=timedelta(seconds=30))  # type: ignore[attr-defined]
            store.settle([Settlement(fence, Outcome(RunStatus.COMPLETED)) for fence in fences])  # type: ignore[attr-defined]
        return mine

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(rounds, clerk.store, "w1.1", 1)
        two = pool.submit(rounds, other, "w2.1", -1)
        assert one.result(60) + two.result(60) >= 15 * len(SESSIONS)
    other.close()
    clerk.audit()
