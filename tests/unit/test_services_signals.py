"""What scaling is told about a pool, and when it is told that it may be wrong."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from oah.core.model.epoch import EpochState, EpochView
from oah.core.model.ids import EpochId, WorkerId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.core.model.worker import WorkerReport, WorkerState
from oah.core.policy import scaling
from oah.core.policy.quantiles import bucket
from oah.core.policy.scaling import Signals
from oah.errors import Unavailable
from oah.ports.dispatch import LaneDepth, QueueFigures
from oah.ports.figures import LaneRuns
from oah.services.signals import PoolSignals
from tests.support.clock import StillClock
from tests.support.worker_doubles import Scripted

EPOCH = EpochId("e1")
TRUST = timedelta(seconds=30)
INTERACTIVE, SUBAGENT = ReadyClass.INTERACTIVE, ReadyClass.SUBAGENT


def worker(name: str, pool: str = "p", nonce: str = "1", **more: Any) -> WorkerReport:
    values: dict[str, Any] = {
        "id": WorkerId(f"{name}.{nonce}"), "name": name, "host": "h", "pid": 1, "pool": pool, "profiles": ("shell",),
        "state": WorkerState.IDLE, "slots": 4, "busy": 1, "parked": 0, "cordoned": False, "draining": False,
        "version": "1", "started_at": datetime(2026, 1, 1, tzinfo=UTC),
    }  # fmt: skip
    return WorkerReport(**{**values, **more})


class Scene:
    """Stores that say what a test has put there."""

    def __init__(self) -> None:
        self.clock = StillClock()
        self.workers = [worker("a"), worker("b"), worker("c", slots=2, cordoned=True), worker("other", pool="q")]
        self.ready: list[LaneDepth] = []
        self.runs = {Lane("p", "shell"): LaneRuns(3, 1), Lane("q", "shell"): LaneRuns(9)}
        self.view = EpochView(EPOCH, EpochState.OPEN, None, None, 1, timedelta(hours=1))
        self.store: Any = Scripted(lane_runs=[lambda: self.runs], current_epoch=[EPOCH])
        self.broker: Any = Scripted(
            figures=[lambda: QueueFigures(tuple(self.ready), None, 0, 0, 0)],
            view=[lambda: self.view],
            workers=[lambda: list(self.workers)],
        )
        self.signals = PoolSignals(self.store, self.broker, self.clock, trust=TRUST)

    def depth(self, count: int, cls: ReadyClass = INTERACTIVE, pool: str = "p", **more: Any) -> None:
        self.ready.append(LaneDepth(Lane(pool, "shell"), cls, count, **more))

    def lose(self, *names: str) -> None:
        self.workers = [each for each in self.workers if each.name not in names]


def test_load_is_what_waits_and_what_runs_of_this_pool_alone() -> None:
    scene = Scene()
    scene.depth(5, oldest=timedelta(seconds=7))
    scene.depth(2, SUBAGENT, oldest=timedelta(seconds=1))
    scene.depth(100, pool="q")
    found = scene.signals("p", starting=2)
    assert found == Signals(
        ready=7, subagent_ready=2, running=3, waiting=1, slots=8, idle_slots=6, starting=2,
        oldest_wait=timedelta(seconds=7), sure=True,
    )  # fmt: skip
    assert scene.signals.view("p").load == 10
    assert scene.signals("nowhere") == Signals()


def test_what_changes_hands_while_one_looks_counts_twice_rather_than_never() -> None:
    scene = Scene()
    lane = Lane("p", "shell")

    def figures(ready: int) -> QueueFigures:
        return QueueFigures((LaneDepth(lane, INTERACTIVE, ready),), None, 0, 0, 0)

    for looks, running in (((1, 0), 1), ((0, 1), 0), ((0, 1), 1)):
        scene.broker.answers["figures"] = [figures(ready) for ready in looks]
        scene.runs = {lane: LaneRuns(running)}
        assert scene.signals.view("p").load >= 1, (looks, running)


def test_what_a_cap_keeps_out_asks_for_no_slots() -> None:
    scene = Scene()
    scene.depth(50, capped=48, oldest=timedelta(seconds=2))
    view = scene.signals.view("p")
    assert (view.signals.ready, view.capped, view.load) == (2, 48, 5)


def test_what_no_worker_serves_asks_for_one_that_says_so_and_no_more() -> None:
    """A program that is missing on every worker is missing on the next one, too."""
    scene = Scene()
    scene.ready.append(LaneDepth(Lane("p", "codex"), SUBAGENT, 20, capped=4, oldest=timedelta(minutes=5)))
    view = scene.signals.view("p")
    assert (view.unserved, view.signals.ready, view.signals.subagent_ready, view.signals.running) == (16, 0, 0, 3)
    assert view.signals.oldest_wait == timedelta(0)
    scene.runs = {}
    assert scene.signals("p").ready == 1, "a pool that is empty does not know what its workers would serve"
    scene.workers = []
    scene.clock.seconds += 60
    view = scene.signals.view("p")
    assert (view.unserved, view.signals.ready) == (0, 16), "nobody is there to say that they do not serve it"


def test_sessions_at_home_on_a_full_host_ask_for_no_workers_elsewhere() -> None:
    scene = Scene()
    old = timedelta(minutes=2)
    scene.ready.append(LaneDepth(Lane("p", "shell", "h"), INTERACTIVE, 9, oldest=old))
    scene.depth(2, oldest=timedelta(seconds=1))
    view = scene.signals.view("p")
    assert (view.signals.ready, dict(view.bound)) == (2 + 6, {"h": 3}), "three and three are free there"
    assert view.signals.oldest_wait == timedelta(seconds=1)
    scene.ready = [LaneDepth(Lane("p", "shell", "gone"), INTERACTIVE, 9, oldest=old)]
    view = scene.signals.view("p")
    assert (view.signals.ready, dict(view.bound)) == (9, {}), "it comes back, or they are free in a minute"
    assert view.signals.oldest_wait == old


def test_slots_that_open_on_demand_count_and_those_under_pressure_do_not() -> None:
    scene = Scene()
    scene.workers = [worker("a", slots=2, slots_max=8, busy=1), worker("b", slots_max=8, busy=3, pressure=("memory",))]
    found = scene.signals("p")
    assert (found.slots, found.idle_slots) == (8 + 3, 7)


def test_a_heavy_agent_counts_as_the_slots_that_it_takes() -> None:
    scene = Scene()
    scene.signals = PoolSignals(
        scene.store, scene.broker, scene.clock, trust=TRUST, weigh=lambda profile: 4 if profile == "shell" else 1
    )
    scene.runs = {Lane("p", "shell"): LaneRuns(2), Lane("p", "small"): LaneRuns(1)}
    scene.workers = [worker("a", slots=16, slots_max=16, busy=3, weight=9, weights={"shell": 4})]
    scene.depth(1, SUBAGENT)
    found = scene.signals("p")
    assert (found.ready, found.subagent_ready, found.running, found.idle_slots) == (4, 4, 9, 7)


def test_weights_are_those_that_workers_tell_and_no_more_than_a_worker_has() -> None:
    """Its profiles may be others than the controller's; a weight of 99 is all slots of one worker, not twelve more."""
    scene = Scene()
    scene.signals = PoolSignals(scene.store, scene.broker, scene.clock, trust=TRUST, weigh=lambda profile: 99)
    scene.runs = {}
    scene.depth(2)
    scene.workers = [worker("a", slots=8), worker("b", slots=8)]
    assert scene.signals("p").ready == 16
    new = {"slots": 8, "slots_max": 8}
    scene.workers = [worker("a", **new, weights={"shell": 2}), worker("b", **new)]
    assert scene.signals("p").ready == 4
    scene.workers = [worker("b", **new)]
    scene.clock.seconds += 60
    assert scene.signals("p").ready == 2


