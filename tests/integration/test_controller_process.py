"""The controller as a process part: real loops, real clocks, real leader leases."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from oah.adapters.system.clock import SystemClock
from oah.adapters.system.ids import SystemIds
from oah.bootstrap.kit import profile_policies
from oah.controller.process import ControllerContext, Endpoint, create_controller
from oah.controller.rules import ControllerRules, controller_rules
from oah.core.model.epoch import EpochState
from oah.core.model.run import RunStatus
from oah.core.model.session import Place
from oah.core.policy.recovery import Override, Rules, Strategy
from oah.errors import Unavailable
from oah.ports.election import Election
from oah.ports.telemetry import NullTelemetry
from oah.runtime.component import Component
from oah.runtime.group import Group
from oah.runtime.leadership import Leadership
from oah.runtime.probe import Probe
from oah.services.decisions import Decisions
from oah.services.epoch import EpochKeeper
from oah.settings import Settings
from tests.model.world import World
from tests.support import eventually
from tests.support.worlds import MakeWorld

SECOND = timedelta(seconds=1)
"""Time is the real one here, so a second of the world is one."""
LEASE = 6 * SECOND
LEADER_LEASE = timedelta(seconds=3)
RULES = ControllerRules(
    Rules(Strategy.REQUEUE_RUNNING),
    lease=LEASE,
    margin=LEASE / 6,
    leader_lease=LEADER_LEASE,
    leader_renew=timedelta(seconds=1),
    relay_older_than=timedelta(milliseconds=200),
    tick_every=timedelta(milliseconds=200),
    relay_every=timedelta(milliseconds=200),
    sweep_every=timedelta(milliseconds=200),
)


@dataclass
class Running:
    """A controller that runs in this process."""

    group: Group
    components: list[Component]
    decisions: Decisions
    stopped: bool = field(default=False)

    def leads(self) -> bool:
        return next(c for c in self.components if isinstance(c, Leadership)).leads()

    def page(self, path: str) -> tuple[int, Any]:
        probe = next(c for c in self.components if isinstance(c, Probe))
        assert probe.address is not None
        with urllib.request.urlopen(f"http://127.0.0.1:{probe.address[1]}{path}", timeout=5) as answer:
            return answer.status, answer.read()

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            assert self.group.stop(timedelta(0)) == []
            assert self.group.failure is None


StartController = Callable[..., Running]


@pytest.fixture
def start_controller() -> Iterator[StartController]:
    with ExitStack() as stack:

        def start(world: World, holder: str, election: Election | None = None) -> Running:
            clock, ids = SystemClock(), SystemIds()
            decisions = Decisions(clock)
            context = ControllerContext(
                store=world.store,
                broker=world.broker,
                clock=clock,
                ids=ids,
                telemetry=NullTelemetry(),
                epochs=EpochKeeper(world.store, world.broker, ids, NullTelemetry()),
                rules=RULES,
                holder=holder,
                decisions=decisions,
                endpoint=Endpoint("127.0.0.1", 0, lambda: (b"oah_leader 1\n", "text/plain")),
                election=election,
            )
            components = create_controller(context)
            running = Running(Group(components, clock=clock), components, decisions)
            stack.callback(running.stop)
            running.group.start()
            return running

        yield start


def _place(world: World, number: int = 0) -> Place:
    return world.broker.leases(world.keeper().refresh(), [world.sessions[number]])[0].place


def test_it_mints_relays_promotes_and_shows(make_world: MakeWorld, start_controller: StartController) -> None:
    world = make_world(second=SECOND)
    world.flush()
    world.submit(world.sessions[0], heard=False)
    world.submit(world.sessions[1], delay=0.5, heard=False)
    controller = start_controller(world, "controller-a")
    eventually(lambda: world.broker.view().state is EpochState.OPEN, within=10, what="the shard is open")
    eventually(lambda: _place(world, 0) is Place.READY, within=10, what="what was never heard is ready")
    eventually(lambda: _place(world, 1) is Place.READY, within=10, what="what is due is ready")
    assert controller.page("/healthz")[0] == 200
    assert controller.page("/readyz")[0] == 200
    assert controller.page("/metrics")[1] == b"oah_leader 1\n"
    status, body = controller.page("/decisions")
    assert status == 200
    assert {"kind": "epoch", "outcome": "minted", "reason": "missing"}.items() <= json.loads(body)["items"][-1].items()
    assert json.loads(controller.page("/controller")[1]) == {
        "holder": "controller-a",
        "leader": "controller-a",
        "leads": True,
    }


class Elsewhere:
    """An election that is not the broker's."""

    def __init__(self) -> None:
        self.holder: str | None = None
        self.away = False

    def lead(self, holder: str, *, lease: timedelta) -> bool:
        self.holder = self.holder or holder
        return self.holder == holder

    def resign(self, holder: str) -> None:
        self.holder = None if self.holder == holder else self.holder

    def leader(self) -> str | None:
        if self.away:
            raise Unavailable("no answer")
        return self.holder


