"""A drain leaves nothing behind and hurts nothing that may still finish; what ends a drain ends all of it."""

from __future__ import annotations

import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from oah.core.model.drain import Drain
from oah.core.model.ids import ClaimToken, SessionId
from oah.core.model.run import ReadyClass
from oah.core.model.session import Place
from oah.core.model.worker import WorkerState
from oah.errors import Unavailable
from oah.ports.broker import Claimed, ClaimReply, Freed
from oah.ports.store import AfterRun, CommandKind
from oah.services.commands import AS_SET
from oah.worker.worker import Worker
from tests.support.clock import StillClock
from tests.support.worker_doubles import Scripted, WarmAgent, context, fence, finished, settled, started

S, T = SessionId("ses_1"), ClaimToken("f" * 32)
F = fence()


class WallClock(StillClock):
    """Goes on by itself, as a drain's limits need it."""

    def __init__(self) -> None:
        super().__init__()
        self._tick = threading.Lock()

    def monotonic(self) -> float:
        with self._tick:
            self.seconds += 0.01
            return self.seconds


def worker(store: Scripted, *, on_drain: Any = None, **broker: Any) -> tuple[Worker, Scripted]:
    """A worker of which nothing runs yet."""
    quiet = {name: [None] for name in ("look", "forget", "publish", "popped", "report")}
    freed = [lambda epoch, frees: [Freed(Place.IDLE) for _ in frees]]
    redis = Scripted(**{**quiet, "free": freed, **broker})
    host = Scripted(live=[()], extend=[None], marked=[None], acknowledged_at=[1e9], abandon=[None], stop=[None])
    store.answers.setdefault("cordon_of", [None])
    rest = {} if on_drain is None else {"on_drain": on_drain}
    return Worker(context(store, redis, clock=WallClock(), agent_host=host, **rest)), redis


def told(*kinds: CommandKind, wish: Drain = AS_SET) -> list[list[SimpleNamespace]]:
    """What SQL hands out, one at each look."""
    return [[SimpleNamespace(kind=kind, by="op", data=wish.data())] for kind in kinds]


def own(of: Worker, session_id: SessionId, token: ClaimToken) -> None:
    """The worker runs a run of this session."""
    of.table.answered(token, [Claimed(session_id, token, False, ReadyClass.INTERACTIVE)], sent_at=1000.0)
    of.table.started(started(session_id, token), token, begun_at=1000.0)


def late(of: Worker, engine: int, answer: Any) -> Any:
    """An answer of SQL that comes when the engine was told to stop, or after half a second."""

    def respond(*args: Any) -> Any:
        of._engines[engine].stopping.wait(0.5)
        return answer

    return respond


def test_the_main_loop_answers_while_warm_agents_end() -> None:
    """They take their grace; a silent main loop would cost the agents that still work their lives."""
    of, _ = worker(Scripted(drop_owner=[lambda worker_id, rows: [AfterRun(True, None) for _ in rows]]))
    beaten = threading.Event()
    heard: list[bool] = []
    for number in range(3):
        session_id = SessionId(f"ses_{number}")
        own(of, session_id, T)
        of.table.parked(session_id, T)
        of._parked.put(session_id, T, WarmAgent(lambda: heard.append(beaten.wait(2))))
    beat = of._vigil.beat
    of._vigil.beat = lambda: (beat(), beaten.set())  # type: ignore[method-assign,assignment]
    of._engines[0].start()
    of._end()
    assert heard == [True] * 3
    assert len(of.table) == 0


def test_a_start_under_way_when_the_drain_begins_is_given_back() -> None:
    """Its run would be one that nobody runs, until both witnesses are stale."""
    store = Scripted(start=[None], release=[[AfterRun(True, ReadyClass.INTERACTIVE)]])
    reply = ClaimReply((Claimed(S, T, False, ReadyClass.INTERACTIVE),), False, None, timedelta(0))
    of, _ = worker(store, claim=[reply])
    begun = threading.Event()
    answer = late(of, 1, [started(S, T)])
    store.answers["start"] = [lambda *args: (begun.set(), answer())[1]]
    of._slots.start()
    for engine in of._engines:
        engine.start()
    of._claimer.hint()
    assert begun.wait(60)
    of._end()
    assert store.called("release") == 1 and len(of.table) == 0


