"""A whole deployment in one thread: simulated workers, two leaders, a clock that the test moves, stores that lie.

Workers follow the rules of the protocol with the product's services and keep their own deadlines; what lives on them is
a flag that the deadman takes down. Leaders are the product's. Replies get lost after the call was executed, or calls
before it; whatever happens between two calls of a leader can be put there by a test.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from oah.adapters.redis import keys
from oah.adapters.system.ids import SystemIds
from oah.controller.duties import Rota
from oah.controller.process import ControllerContext, Services, create_services
from oah.controller.rules import ControllerRules
from oah.core.model.ids import ClaimToken, EpochId, RunId, SessionId, WorkerId
from oah.core.model.lane import Lane
from oah.core.model.run import OrderMode, Outcome, ReadyClass, RunError, RunStatus
from oah.core.model.session import Place, Session, SessionState
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.core.policy import claim_order, recovery
from oah.errors import EpochMismatch, LeaseError, Unavailable
from oah.ports.broker import Broker, Claimed, ClaimRequest, Held, LeaseView, Renewal, RenewReply, Restore
from oah.ports.store import (
    Accepted,
    NewRun,
    QueuedSession,
    RetryPlan,
    RunFence,
    Settlement,
    StartClaim,
    Started,
    Store,
    SubmitLimits,
)
from oah.ports.telemetry import NullTelemetry
from oah.services import submit
from oah.services.claim import ClaimSessions
from oah.services.decisions import Decisions
from oah.services.epoch import EpochKeeper
from oah.services.host_bound import HostBound
from oah.services.settle import Ended, SettleRuns
from oah.services.start import StartRuns
from tests.support.broker_audit import audit

LANE = Lane("default", "shell")
SECOND = timedelta(seconds=10)
"""What the world calls a second, in the time of servers: what a busy machine takes between two steps is little
beside it."""
LEASE = 6 * SECOND
BACKOFF = 3 * SECOND
MAX_RETRIES = 2
GONE = (Unavailable, LeaseError)


class Lying:
    """A port whose calls can fail before or after they were executed, or be preceded by something else."""

    def __init__(self, inner: Any, world: World) -> None:
        self._inner = inner
        self._world = world
        self.before: dict[str, Callable[[], None]] = {}
        self.fails: set[str] = set()
        self.loses: set[str] = set()
        self.step = 0.0
        """Seconds that this server's clock has jumped."""

    def now(self) -> float:
        """The servers' clocks go with the world's."""
        return float(self._call("now")) + self._world.shift + self.step

    def heal(self) -> None:
        """No more lies."""
        self.before.clear()
        self.fails.clear()
        self.loses.clear()

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name)

    def _call(self, name: str, *args: Any, **kw: Any) -> Any:
        first = self.before.pop(name, None)
        if first is not None:
            first()
        if name in self.fails:
            self.fails.discard(name)
            raise Unavailable(f"{name} was not executed")
        answer = getattr(self._inner, name)(*args, **kw)
        if name in self.loses:
            self.loses.discard(name)
            raise Unavailable(f"the answer of {name} was lost")
        return answer


@dataclass
class Entry:
    """A session of a worker. ``confirmed``: when the later confirmation was sent. ``agent``: its tree lives."""

    claimed: Claimed
    confirmed: float
    phase: str = "claimed"
    fence: RunFence | None = None
    agent: bool = False