def test_what_is_left_of_a_worker_is_of_no_use_to_a_heavy_agent() -> None:
    """Two workers of 8 have one of weight 5 each: for a third one 15 slots are not enough, though they have 16."""
    scene = Scene()
    scene.signals = PoolSignals(scene.store, scene.broker, scene.clock, trust=TRUST, weigh=lambda profile: 5)
    scene.runs = {Lane("p", "shell"): LaneRuns(2)}
    scene.workers = [worker(name, slots=8, slots_max=8, busy=1, weight=5, weights={"shell": 5}) for name in ("a", "b")]
    scene.depth(1)
    found = scene.signals("p")
    rules = scaling.Rules(maximum=9, per_unit=8, slots_per_unit=8)
    decision = scaling.decide(found, rules, current=2, history=scaling.History(), now=0.0)
    assert (found.ready, found.running, decision.desired) == (8, 10, 3)


def test_load_never_says_zero_while_an_agent_waits() -> None:
    scene = Scene()
    scene.runs = {Lane("p", "shell"): LaneRuns(0, 2)}
    assert scene.signals.view("p").load == 1
    scene.runs = {}
    assert scene.signals.view("p").load == 0


def test_waiting_times_are_those_of_all_workers_together() -> None:
    scene = Scene()
    slow, quick = {"interactive": {bucket(10): 5}}, {"interactive": {bucket(0.01): 90}, "subagent": {bucket(0.01): 5}}
    scene.workers = [worker("a", waits_now=slow), worker("b", waits_now=quick), worker("q", "q", waits_now=slow)]
    found = scene.signals("p").wait_p95
    assert found is not None and found < timedelta(seconds=1)
    scene.workers.append(worker("c", waits_now=slow))
    found = scene.signals("p").wait_p95
    assert found is not None and abs(found.total_seconds() - 10) < 0.6