def test_an_agent_that_was_parked_during_the_drain_leaves_no_owner_row() -> None:
    """Its next run would wait for a lease to end."""
    store = Scripted(settle=[None], drop_owner=[[AfterRun(True, None)]])
    of, _ = worker(store)
    store.answers["settle"] = [late(of, 0, [settled()])]
    own(of, F.session_id, F.token)
    agent = WarmAgent()
    of._settler.ended(finished(F, agent))
    of._engines[0].start()
    of._end()
    assert agent.closed == 1 and store.called("drop_owner") == 1
    assert len(of.table) == 0


def test_uncordon_also_ends_a_drain() -> None:
    """What is claimed from then on would be given back at once, again and again."""
    of, _ = worker(Scripted(take_commands=told(CommandKind.DRAIN, CommandKind.UNCORDON)))
    of._orders()
    assert of._draining and of._claimer.wanted() == 0
    of._stops.stop_claims()
    of._orders()
    assert not of._draining and of._claimer.wanted() == 2


@pytest.mark.parametrize(("wish", "ends"), [(Drain(), 1), (Drain(stay=True), 0)])
def test_a_drained_worker_ends_once_unless_it_is_to_stay(wish: Drain, *, ends: int) -> None:
    ended: list[None] = []
    of, _ = worker(Scripted(take_commands=told(CommandKind.DRAIN, wish=wish)), on_drain=lambda: ended.append(None))
    for _ in range(3):
        of._stops.drains()
    assert not ended, "nobody drains it yet"
    of._orders()
    for _ in range(3):
        of._stops.drains()
    assert len(ended) == ends and of._draining


def test_commands_are_read_while_the_broker_is_away_and_reports_go_out_while_sql_is() -> None:
    """The heartbeat is what finds them then; and who does not report is taken for gone."""
    of, _ = worker(Scripted(take_commands=told(CommandKind.CORDON)), report=[Unavailable("away")])
    with pytest.raises(Unavailable):
        of._heartbeat()
    assert of._intake.cordoned
    of, broker = worker(Scripted(take_commands=[Unavailable("away")]))
    with pytest.raises(Unavailable):
        of._heartbeat()
    assert broker.called("report") == 1


@pytest.mark.parametrize("cordoned", [False, True])
def test_the_ear_listens_again_when_an_outcome_that_bounded_the_claims_is_settled(*, cordoned: bool) -> None:
    """Its slot was idle before: the next submit would wait for the end of a wait on control alone."""
    of, redis = worker(Scripted())
    of._claimer.cordoned = cordoned
    of._ear.deaf = True
    of._settler.settled()
    assert redis.called("look") == int(not cordoned)


def test_pressure_is_told_to_all_who_take_something() -> None:
    """The registry at once, the claimer, and the keeper: sessions that are called here go on elsewhere."""
    of, redis = worker(Scripted())
    of.elastic.pressed(under=True)
    assert (of._claimer.wanted(), of._keeper.taking(), of._heartbeat_loop._bell.is_set()) == (0, False, True)
    of._heartbeat_loop._bell.clear()
    assert redis.called("look") == 1, "the ear does not listen for work any more"
    of._ear._nudged.clear()
    of.elastic.pressed(under=False)
    assert (of._claimer.wanted(), of._keeper.taking(), of._heartbeat_loop._bell.is_set()) == (2, True, True)
    assert redis.called("look") == 2, "and again"
    of._intake.cordon(cordoned=True)
    of.elastic.pressed(under=True)
    of.elastic.pressed(under=False)
    assert (of._claimer.wanted(), of._intake.cordoned) == (0, True), "each is its own"