@dataclass
class SimWorker:
    """One incarnation."""

    world: World
    name: str
    id: WorkerId = field(init=False)
    epochs: EpochKeeper = field(init=False)
    entries: dict[SessionId, Entry] = field(default_factory=dict)
    pending: ClaimRequest | None = None
    counter: int = 0
    lanes: tuple[Lane, ...] = (LANE,)

    def __post_init__(self) -> None:
        world = self.world
        self.id = WorkerId(f"{self.name}.{world.ids.nonce()}")
        self.epochs = world.keeper()
        parts = (world.store, world.broker, self.epochs, NullTelemetry())
        self._claim = ClaimSessions(world.broker, self.epochs, NullTelemetry())
        self._start = StartRuns(*parts, world.lease, HostBound(world.store, world.broker, world.lease))
        self._settle = SettleRuns(*parts)

    def claim(self, *, want: int = 2, lost: bool = False) -> None:
        """Ask, or ask again what was never answered."""
        world = self.world
        if self.pending is None:
            self.counter += 1
            order = claim_order.order(claim_order.View(self.lanes, 9), claim_order.Rules(), counter=self.counter)
            request = ClaimToken(world.ids.nonce())
            self.pending = ClaimRequest(self.id, request, world.lease, self.counter, want, order)
        sent = world.clock.boottime()
        try:
            reply = self._claim(self.pending)
        except LeaseError:
            self.pending = None
            return
        if lost:
            return
        self.pending = None
        for claimed in reply.sessions:
            known = self.entries.get(claimed.session_id)
            if claimed.parked and known is not None and known.claimed.token == claimed.token:
                known.claimed, known.phase = claimed, "called"
                known.confirmed = max(known.confirmed, sent)
            elif known is None:
                self.entries[claimed.session_id] = Entry(claimed, sent)

    def start(self, *, in_doubt: bool = False) -> None:
        """Start what is claimed and not too late; the rest goes back."""
        now = self.world.clock.boottime()
        waiting = [e for e in self.entries.values() if e.phase in ("claimed", "called")]
        late = [e for e in waiting if now >= e.confirmed + self.world.deadman_after]
        for entry in late:
            self._drop(entry)
        self._start.give_back([e.claimed for e in late])
        entries = [e for e in waiting if e not in late]
        if not entries:
            return
        claims = [StartClaim(e.claimed.session_id, e.claimed.token) for e in entries]
        expected = [self.world.first_eligible(e.claimed.session_id) for e in entries]
        held = {e.claimed.session_id for e in entries if self.world.held(e.claimed.session_id)}
        replies = self._start.choose(self.id, claims)
        if in_doubt:
            replies = self._start.outcome(self.id, claims)
        for entry, reply, first in zip(entries, replies, expected, strict=True):
            if isinstance(reply, Started):
                assert reply.run.id == first, "I4: a run overtook one that was eligible before it"
                assert reply.run.session_id not in held, "started while its session waits for a retry"
                entry.fence = RunFence(entry.claimed.session_id, reply.run.id, reply.run.attempt, entry.claimed.token)
                entry.phase, entry.confirmed, entry.agent = "running", max(entry.confirmed, now), True
            elif entry.phase == "called":
                entry.phase = "parked"
            else:
                self._drop(entry)
        self._start.place([e.claimed for e in entries], replies, in_doubt=in_doubt)

    def settle(
        self,
        session: SessionId,
        *,
        park: bool = False,
        fails: bool = False,
        backoff: timedelta = BACKOFF,
        free_lost: bool = False,
        in_doubt: bool = False,
    ) -> None:
        """The agent's turn is over. ``fails``: and is retried as long as the rules allow."""
        entry = self.entries[session]
        assert entry.fence is not None
        entry.agent = entry.agent and park
        outcome = Outcome(RunStatus.COMPLETED, "done")
        if fails:
            outcome = Outcome(RunStatus.FAILED, "failed", error=RunError("exit_nonzero", "exit status 1"))
        plan = RetryPlan(backoff, MAX_RETRIES) if fails else None
        settlement = Settlement(entry.fence, outcome, keep_owner=park, retry=plan)
        after = self.world.store.settle([settlement])[0]
        if in_doubt:
            after = self.world.store.settle_outcome([settlement])[0]
        if not after.applied:
            self._drop(entry)
            return
        entry.fence = None
        if park:
            entry.phase = "parked"
        else:
            self._drop(entry)
        if not free_lost:
            with self._epoch():
                self._settle.place([Ended(session, entry.claimed.token, after, parked=park)])

    def release(self, session: SessionId) -> None:
        """Drain: the tree is killed and verified, the run goes back."""
        entry = self.entries[session]
        assert entry.fence is not None
        self._drop(entry)
        after = self._settle.release([entry.fence])[0]
        if after.applied:
            with self._epoch():
                self._settle.place([Ended(session, entry.claimed.token, after)])

    def end_parked(self, session: SessionId) -> None:
        """A warm agent is ended: the row goes once the tree is empty."""
        entry = self.entries[session]
        self._drop(entry)
        after = self.world.store.drop_owner(self.id, [(session, entry.claimed.token)])[0]
        if after.applied:
            with self._epoch():
                self._settle.place([Ended(session, entry.claimed.token, after)])

    def renew(self, *, lost: bool = False) -> None:
        """The Redis witness. What it calls lost, the mark decides."""
        table = [Held(s, e.claimed.token) for s, e in self.entries.items()]
        pending = [self.pending.request] if self.pending is not None else []
        sent = self.world.clock.boottime()
        with contextlib.suppress(*GONE):
            try:
                reply = self._renew(table, pending)
            except EpochMismatch:
                self.epochs.refresh()
                reply = self._renew(table, pending)
            if not lost:
                self._renewed(table, reply, sent)

    def _renew(self, table: list[Held], pending: list[ClaimToken]) -> RenewReply:
        return self.world.broker.renew(
            self.epochs.current(), self.id, table, lease=self.world.lease, counter=self.counter, pending=pending
        )

    def _renewed(self, table: list[Held], reply: RenewReply, sent: float) -> None:
        doubted = []
        for held, state in zip(table, reply.states, strict=True):
            if state is Renewal.EXTENDED:
                entry = self.entries[held.session_id]
                entry.confirmed = max(entry.confirmed, sent)
            elif state is Renewal.LOST:
                doubted.append(held.session_id)
        self._doubt(doubted)

    def _doubt(self, sessions: list[SessionId]) -> None:
        for session in sessions:
            if self.entries[session].phase in ("claimed", "called"):
                if self.entries[session].phase == "claimed":
                    self._drop(self.entries[session])
                else:
                    self.entries[session].phase = "parked"
        self.mark(only=[s for s in sessions if s in self.entries], restore=True)

    def mark(self, *, lost: bool = False, only: list[SessionId] | None = None, restore: bool = False) -> None:
        """The SQL witness: a write. A row that is not there any more is a loss."""
        marked = {
            s: e
            for s, e in self.entries.items()
            if e.phase in ("running", "parked", "called") and (only is None or s in only)
        }
        if not marked:
            return
        sent = self.world.clock.boottime()
        table = [(s, e.claimed.token) for s, e in marked.items()]
        reply = self.world.store.mark(self.id, table, timeout=timedelta(seconds=20))
        if lost:
            return
        for session, entry in marked.items():
            if session not in reply.confirmed:
                self._drop(entry)
                continue
            entry.confirmed = max(entry.confirmed, sent)
        if restore:
            self._restore([s for s in marked if s in reply.confirmed])

    def _restore(self, sessions: list[SessionId]) -> None:
        rows = {row.session_id: row for row in self.world.store.owners_of(sessions)}
        restores = [
            Restore(
                *(s, self.id, e.claimed.token, e.phase == "parked", LANE, DEFAULT_WORKSPACE),
                *(ReadyClass.INTERACTIVE, self.world.lease),
            )
            for s, e in self.entries.items()
            if s in rows and rows[s].token == e.claimed.token
        ]
        if restores:
            with self._epoch():
                self.world.broker.restore(self.epochs.current(), restores)

    def deadman(self) -> None:
        """The host: a tree whose deadline has come is dead, and its worker knows."""
        now = self.world.clock.boottime()
        for entry in list(self.entries.values()):
            if entry.agent and now >= entry.confirmed + self.world.deadman_after:
                self._drop(entry)

    def living(self) -> list[SessionId]:
        """Sessions whose tree lives here."""
        return [session for session, entry in self.entries.items() if entry.agent]

    def _drop(self, entry: Entry) -> None:
        entry.agent = False
        self.entries.pop(entry.claimed.session_id, None)

    @contextlib.contextmanager
    def _epoch(self) -> Iterator[None]:
        """`EPOCH` is neither a confirmation nor a loss; the id is read again."""
        try:
            yield
        except GONE as error:
            if isinstance(error, EpochMismatch):
                with contextlib.suppress(*GONE):
                    self.epochs.refresh()


