"""What a rolling restart does next: batches, health, blips of the registry, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oah.core.model.cordon import Cordon
from oah.core.model.drain import AtDeadline, Drain
from oah.core.model.ids import WorkerId
from oah.core.model.rollout import Rollout, RolloutRules, RolloutState, Stage
from oah.core.model.worker import WorkerReport, WorkerState
from oah.core.policy import rollout as policy

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
RULES = RolloutRules(drain=Drain(timedelta(seconds=30)), settle=timedelta(seconds=5), health=timedelta(seconds=60))


def report(name: str, life: int = 1, **more: object) -> WorkerReport:
    """The n-th incarnation of a worker."""
    made = WorkerReport(
        id=WorkerId(f"{name}.{life}"),
        name=name,
        host="h",
        pid=life,
        pool="default",
        profiles=("shell",),
        state=WorkerState.IDLE,
        slots=4,
        busy=0,
        parked=0,
        cordoned=False,
        draining=False,
        version=f"{life}.0",
        started_at=BEGIN - timedelta(hours=1) + timedelta(minutes=life),
    )
    return replace(made, **more)  # type: ignore[arg-type]


@dataclass
class World:
    """Workers that do as they are told, by hand."""

    alive: dict[str, WorkerReport]
    rules: RolloutRules = RULES
    now: datetime = BEGIN
    rollout: Rollout = field(init=False)
    told: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        members = policy.members_of(self.alive.values())
        self.rollout = Rollout("ro", "default", self.rules, members, "ops", BEGIN, BEGIN)

    def after(self, seconds: float = 1) -> list[Stage]:
        """Where all stand after one look."""
        self.now += timedelta(seconds=seconds)
        step = policy.advance(self.rollout, list(self.alive.values()), self.now)
        self._note(step)
        return self.stages

    def _note(self, step: policy.Step) -> None:
        self.rollout = step.rollout
        for verb, ids in (("uncordon", step.uncordon), ("cordon", step.cordon), ("drain", step.drain)):
            self.told += [(verb, each) for each in ids]
        for each in step.drain:
            if each in self.alive:
                self.alive[each] = replace(self.alive[each], draining=True, cordoned=True)

    @property
    def stages(self) -> list[Stage]:
        return [member.stage for member in self.rollout.members]

    def gone(self, name: str, life: int = 1) -> None:
        del self.alive[f"{name}.{life}"]

    def born(self, name: str, life: int = 2, **more: object) -> None:
        made = report(name, life, **more)
        self.alive[made.id] = made


def world(*names: str, **rules: object) -> World:
    return World({f"{name}.1": report(name) for name in names}, replace(RULES, **rules))  # type: ignore[arg-type]


def test_one_after_the_other_and_none_before_the_last_has_served_for_a_while() -> None:
    w = world("a", "b")
    assert w.after() == [Stage.DRAINING, Stage.PENDING]
    assert w.after(20) == [Stage.DRAINING, Stage.PENDING]
    w.gone("a")
    assert w.after() == [Stage.STARTING, Stage.PENDING]
    w.born("a", state=WorkerState.STARTING)
    assert w.after() == [Stage.STARTING, Stage.PENDING]
    w.born("a")
    assert w.after() == [Stage.SETTLING, Stage.PENDING]
    assert w.after(4) == [Stage.SETTLING, Stage.PENDING]
    assert w.after() == [Stage.DONE, Stage.DRAINING]
    w.gone("b")
    w.born("b")
    assert w.after() == [Stage.DONE, Stage.SETTLING]
    assert w.rollout.state is RolloutState.RUNNING
    assert w.after(5) == [Stage.DONE, Stage.DONE]
    assert w.rollout.state is RolloutState.COMPLETED and w.rollout.ended_at == w.now
    assert [(m.version, m.successor, m.successor_version) for m in w.rollout.members] == [
        ("1.0", "a.2", "2.0"),
        ("1.0", "b.2", "2.0"),
    ]
    assert w.told == [("drain", "a.1"), ("drain", "b.1")]


def test_a_batch_is_never_exceeded_and_its_slowest_is_waited_for() -> None:
    w = world("a", "b", "c", batch=2)
    assert w.after() == [Stage.DRAINING, Stage.DRAINING, Stage.PENDING]
    w.gone("a")
    w.born("a")
    w.after()
    assert w.after(5) == [Stage.DONE, Stage.DRAINING, Stage.PENDING]
    assert w.after(1) == [Stage.DONE, Stage.DRAINING, Stage.PENDING]


def test_a_predecessor_that_is_still_in_the_registry_hides_no_successor() -> None:
    """It was killed, and its report lives for another lease."""
    w = world("a")
    w.after()
    w.born("a")
    assert w.after() == [Stage.SETTLING]


def test_a_registry_that_forgets_everybody_ends_nothing() -> None:
    w = world("a", "b")
    w.after()
    kept = dict(w.alive)
    w.alive.clear()
    assert w.after() == [Stage.STARTING, Stage.PENDING]
    w.alive.update(kept)
    assert w.after() == [Stage.DRAINING, Stage.PENDING]
    assert w.rollout.members[0].gone_at is None and w.rollout.state is RolloutState.RUNNING


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"profiles": (), "withdrawn": {"shell": "no program"}}, "it does not serve shell (no program)"),
        ({"cordoned": True}, "it takes no runs"),
        ({"state": WorkerState.STARTING}, "it is starting"),
        ({"version": "1.9"}, "its version is 1.9, not 2.0"),
        (None, "nobody has started it again"),
    ],
)
def test_without_a_healthy_successor_it_fails_and_leaves_the_others_alone(
    more: dict[str, object] | None, why: str
) -> None:
    w = world("a", "b", "c", batch=2, version="2.0")
    w.after()
    w.gone("a")
    if more is not None:
        w.born("a", **more)
    assert w.after() == [Stage.STARTING, Stage.DRAINING, Stage.PENDING]
    assert w.rollout.members[0].reason == (None if more is None else why)
    assert w.after(59) == [Stage.STARTING, Stage.DRAINING, Stage.PENDING]
    assert w.after() == [Stage.FAILED, Stage.RELEASED, Stage.PENDING]
    assert w.rollout.state is RolloutState.FAILED
    assert w.rollout.error == f"a on h: no healthy successor in time: {why}"
    assert w.told[-1] == ("uncordon", "b.1")


def test_a_successor_that_dies_again_and_again_is_not_healthy() -> None:
    w = world("a")
    w.after()
    w.gone("a")
    for life in range(2, 30):
        w.born("a", life)
        w.after(2)
        w.gone("a", life)
        w.after(1)
        if not w.rollout.state.open:
            break
    assert w.rollout.state is RolloutState.FAILED and w.now < BEGIN + timedelta(seconds=70)


def test_nor_is_one_whose_dead_are_never_missed() -> None:
    """Each is restarted at once, while the report of the last one is still in the registry."""
    w = world("a", "b", settle=timedelta(seconds=10))
    w.after()
    w.gone("a")
    for life in range(2, 30):
        w.born("a", life)
        w.after(6)
        if not w.rollout.state.open:
            break
    assert w.rollout.error == "a on h: its successors do not last"
    assert w.now < BEGIN + timedelta(seconds=80) and w.stages == [Stage.FAILED, Stage.PENDING]


@pytest.mark.parametrize("begun", [1, 100])
def test_a_successor_that_the_registry_forgets_for_a_moment_is_not_gone(begun: float) -> None:
    """However long ago its predecessor ended: it may have to serve for longer than it had to come up."""
    w = world("a", settle=timedelta(seconds=120))
    w.after()
    w.gone("a")
    w.born("a")
    w.after()
    assert w.after(begun) == [Stage.SETTLING]
    kept, w.alive = w.alive, {}
    assert (w.after(), w.after(30)) == ([Stage.STARTING], [Stage.STARTING])
    w.alive = kept
    assert (w.after(), w.after(119), w.after()) == ([Stage.SETTLING], [Stage.SETTLING], [Stage.DONE])
    gone = world("a")
    gone.after()
    gone.gone("a")
    gone.born("a")
    gone.after()
    gone.gone("a", 2)
    gone.after()
    assert gone.after(60) == [Stage.FAILED], "but not for ever"


def test_two_blips_far_apart_are_no_end_of_one_that_waits_for_its_turn() -> None:
    w = world("a", "b")
    kept, w.alive = w.alive, {}
    assert w.after() == [Stage.PENDING, Stage.PENDING]
    w.alive = kept
    assert w.after() == [Stage.DRAINING, Stage.PENDING]
    w.gone("a")
    w.born("a")
    w.after(60)
    w.gone("b")
    assert w.after(5) == [Stage.DONE, Stage.PENDING]
    w.alive["b.1"] = report("b")
    assert w.after() == [Stage.DONE, Stage.DRAINING]


def test_one_that_does_not_end_fails_it_unless_its_runs_may_take_as_long_as_they_need() -> None:
    w = world("a")
    w.after()
    limit = 30 + policy.ENDS_WITHIN.total_seconds()
    assert w.after(limit - 1) == [Stage.DRAINING]
    assert w.after() == [Stage.FAILED] and w.rollout.error == "a on h: it does not end"
    assert w.rollout.state is RolloutState.FAILED
    patient = world("a", drain=Drain(timedelta(seconds=30), AtDeadline.WAIT))
    patient.after()
    assert patient.after(1_000_000) == [Stage.DRAINING]


def test_a_command_that_was_lost_is_given_again() -> None:
    w = world("a")
    w.after()
    w.alive["a.1"] = report("a")  # it knows of no drain
    for _ in range(12):
        w.alive["a.1"] = report("a")
        w.after()
    assert w.told == [("drain", "a.1")] * 3


KEPT = Cordon(host="h", name="a", pool="default", worker_id=WorkerId("a.1"), by="op", at=BEGIN)


@pytest.mark.parametrize("before", [None, KEPT], ids=["meanwhile", "before"])
def test_whom_an_operator_has_cordoned_is_healthy_and_told_nothing(before: Cordon | None) -> None:
    """It is cordoned by its row, however often it is restarted."""
    w = world("a")
    w.alive["a.1"] = report("a", cordoned=before is not None, cordon=before)
    w.__post_init__()
    w.after()
    w.gone("a")
    w.born("a", cordoned=True, cordon=KEPT)
    assert w.after() == [Stage.SETTLING]
    assert w.after(5) == [Stage.DONE]
    assert w.told == [("drain", "a.1")]


@pytest.mark.parametrize(("kept", "again"), [(None, ("a.1",)), (KEPT, ())])
def test_a_cordon_of_one_life_ends_with_it_and_stands_when_the_drain_is_taken_back(
    kept: Cordon | None, again: tuple[str, ...]
) -> None:
    w = world("a")
    w.alive["a.1"] = report("a", cordoned=True, cordon=kept)
    w.__post_init__()
    w.after()
    step = policy.end(w.rollout, RolloutState.ABORTED, "by ops", list(w.alive.values()), w.now)
    assert (step.uncordon, step.cordon) == (("a.1",), again)
    w.gone("a")
    w.born("a")
    w.after()
    assert w.after(5) == [Stage.DONE]
    assert w.told == [("drain", "a.1")]


def test_who_lives_in_an_api_is_drained_by_others_or_gone_is_passed_over() -> None:
    w = world("a", "b", "c", "d")
    w.alive["a.1"] = report("a", embedded=True)
    w.__post_init__()
    w.alive["b.1"] = replace(w.alive["b.1"], draining=True, cordoned=True)
    w.gone("c")
    assert w.after() == [Stage.SKIPPED, Stage.PENDING, Stage.PENDING, Stage.DRAINING]
    w.gone("d")
    w.born("d")
    w.after()
    assert w.after(5) == [Stage.SKIPPED, Stage.SKIPPED, Stage.PENDING, Stage.DONE]
    assert w.after(59)[2] is Stage.SKIPPED, "missing for a minute"
    assert w.rollout.state is RolloutState.COMPLETED
    assert w.told == [("drain", "d.1")]
    assert {m.name: m.reason for m in w.rollout.members if m.reason} == {
        "a": "it lives inside an API process, which does not end by a drain",
        "b": "somebody else drains it",
        "c": "it is gone",
    }


def test_a_drain_that_was_taken_back_a_moment_ago_keeps_nobody_from_being_restarted() -> None:
    """By the abort of the rollout before; the registry hears of it with the next report."""
    w = world("a")
    w.alive["a.1"] = replace(w.alive["a.1"], draining=True, cordoned=True)
    assert (w.after(), w.after(4)) == ([Stage.PENDING], [Stage.PENDING])
    w.alive["a.1"] = report("a")
    assert w.after() == [Stage.DRAINING]


def test_one_that_was_restarted_meanwhile_is_only_looked_at() -> None:
    w = world("a", "b")
    w.gone("b")
    w.born("b")
    w.after()
    w.gone("a")
    w.born("a")
    w.after()
    assert w.after(5) == [Stage.DONE, Stage.SETTLING]
    assert w.told == [("drain", "a.1")]


def test_an_abort_takes_back_what_still_serves() -> None:
    w = world("a", "b", "c", batch=2)
    w.after()
    w.alive["b.1"] = replace(w.alive["b.1"], state=WorkerState.STOPPING)
    step = policy.end(w.rollout, RolloutState.ABORTED, "by ops", list(w.alive.values()), w.now)
    assert [m.stage for m in step.rollout.members] == [Stage.RELEASED, Stage.DRAINING, Stage.PENDING]
    assert step.uncordon == ("a.1",) and step.cordon == ()
    assert (step.rollout.state, step.rollout.error) == (RolloutState.ABORTED, "by ops")


EVENTS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["end", "start", "blip", "crash"])), max_size=40)


@given(EVENTS, st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_whatever_happens_no_more_than_a_batch_is_drained_at_once(
    events: Sequence[tuple[str, str]], batch: int
) -> None:
    w = world("a", "b", "c", "d", batch=batch)
    lives = dict.fromkeys("abcd", 1)
    for name, what in events:
        current = f"{name}.{lives[name]}"
        if what == "start" and current not in w.alive:
            lives[name] += 1
            w.born(name, lives[name])
        elif what == "crash" or (what == "end" and current in w.alive and w.alive[current].draining):
            w.alive.pop(current, None)
        kept = w.alive
        if what == "blip":
            w.alive = {}
        w.after()
        w.alive = kept
        under_way = [stage for stage in w.stages if stage.under_way]
        assert len(under_way) <= batch
        drained = [each for verb, each in w.told if verb == "drain"]
        assert all(each.endswith(".1") for each in drained), "a successor is never drained"
        if not w.rollout.state.open:
            return