def test_what_was_taken_with_a_command_that_cannot_be_done_is_obeyed() -> None:
    """All are handed out at once, and once: a drain must not be lost because the broker is away for another's sake."""
    commands = [
        SimpleNamespace(kind=CommandKind.CLOSE, by="later", data={"sessions": []}),
        SimpleNamespace(kind=CommandKind.LEND, by="run", data={"number": 1}),
        SimpleNamespace(kind=CommandKind.DRAIN, by="op", data={}),
    ]
    of, _ = worker(Scripted(take_commands=[commands, []]))

    def away(command: Any) -> None:
        raise Unavailable("away")

    of._errands.lend = away
    with pytest.raises(Unavailable):
        of._orders()
    assert of._draining and of._intake.cordoned


def test_a_drain_that_is_taken_back_while_its_agents_end_does_nothing_more() -> None:
    """Else the worker would serve on, and claim nothing for ever."""
    wish = Drain(timedelta(0))
    of, _ = worker(
        Scripted(
            take_commands=[*told(CommandKind.DRAIN, wish=wish), *told(CommandKind.UNCORDON)],
            drop_owner=[[AfterRun(True, None)]],
        )
    )
    own(of, S, T)
    of.table.parked(S, T)
    of._parked.put(S, T, WarmAgent(of._orders))
    of._orders()
    of._stops.drains()
    assert (of._draining, of._claimer.stopped, of._claimer.wanted()) == (False, False, 2)


def test_the_deadline_of_a_drain_also_holds_after_a_signal() -> None:
    """The grace of the settings may be for ever; somebody has said when it is over, before the signal or after."""
    of, _ = worker(Scripted(take_commands=told(CommandKind.DRAIN, wish=Drain(timedelta(0)))))
    of.grace = timedelta(seconds=1)
    of._waiting.put(SimpleNamespace(fence=F))  # type: ignore[arg-type]
    threading.Timer(0.1, of._orders).start()
    begun = of._context.clock.seconds  # type: ignore[attr-defined]
    assert not of._stops.wait_idle(None)
    assert of._context.clock.seconds - begun < 0.5  # type: ignore[attr-defined]


def test_an_uncordon_after_the_signal_keeps_no_run_that_waits_from_going_on() -> None:
    of, _ = worker(Scripted(take_commands=told(CommandKind.UNCORDON)))
    of._phase, of._claimer.draining = WorkerState.STOPPING, True
    of._orders()
    assert (of._claimer.stopped, of._claimer.wanted()) == (False, 0)
    of._stops.stop_claims()
    of._orders()
    assert of._claimer.stopped


def test_an_agent_that_stays_warm_after_the_end_of_a_drain_is_ended_too() -> None:
    """Its outcome was recorded when SQL had come back; the worker stays, and its next run goes on elsewhere."""
    store = Scripted(take_commands=told(CommandKind.DRAIN, wish=Drain(stay=True)), drop_owner=[[AfterRun(True, None)]])
    of, _ = worker(store)
    of._orders()
    of._stops.drains()
    own(of, S, T)
    of.table.parked(S, T)
    agent = WarmAgent()
    of._parked.put(S, T, agent)
    of._stops.drains()
    assert agent.closed == 1


def test_a_claim_that_a_broker_does_not_answer_keeps_no_drain_from_its_end() -> None:
    """What it may have taken ends with its lease; else the worker would stay for as long as the broker is away."""
    ended: list[None] = []
    store = Scripted(take_commands=told(CommandKind.DRAIN))
    of, redis = worker(store, claim=[Unavailable("away")], on_drain=lambda: ended.append(None))
    of._claimer.hint()
    of._claimer.step()
    assert of._claimer.busy
    of._orders()
    of._stops.drains()
    assert ended == [None] and redis.called("claim") == 1