class WorldClock:
    """Real time, plus what the test has let pass."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> datetime:
        return datetime.fromtimestamp(time.time() + self._world.shift, UTC)

    def monotonic(self) -> float:
        return time.monotonic() + self._world.shift

    boottime = monotonic


@dataclass
class Leader:
    """A controller's services, between stores that lie to it."""

    store: Lying
    broker: Lying
    epochs: EpochKeeper
    services: Services
    rota: Rota


class _Overrides(Mapping[str, recovery.Override]):
    """Strategies as overrides, as they stand when they are asked for."""

    def __init__(self, strategies: Mapping[str, recovery.Strategy]) -> None:
        self._strategies = strategies

    def __getitem__(self, name: str) -> recovery.Override:
        return recovery.Override(self._strategies[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._strategies)

    def __len__(self) -> int:
        return len(self._strategies)


class World:
    """Stores, sessions, workers, leaders."""

    def __init__(
        self,
        store: Store,
        broker: Broker,
        sql: Any,
        redis: Any,
        *,
        sessions: int = 3,
        strategy: recovery.Strategy = recovery.Strategy.REQUEUE_RUNNING,
        max_attempts: int = 50,
        second: timedelta = SECOND,
    ) -> None:
        self.store, self.broker, self.sql, self.redis = store, broker, sql, redis
        self.second, self.lease = second, 6 * second
        self.deadman_after = (self.lease * 5 / 6).total_seconds()
        self.shift = 0.0
        self.clock = WorldClock(self)
        self.ids = SystemIds()
        self.sessions = [SessionId(self.ids.new("ses")) for _ in range(sessions)]
        for session in self.sessions:
            self.open_session(session)
        self.accepted: dict[RunId, SessionId] = {}
        self.workers = {name: SimWorker(self, name) for name in ("w1", "w2")}
        rules = recovery.Rules(strategy, max_attempts)
        self.profiles: dict[str, recovery.Strategy] = {}
        """What profiles say about recovery, as far as leaders and starting workers know them."""
        self.leaders = [self._leader(f"leader-{n}", rules) for n in range(2)]
        self.snapshots: list[tuple[Any, float]] = []

    def _ms(self, seconds: float) -> int:
        return seconds * self.second // timedelta(milliseconds=1)

    def keeper(self) -> EpochKeeper:
        """A process's own belief."""
        return EpochKeeper(self.store, self.broker, self.ids, NullTelemetry())

    def _leader(self, holder: str, rules: recovery.Rules) -> Leader:
        store, broker = Lying(self.store, self), Lying(self.broker, self)
        epochs = EpochKeeper(store, broker, self.ids, NullTelemetry())  # type: ignore[arg-type]
        context = ControllerContext(
            store=store,  # type: ignore[arg-type]
            broker=broker,  # type: ignore[arg-type]
            clock=self.clock,
            ids=self.ids,
            telemetry=NullTelemetry(),
            epochs=epochs,
            rules=ControllerRules(
                rules,
                lease=self.lease,
                margin=self.lease / 6,
                relay_older_than=2 * self.second,
                profiles=_Overrides(self.profiles),
            ),
            holder=holder,
            decisions=Decisions(self.clock),
        )
        services = create_services(context)
        return Leader(store, broker, epochs, services, services.rota(context))

    def open_session(self, session: SessionId, lane: Lane = LANE) -> None:
        """One more."""
        self.store.create_session(Session(session, DEFAULT_WORKSPACE, lane, SessionState.OPEN, datetime.now(UTC)))

    def advance(self, seconds: float) -> None:
        """Time passes for everybody, in steps finer than the deadman's margin. `seconds` are the world's."""
        ms = self._ms(seconds)
        self.redis.age(ms)
        self.sql.age(ms)
        self.shift += ms / 1000
        for worker in self.workers.values():
            worker.deadman()

    def pass_waits(self, seconds: float) -> None:
        """What waits for a moment has waited so long (the world's seconds); for leases and marks no time has passed."""
        self.redis.age_waits(self._ms(seconds))
        self.sql.age_waits(self._ms(seconds))

    def submit(
        self,
        session: SessionId,
        *,
        delay: float | None = None,
        heard: bool = True,
        order: OrderMode = OrderMode.STRICT,
        deadline_at: datetime | None = None,
    ) -> Accepted:
        """Accepted is committed; hearing may be lost."""
        run = NewRun(
            RunId(self.ids.new("run")),
            DEFAULT_WORKSPACE,
            session,
            "work",
            delay=delay * self.second if delay else None,
            order_mode=order,
            deadline_at=deadline_at,
        )
        accepted = submit.commit(self.store, [run], SubmitLimits())[0]
        assert isinstance(accepted, Accepted)
        self.accepted[run.id] = session
        if heard:
            with contextlib.suppress(*GONE):
                submit.hear(self.broker, self.store, self.store.current_epoch(), [accepted])
        return accepted

    def first_eligible(self, session: SessionId) -> RunId | None:
        """Which run must start next, read in SQL."""
        rows = self.sql.rows(
            f"SELECT id FROM runs WHERE session_id = '{session}'"
            " AND status = 'queued' AND NOT deferred ORDER BY position"
        )
        return rows[0][0] if rows else None

    def held(self, session: SessionId) -> bool:
        """Whether SQL holds it."""
        return bool(self.sql.rows(f"SELECT held FROM sessions WHERE id = '{session}'")[0][0])

    def kill(self, name: str, *, known_dead: bool = False) -> None:
        """SIGKILL: the host kills the trees; the same name starts again, and may know that it has swept."""
        before = self.workers[name]
        self.workers[name] = SimWorker(self, name)
        before.entries.clear()
        if known_dead:
            with contextlib.suppress(*GONE):
                self.leaders[0].services.recover.known_dead([before.id], by=self.workers[name].id)

    def lead(self, number: int, *duties: str) -> None:
        """One pass of a leader; what a store's absence ends is left to the next one."""
        leader = self.leaders[number]
        for duty in duties or ("epoch", "sweep", "audit", "look_again", "reconcile", "relay", "promote"):
            try:
                self._duty(leader, duty)
            except EpochMismatch:
                with contextlib.suppress(*GONE):
                    leader.epochs.refresh()
            except GONE:
                pass
        leader.store.heal()
        leader.broker.heal()

    @staticmethod
    def _duty(leader: Leader, duty: str) -> None:
        services = leader.services
        if duty == "epoch":
            services.keep_epoch()
            return
        epoch: EpochId = leader.epochs.current()
        match duty:
            case "sweep":
                services.sweep(epoch)
            case "audit":
                services.audit(epoch, services.going_on)
            case "reconcile":
                services.reconcile.look(epoch, services.going_on)
            case "look_again":
                services.reconcile.look_again(epoch)
            case "relay":
                services.relay(epoch)
            case "promote":
                services.promote(epoch)
            case "expire":
                services.expire(epoch)

    def flush(self) -> None:
        """Everything in Redis is gone."""
        self.redis.flush()

    def remember(self) -> None:
        """A snapshot on the server's disk."""
        self.snapshots = [(self.redis.snapshot(), self.shift)]

    def bring_back(self) -> None:
        """The server restarts from it: right epoch, yesterday's queues."""
        content, at = self.snapshots[0]
        self.redis.bring_back(content)
        self.redis.age(int((self.shift - at) * 1000))

    # --- what must hold ---

    def check(self) -> None:
        """After every step."""
        self._check_runs()
        self._check_agents()
        audit(self.redis.client)

    def _check_runs(self) -> None:
        known = {row[0] for row in self.sql.rows("SELECT id FROM runs")}
        assert known == set(self.accepted), "I1: accepted runs are rows"
        active = self.sql.rows(
            "SELECT session_id, count(*) FROM runs WHERE status IN ('running', 'waiting_tool') GROUP BY session_id"
        )
        assert all(count == 1 for _, count in active), "I2: one active run a session"
        open_fences = self.sql.rows(
            "SELECT id FROM runs WHERE status NOT IN ('running', 'waiting_tool')"
            " AND (worker_id IS NOT NULL OR claim_token IS NOT NULL)"
        )
        assert not open_fences, "I3: the fence is shut between attempts"
        worn = self.sql.rows(f"SELECT id FROM runs WHERE failed_attempts > {MAX_RETRIES + 1}")
        assert not worn, "more attempts than the rules allow"

    def _check_agents(self) -> None:
        living = [session for worker in self.workers.values() for session in worker.living()]
        assert len(living) == len(set(living)), "I5: two trees of one session live"

    def check_places(self) -> None:
        """I11, once a lap of reconcile has gone over everything."""
        epoch = self.leaders[0].epochs.refresh()
        queued = {each.session_id: each for each in self.store.queued_sessions_of(self.sessions, epoch)}
        owners = {row.session_id: row for row in self.store.owners_of(self.sessions)}
        for session, lease in zip(self.sessions, self.broker.leases(epoch, self.sessions), strict=True):
            owner = owners.get(session)
            if owner is not None and owner.age < self.lease:
                assert lease.place in (Place.LEASED, Place.PARKED), (session, lease)
                assert lease.token == owner.token, (session, lease, owner)
                self._check_hold(session, lease, queued.get(session))
            elif session in queued and queued[session].ready_class is not None:
                held = bool(queued[session].holds)
                fine = {Place.HELD} if held else {Place.READY}
                assert lease.place in fine | {Place.LEASED, Place.PARKED}, (session, lease, queued[session])

    def _check_hold(self, session: SessionId, lease: LeaseView, queued: QueuedSession | None) -> None:
        """The end of a hold is known in Redis also while the session is parked."""
        if lease.place is Place.PARKED and queued is not None and queued.holds and queued.ready_class is not None:
            assert self.redis.client.zscore(keys.HELD.at(), session) is not None, (session, lease, queued)
