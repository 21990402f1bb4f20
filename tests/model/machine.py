"""The protocol as a state machine: any order of any steps, with lost replies, crashes, flushes and old snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oah.core.model.ids import SessionId
from oah.core.model.run import OrderMode
from oah.errors import LeaseError, Unavailable
from oah.services.cancel import cancel
from tests.model.world import LEASE, SECOND, SimWorker, World

workers = st.sampled_from(["w1", "w2"])
leaders = st.sampled_from([0, 1])
indexes = st.integers(0, 2)
few = st.integers(0, 7).map(lambda each: each == 0)
"""Now and then."""

INTERLUDES = ("mark", "renew", "settle", "submit", "recover")
BETWEEN = ("leases", "apply_recovery", "owners_of", "queued_sessions_of", "recover", "restore", "ensure", "free")
DUTIES = ("epoch", "sweep", "audit", "look_again", "reconcile", "relay", "promote")


class Protocol(RuleBasedStateMachine):
    """Subclasses say where the stores are: ``make``."""

    make: Callable[[], World]

    @initialize()
    def begin(self) -> None:
        self.world = self.make()
        self.world.lead(0, "epoch")
        self.world.advance(LEASE / SECOND + 0.1)

    # --- users ---

    @rule(index=indexes, heard=few.map(lambda each: not each), order=st.sampled_from(OrderMode))
    def submit(self, index: int, heard: bool, order: OrderMode) -> None:
        self.world.submit(self.world.sessions[index], heard=heard, order=order)

    @rule(index=indexes, delay=st.sampled_from([1.0, 4.0]), heard=st.booleans())
    def submit_later(self, index: int, delay: float, heard: bool) -> None:
        self.world.submit(self.world.sessions[index], delay=delay, heard=heard)

    @rule(pick=st.integers(0, 30))
    def cancel(self, pick: int) -> None:
        world = self.world
        if world.accepted:
            run = list(world.accepted)[pick % len(world.accepted)]
            cancel(world.store, world.broker, world.store.current_epoch(), run, None, by="test")

    # --- workers ---

    @rule(name=workers, lost=few)
    def claim(self, name: str, lost: bool) -> None:
        self.world.workers[name].claim(lost=lost)

    @rule(name=workers, in_doubt=few)
    def start(self, name: str, in_doubt: bool) -> None:
        self.world.workers[name].start(in_doubt=in_doubt)

    @rule(name=workers)
    def take(self, name: str) -> None:
        self.world.workers[name].claim()
        self.world.workers[name].start()

    @rule(name=workers, pick=indexes, park=st.booleans(), fails=st.booleans(), free_lost=few, in_doubt=few)
    def settle(self, name: str, pick: int, park: bool, fails: bool, free_lost: bool, in_doubt: bool) -> None:
        worker = self.world.workers[name]
        session = _pick(worker, "running", pick)
        if session is not None:
            worker.settle(session, park=park, fails=fails, free_lost=free_lost, in_doubt=in_doubt)

    @rule(name=workers, pick=indexes)
    def release(self, name: str, pick: int) -> None:
        worker = self.world.workers[name]
        session = _pick(worker, "running", pick)
        if session is not None:
            worker.release(session)

    @rule(name=workers, pick=indexes)
    def end_parked(self, name: str, pick: int) -> None:
        worker = self.world.workers[name]
        session = _pick(worker, "parked", pick)
        if session is not None:
            worker.end_parked(session)

    @rule(name=workers, lost=few)
    def renew(self, name: str, lost: bool) -> None:
        self.world.workers[name].renew(lost=lost)

    @rule(name=workers, lost=few)
    def mark(self, name: str, lost: bool) -> None:
        self.world.workers[name].mark(lost=lost)

    @rule(name=workers, known_dead=st.booleans())
    def kill(self, name: str, known_dead: bool) -> None:
        self.world.kill(name, known_dead=known_dead)

    # --- time and trouble ---

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.1, 4.0, 6.5]))
    def advance(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule()
    def a_good_period(self) -> None:
        """What mostly happens: everybody confirms, a second passes, the leader looks."""
        for worker in self.world.workers.values():
            worker.renew()
            worker.mark()
        self.world.advance(1.0)
        self.world.lead(0)

    @rule(name=workers, witness=st.sampled_from(["renew", "mark", "neither"]), steps=st.sampled_from([3, 6, 8]))
    def a_bad_period(self, name: str, witness: str, steps: int) -> None:
        """One worker loses one store, or both; the others go on, and take what becomes free."""
        world = self.world
        other = world.workers["w1" if name == "w2" else "w2"]
        world.workers[name].claim()
        world.workers[name].start()
        for _ in range(steps):
            world.advance(0.9)
            if witness != "neither":
                getattr(world.workers[name], witness)()
            other.renew()
            other.mark()
            world.lead(0, "epoch", "sweep", "audit")
            other.claim()
            other.start()
            world.check()

    @rule(sure=few)
    def flush(self, sure: bool) -> None:
        if sure:
            self.world.flush()

    @rule()
    def remember(self) -> None:
        self.world.remember()

    @precondition(lambda self: self.world.snapshots)
    @rule(sure=few)
    def bring_back(self, sure: bool) -> None:
        if sure:
            self.world.bring_back()

    # --- leaders ---

    @rule(number=leaders)
    def lead(self, number: int) -> None:
        self.world.lead(number)

    @rule(number=leaders, duty=st.sampled_from(DUTIES))
    def one_duty(self, number: int, duty: str) -> None:
        self.world.lead(number, duty)

    @rule(number=leaders, duty=st.sampled_from(DUTIES), call=st.sampled_from(BETWEEN), executed=st.booleans())
    def duty_in_trouble(self, number: int, duty: str, call: str, executed: bool) -> None:
        leader = self.world.leaders[number]
        for port in (leader.store, leader.broker):
            (port.loses if executed else port.fails).add(call)
        self.world.lead(number, duty)

    @rule(
        number=leaders,
        duty=st.sampled_from(DUTIES),
        call=st.sampled_from(BETWEEN),
        what=st.sampled_from(INTERLUDES),
        name=workers,
        pick=indexes,
        before=st.sampled_from([0.0, 2.0, 6.5]),
        after=st.sampled_from([0.0, 2.1, 4.0]),
    )
    def duty_with_interlude(
        self, number: int, duty: str, call: str, what: str, name: str, pick: int, before: float, after: float
    ) -> None:
        """A leader that stalls between two of its calls, while the others go on."""
        leader = self.world.leaders[number]

        def interlude() -> None:
            leader.store.before.clear()
            leader.broker.before.clear()
            self.world.advance(before)
            self._interlude(what, name, pick, 1 - number)
            self.world.advance(after)

        leader.store.before[call] = interlude
        leader.broker.before[call] = interlude
        self.world.lead(number, duty)

    def _interlude(self, what: str, name: str, pick: int, other: int) -> None:
        worker = self.world.workers[name]
        match what:
            case "mark":
                worker.mark()
            case "renew":
                worker.renew()
            case "submit":
                self.world.submit(self.world.sessions[pick])
            case "recover":
                self.world.lead(other, "sweep", "audit")
                worker.claim()
                worker.start()
            case "settle":
                session = _pick(worker, "running", pick)
                if session is not None:
                    worker.settle(session)

    # --- what must hold ---

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                _quiet(self.world)
                _drain(self.world)
            finally:
                self.close()

    def close(self) -> None:
        """Give the stores back."""


def _pick(worker: SimWorker, phase: str, pick: int) -> SessionId | None:
    found = [session for session, entry in worker.entries.items() if entry.phase == phase]
    return found[pick % len(found)] if found else None


def _quiet(world: World) -> None:
    """Everybody confirms, nobody takes new work: after two laps every session has its place (I11)."""
    for _ in range(10):
        for worker in world.workers.values():
            worker.pending = None
            _try(worker.renew)
            _try(worker.mark)
        world.lead(0)
        world.advance(1.0)
        world.check()
    for worker in world.workers.values():
        _try(worker.renew)
        _try(worker.mark)
    world.lead(0, "epoch", "look_again")
    world.check_places()


def _drain(world: World) -> None:
    """A healthy pool finishes everything: nothing was lost, nothing is stuck (I1, I6)."""
    for _ in range(60):
        for worker in world.workers.values():
            for act in (worker.renew, worker.mark, worker.claim, worker.start):
                _try(act)
            for phase, end in (("running", worker.settle), ("parked", worker.end_parked)):
                for session in [s for s, e in worker.entries.items() if e.phase == phase]:
                    end(session)
        world.check()
        world.lead(0)
        world.advance(1.0)
        if not world.sql.rows("SELECT 1 FROM runs WHERE status IN ('queued', 'running', 'waiting_tool')"):
            break
    stuck = world.sql.rows(
        "SELECT id, session_id, status, deferred FROM runs WHERE status IN ('queued', 'running', 'waiting_tool')"
    )
    assert not stuck, (stuck, world.redis.snapshot())
    assert not world.sql.rows("SELECT * FROM session_owners"), "owner rows without an owner"


def _try(act: Callable[[], Any]) -> None:
    try:
        act()
    except (Unavailable, LeaseError):
        pass
