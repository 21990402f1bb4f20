"""Claims of sessions that this worker keeps warm already, and of those it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from oah.core.model.ids import ClaimToken, SessionId, WorkerId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.core.model.session import HoldReason, Place
from oah.core.policy.claim_order import turns
from oah.errors import InDoubt, Unavailable
from oah.ports.broker import Claimed, ClaimReply, Free, Freed, Target
from oah.ports.store import AfterRun, AlreadyActive, IsHeld, NothingEligible
from oah.worker.attempt import Attempts
from oah.worker.claimer import Claimer
from oah.worker.hooks import Hooks
from oah.worker.keeper import Keeper
from oah.worker.parked import Parked
from oah.worker.settler import Settler
from oah.worker.slots import Slots
from oah.worker.table import Phase, Table
from oah.worker.work import Assignment
from tests.support.clock import StillClock
from tests.support.worker_doubles import Scripted, WarmAgent, context, started

S, T, U = SessionId("ses_1"), ClaimToken("a" * 32), ClaimToken("f" * 32)
CALLED = ClaimReply((Claimed(S, T, True, ReadyClass.INTERACTIVE),), False, None, timedelta(0))
NEW = ClaimReply((Claimed(S, U, False, ReadyClass.INTERACTIVE),), False, None, timedelta(0))
BACKGROUND = ReadyClass.BACKGROUND


class Desk:
    """The parts of a worker around one session, whose warm agent is parked; nothing runs by itself."""

    def __init__(self, agent: WarmAgent | None = None, *, store: Scripted, **broker: Any) -> None:
        answers = {"claim": [CALLED], "free": [[Freed(Place.PARKED)]], "publish": [None], "popped": [None], **broker}
        self.clock, self.store, self.redis = StillClock(), store, Scripted(**answers)
        self.context = context(store, self.redis, clock=self.clock)
        self.table = Table(lease=self.context.rules.lease, margin=self.context.rules.margin)
        self.assigned: list[Assignment] = []
        slots = Slots(2, execute=self.assigned.append, freed=lambda: None, crashed=lambda error: None)
        self.slots = slots
        self.parked = Parked(
            capacity=2,
            idle=timedelta(seconds=60),
            clock=self.clock,
            ended=lambda warm, *, empty: self.keeper.ended(warm, empty=empty),
            may_end=self.table.unpark,
        )
        self.settler = Settler(self.context, self.table, self.parked, wake=lambda: None)
        self.keeper = Keeper(self.context, self.table, slots, self.settler)
        self.keeper.parked = self.parked
        self.claimer = Claimer(self.context, self.table, slots, wake=lambda: None)
        self.agent = agent or WarmAgent()
        self.table.answered(T, [Claimed(S, T, False, ReadyClass.INTERACTIVE)], sent_at=self.clock.seconds)
        self.table.started(started(S, T), T, begun_at=self.clock.seconds)
        self.table.parked(S, T)
        self.parked.put(S, T, self.agent)

    def claim(self) -> None:
        """A hint, and what comes of it."""
        self.claimer.hint()
        self.claimer.step()

    @property
    def phase(self) -> Phase | None:
        """How far the session is under its old token."""
        entry = self.table.get(S, T)
        return None if entry is None else entry.phase

    def frees(self) -> list[Free]:
        """What was freed, in order."""
        return [free for name, args, _ in self.redis.calls if name == "free" for free in args[1]]


def starting(act: Callable[[], object] = lambda: None) -> Callable[..., Any]:
    """A start that succeeds, while something else happens."""

    def start(*args: Any) -> Any:
        act()
        return [started(S, T)]

    return start


def test_a_session_whose_agent_is_being_ended_is_not_started_under_its_old_token() -> None:
    """Its owner row is about to go: a run under that token would lose its row, its lease and its place in the table."""
    store = Scripted(start=[starting()], drop_owner=[[AfterRun(True, ReadyClass.INTERACTIVE)]])
    desk = Desk(store=store)
    desk.agent._on_close = desk.claim
    desk.keeper.end([S])
    assert desk.agent.closed == 1 and store.called("start") == 0
    desk.settler.step()
    assert desk.frees() == [Free(S, T, Target.READY, ReadyClass.INTERACTIVE)], "it comes back under a new token"
    assert len(desk.table) == 0


def test_an_agent_whose_session_is_being_started_is_not_ended() -> None:
    desk = Desk(store=Scripted(start=[starting(lambda: desk.keeper.end([S]))]))
    desk.claim()
    assert desk.agent.closed == 0 and desk.phase is Phase.RUNNING
    desk.keeper.end([S])
    assert desk.agent.closed == 0 and desk.parked.take(S) is desk.agent


@pytest.mark.parametrize("late", [False, True], ids=["sql away", "too late"])
def test_a_called_session_that_is_given_back_is_still_called(*, late: bool) -> None:
    """Its run waits: nobody else would tell its owner before reconcile."""

    def claim(*args: Any) -> ClaimReply:
        desk.clock.seconds += 60 if late else 0
        return CALLED

    desk = Desk(store=Scripted(start=[Unavailable("away")]), claim=[claim])
    desk.claim()
    assert desk.frees() == [Free(S, T, Target.PARKED, ReadyClass.INTERACTIVE)]
    assert desk.phase is Phase.PARKED


def test_a_start_in_doubt_that_did_not_happen_leaves_the_session_called() -> None:
    desk = Desk(store=Scripted(start=[InDoubt("cut")], start_outcome=[[NothingEligible(S)]]))
    desk.claim()
    assert desk.frees() == [Free(S, T, Target.PARKED, ReadyClass.INTERACTIVE)]


def test_a_parked_session_that_redis_was_not_told_of_is_told_before_the_next_claim() -> None:
    """Leased in Redis and idle here, it would be renewed for ever, and no run of it would ever call anybody."""
    desk = Desk(
        store=Scripted(start=[[NothingEligible(S)]]),
        claim=[CALLED, ClaimReply((), False, None, timedelta(0))],
        free=[Unavailable("away"), Unavailable("still"), [Freed(Place.PARKED)]],
    )
    desk.claim()
    assert desk.phase is Phase.TAKEN and desk.claimer.pending() is not None
    for _ in range(2):
        desk.clock.seconds += 5
        desk.claimer.step()
    assert desk.redis.called("free") == 3 and desk.phase is Phase.PARKED
    order = [name for name, _, _ in desk.redis.calls if name in ("claim", "free")]
    assert order == ["claim", "free", "free", "free", "claim"], "never a second claim before it"
    desk.keeper.end([S])
    assert desk.agent.closed == 1


def test_what_is_given_up_between_claims_takes_no_class_its_turn() -> None:
    """Nothing starves, however claims and the ends of sessions alternate."""
    desk = Desk(
        store=Scripted(start=[[NothingEligible(S)]]),
        claim=[lambda epoch, of: ClaimReply((Claimed(SessionId("new"), U, False, BACKGROUND),), False, None, None)],
        free=[[Freed(Place.IDLE)]],
    )
    cycle = turns(desk.context.claim_rules)
    for _ in cycle:
        desk.claim()
    firsts = [args[1].order[1][1] for name, args, _ in desk.redis.calls if name == "claim"]
    assert sorted(firsts) == sorted(cycle)


def test_a_claim_under_another_token_does_not_make_us_forget_what_we_own() -> None:
    """Redis lost the lease of a session of ours and gave it to us once more: the start answers whose it is."""
    active = AlreadyActive(S, WorkerId("w.1"), T, True, timedelta(0))
    desk = Desk(
        store=Scripted(start=[[active]], owners_of=[[]]),
        claim=[NEW],
        restore=[[True]],
        release=[[Freed(Place.READY)]],
    )
    desk.claim()
    assert desk.store.called("start") == 1
    assert desk.phase is Phase.PARKED and desk.table.mark_view() == [(S, T)]


def test_a_warm_agent_that_cannot_be_killed_holds_its_session() -> None:
    """A second tree beside it is what must not be; somebody has to look."""
    cordoned: list[str] = []
    after = AfterRun(True, ReadyClass.INTERACTIVE, (HoldReason.UNKILLABLE,))
    desk = Desk(WarmAgent(empty=False), store=Scripted(hold_session=[None], drop_owner=[[after]]))
    desk.keeper.cordon = cordoned.append
    desk.keeper.end([S])
    desk.settler.step()
    assert [name for name, _, _ in desk.store.calls] == ["hold_session", "drop_owner"]
    assert cordoned and desk.frees() == [Free(S, T, Target.HELD, None, None, (HoldReason.UNKILLABLE,))]


def test_a_warm_agent_that_cannot_be_bound_is_ended_before_its_session_goes_on() -> None:
    class Unbound(WarmAgent):
        def bind(self, *, run_id: str, attempt: int) -> None:
            raise OSError("no space left on device")

    desk = Desk(Unbound(), store=Scripted(start=[starting()]))
    desk.claim()
    (assignment,) = desk.slots.working
    attempts = Attempts(
        desk.context,
        desk.table,
        desk.parked,
        desk.settler,
        cordon=lambda reason: None,
        draining=lambda: False,
        mark_now=lambda: None,
        hooks=Hooks(desk.context),
    )
    attempts(assignment)
    assert desk.agent.closed == 1 and desk.settler.unsettled == 1


@pytest.mark.parametrize("cordoned", [True, False])
def test_a_worker_that_takes_nothing_hands_called_sessions_on(*, cordoned: bool) -> None:
    waiting = SimpleNamespace(session_id=S, ready_class=ReadyClass.INTERACTIVE, holds=())
    desk = Desk(store=Scripted(queued_sessions_of=[[waiting]]))
    desk.keeper.taking = lambda: not cordoned
    desk.keeper()
    desk.clock.seconds += 2
    desk.keeper()
    assert desk.agent.closed == int(cordoned), "after the affinity window, though slots are idle"


def test_the_agent_of_a_session_in_backoff_keeps_nobody_waiting() -> None:
    held = SimpleNamespace(session_id=S, ready_class=ReadyClass.INTERACTIVE, holds=(HoldReason.BACKOFF,))
    desk = Desk(store=Scripted(queued_sessions_of=[[held]]))
    desk.keeper.taking = lambda: False
    desk.keeper()
    desk.clock.seconds += 2
    desk.keeper()
    assert desk.agent.closed == 0


def test_a_called_session_that_sql_calls_held_is_parked_until_the_hold_ends() -> None:
    """Its agent lives, so it stays ours; Redis learns when the hold ends."""
    until = timedelta(seconds=9)
    desk = Desk(store=Scripted(start=[[IsHeld(S, (HoldReason.BACKOFF,), until)]]))
    desk.claim()
    assert desk.frees() == [Free(S, T, Target.PARKED, None, until, (HoldReason.BACKOFF,))]
    assert desk.phase is Phase.PARKED and desk.agent.closed == 0


LIGHT, HEAVY = Lane("default", "light"), Lane("default", "heavy")
NOTHING = ClaimReply((), False, None, timedelta(0))


def weighed(*replies: ClaimReply, slots: int = 8) -> tuple[Claimer, Scripted, Slots]:
    """A claimer of two lanes, one of which weighs six slots; nothing of what it claims can be started."""
    redis = Scripted(claim=[*replies, NOTHING], free=[[Freed(Place.READY)]], release=[[Freed(Place.READY)]])
    store = Scripted(start=[[NothingEligible(S)]])
    of = context(store, redis, slot_weight={"light": 1, "heavy": 6}.__getitem__, lanes=(LIGHT, HEAVY))
    of = replace(of, rules=replace(of.rules, slots=slots))
    pool = Slots(slots, execute=lambda assignment: None, freed=lambda: None, crashed=lambda error: None)
    table = Table(lease=of.rules.lease, margin=of.rules.margin)
    return Claimer(of, table, pool, wake=lambda: None), redis, pool


def rounds(claimer: Claimer, redis: Scripted) -> list[tuple[set[Lane], int]]:
    """A hint, and which lanes were claimed for, how many of each time."""
    before = redis.called("claim")
    claimer.hint()
    for _ in range(10):
        if claimer.pending() != 0:
            break
        claimer.step()
    asked = [args[1] for name, args, _ in redis.calls if name == "claim"][before:]
    return [({lane for lane, _ in each.order}, each.want) for each in asked]


def test_lanes_of_each_weight_are_claimed_for_in_turn_as_many_as_fit() -> None:
    claimer, redis, _ = weighed()
    assert sorted(rounds(claimer, redis), key=lambda each: each[1]) == [({HEAVY}, 1), ({LIGHT}, 8)]
    first = [rounds(claimer, redis)[0][0] for _ in range(4)]
    assert first.count({HEAVY}) == first.count({LIGHT}) == 2


def test_what_does_not_fit_is_neither_claimed_nor_listened_for() -> None:
    claimer, redis, pool = weighed()
    pool.resize(5)
    assert (claimer.wanted(), claimer.lanes()) == (5, (LIGHT,))
    assert all(HEAVY not in lanes for lanes, _ in rounds(claimer, redis))
    pool.resize(0)
    assert (claimer.lanes(), claimer.pending()) == ((), None)


def test_a_slot_that_is_freed_is_a_hint_where_lanes_weigh_differently() -> None:
    """The last claim may have found nothing light, and never looked for the heavy ones."""
    claimer, redis, pool = weighed()
    pool.resize(5)
    rounds(claimer, redis)
    pool.resize(8)
    claimer.slot_freed(deaf=False)
    assert claimer.pending() == 0
    assert any(HEAVY in lanes for lanes, _ in rounds(claimer, redis))


def test_more_than_fits_is_told() -> None:
    claimer, redis, pool = weighed(ClaimReply((), True, None, timedelta(0)))
    told: list[int] = []
    claimer.full = lambda: (told.append(1), pool.resize(0))  # type: ignore[assignment,func-returns-value]
    pool.resize(1)
    claimer.unsettled = lambda: 9 if redis.called("claim") else 0
    claimer.hint()
    claimer.step()
    assert told == [1]


def test_under_pressure_nothing_new_is_claimed_and_what_waited_goes_on() -> None:
    claimer, redis, _ = weighed()
    claimer.pressed = True
    claimer.hint()
    assert (claimer.wanted(), claimer.lanes(), claimer.pending()) == (0, (), None)
    claimer._waiting._called[S] = 0.0
    assert claimer.room() == 1
    assert rounds(claimer, redis) == [(set(), 1)]
    request = redis.calls[-1][1][1]
    assert request.resumes_only
    claimer.pressed = False
    assert claimer.wanted() == 8


def test_a_full_worker_that_may_open_slots_listens_on_and_opens_them_at_the_first_hint() -> None:
    claimer, _, pool = weighed()
    told: list[int] = []
    claimer.full = lambda: told.append(1)
    pool.resize(0)
    claimer.hint()
    assert (claimer.lanes(), told) == ((), []), "all slots that it has are taken"
    claimer.may_open = lambda: True
    claimer.hint()
    assert (claimer.lanes(), told, claimer.pending()) == ((LIGHT, HEAVY), [1], None)
    claimer._waiting._waiting = {SessionId(f"w{n}"): None for n in range(65)}  # type: ignore[misc]
    claimer.hint()
    assert (claimer.lanes(), told) == ((), [1]), "further slots would be of no use"
    claimer._waiting._waiting = {}
    claimer.pressed = True
    claimer.hint()
    assert (claimer.lanes(), told) == ((), [1])
    claimer.pressed = False
    pool.resize(1)
    claimer.hint()
    assert told == [1], "first what is idle"


def test_warm_agents_give_up_their_memory_one_after_another_when_it_is_short() -> None:
    """A worker under pressure would wait for ever for memory that its own idle agents use."""
    store = Scripted(drop_owner=[[AfterRun(True, None)]], queued_sessions_of=[[]])
    desk = Desk(store=store)
    other, second = SessionId("ses_2"), WarmAgent()
    desk.table.answered(U, [Claimed(other, U, False, ReadyClass.INTERACTIVE)], sent_at=desk.clock.seconds)
    desk.table.started(started(other, U), U, begun_at=desk.clock.seconds)
    desk.table.parked(other, U)
    desk.parked.put(other, U, second)
    short = SimpleNamespace(short_of_memory=False)
    desk.keeper.elastic = short  # type: ignore[assignment]
    closed = []
    for short.short_of_memory in (False, True, False, True, True):
        desk.keeper()
        closed.append((desk.agent.closed, second.closed))
    assert closed == [(0, 0), (1, 0), (1, 0), (1, 1), (1, 1)], "the longest idle first"