def test_a_registry_that_forgets_everybody_is_not_believed_until_it_lasts() -> None:
    scene = Scene()
    before = scene.signals("p")
    scene.lose("a", "b")
    blip = scene.signals("p")
    assert not blip.sure
    assert blip.running == before.running, "what runs is SQL's figure"
    scene.clock.seconds += 29
    assert not scene.signals("p").sure
    scene.clock.seconds += 2
    assert scene.signals("p").sure, "they are gone"
    assert scene.signals("p").sure


def test_they_come_back() -> None:
    scene = Scene()
    kept = list(scene.workers)
    scene.signals("p")
    scene.lose("a", "b", "c")
    assert not scene.signals("p").sure
    scene.workers = kept
    assert scene.signals("p").sure


def test_one_of_many_that_dies_stops_nothing_and_a_restarted_one_is_none() -> None:
    scene = Scene()
    scene.workers = [worker(f"w{n}") for n in range(6)]
    scene.signals("p")
    scene.lose("w0")
    assert scene.signals("p").sure
    scene.lose("w1", "w2")
    assert not scene.signals("p").sure
    scene.workers += [worker(f"w{n}", nonce="2") for n in range(2)]
    assert scene.signals("p").sure, "two of the three have a successor"


def test_who_was_told_to_go_is_not_missed() -> None:
    scene = Scene()
    scene.workers = [worker("a", draining=True), worker("b", state=WorkerState.STOPPING), worker("c")]
    assert scene.signals("p").slots == 4
    scene.lose("a", "b")
    assert scene.signals("p").sure


def test_queues_that_are_being_filled_again_are_not_believed() -> None:
    scene = Scene()
    for view in (
        replace(scene.view, id=None, state=None),
        replace(scene.view, id=EpochId("older")),
        replace(scene.view, state=EpochState.REBUILDING),
        replace(scene.view, open_for=timedelta(seconds=5)),
    ):
        scene.view = view
        assert not scene.signals("p").sure, view


def test_a_store_that_is_away_leaves_what_was_seen_and_no_certainty() -> None:
    scene = Scene()
    scene.depth(4)
    before = scene.signals("p")
    for answers in (scene.store.answers["lane_runs"], scene.broker.answers["workers"]):
        kept = answers[0]
        answers[0] = Unavailable("away")
        assert scene.signals("p") == replace(before, sure=False)
        assert scene.signals.view("p").doubts == ("away",)
        assert scene.signals("unknown") == Signals(sure=False)
        answers[0] = kept
    assert scene.signals("p").sure


def test_all_pools_in_one_look() -> None:
    scene = Scene()
    scene.depth(1, pool="unserved")
    views = scene.signals.views(["kept"])
    assert [view.pool for view in views] == ["kept", "p", "q", "unserved"]
    assert scene.store.called("lane_runs") == 1