@pytest.mark.parametrize("make_world", ["memory"], indirect=True)
def test_an_election_elsewhere_decides_and_is_shown(make_world: MakeWorld, start_controller: StartController) -> None:
    world, election = make_world(second=SECOND), Elsewhere()
    election.holder = "another"
    controller = start_controller(world, "controller-a", election)
    assert json.loads(controller.page("/controller")[1])["leader"] == "another"
    election.resign("another")
    eventually(controller.leads, within=10, what="it leads")
    assert (election.holder, world.broker.leader()) == ("controller-a", None)
    assert controller.page("/readyz")[0] == 200
    election.away = True
    with pytest.raises(urllib.error.HTTPError) as caught:
        controller.page("/readyz")
    assert json.loads(caught.value.read())["reasons"] == ["election: no answer"]
    controller.stop()
    assert election.holder is None


@pytest.mark.parametrize("make_world", ["servers"], indirect=True)
def test_another_takes_over_and_recovers(make_world: MakeWorld, start_controller: StartController) -> None:
    """The leader goes, another leads at once; the dead worker's run comes back after a lease."""
    world = make_world(second=SECOND)
    run = world.submit(world.sessions[0]).run
    worker = world.workers["w1"]
    first = start_controller(world, "controller-a")
    eventually(first.leads, within=5, what="the first leads")
    second = start_controller(world, "controller-b")
    worker.claim()
    worker.start()
    first.stop()
    eventually(second.leads, within=6, what="the second leads")

    clock = SystemClock()
    began = clock.monotonic()

    def confirmed() -> bool:
        worker.renew()
        worker.mark()
        return clock.monotonic() - began > LEASE.total_seconds()

    eventually(confirmed, within=20, every=0.5, what="the new leader's first lease passes")
    assert world.store.run(run.id, None).status is RunStatus.RUNNING
    gone = clock.monotonic()
    worker.entries.clear()

    def queued() -> bool:
        return world.store.run(run.id, None).status is RunStatus.QUEUED

    eventually(queued, within=25, every=0.05, what="the run is queued again")
    took = clock.monotonic() - gone
    # A stall of this machine looks like a clock that has stepped, which puts recovery on hold for one more lease.
    assert LEASE.total_seconds() - 0.2 < took < 2 * LEASE.total_seconds() + 4
    eventually(lambda: _place(world) is Place.READY, within=5, what="and its session ready")
    assert any(each.kind == "recovery" and each.outcome == "requeued" for each in second.decisions.last())


def test_the_rules_come_from_the_settings() -> None:
    settings = Settings(lease_seconds=6, stale_run_recovery_max_attempts=7)
    rules = controller_rules(settings)
    assert (rules.lease, rules.margin) == (timedelta(seconds=6), timedelta(seconds=1))
    assert rules.recovery == Rules(Strategy.FAIL, 7), "in process: nothing is queued again by itself"
    rules = controller_rules(Settings(redis_url="redis://somewhere"))
    assert rules.recovery == Rules(Strategy.REQUEUE_RUNNING, 3)
    assert rules.leader_lease == timedelta(seconds=15)


def test_profiles_say_what_they_say_and_a_bad_catalogue_says_nothing(tmp_path: Path) -> None:
    assert profile_policies(tmp_path) == {}, "none of the built-in ones says anything"
    head = 'name = "x"\nkind = "command"\nargv = ["x"]\n'
    (tmp_path / "x.toml").write_text(head + '[recovery]\nstrategy = "fail"\n')
    assert profile_policies(tmp_path) == {"x": Override(Strategy.FAIL)}
    assert controller_rules(Settings(), profile_policies(tmp_path)).profiles == {"x": Override(Strategy.FAIL)}
    (tmp_path / "y.toml").write_text("name = ")
    assert profile_policies(tmp_path) == {}
