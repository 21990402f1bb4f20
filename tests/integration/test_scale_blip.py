"""Scaling by real figures of both stores: a Redis that loses everything makes no pool smaller."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from oah.adapters.system.ids import SystemIds
from oah.core.model.ids import WorkerId
from oah.core.model.worker import WorkerReport, WorkerState
from oah.core.policy import scaling
from oah.ports.scaling import DecisionFilter, TargetState
from oah.ports.telemetry import NullTelemetry
from oah.services.scale import ScaleFleet, ScaleRules
from oah.services.signals import PoolSignals
from tests.model.world import LEASE, SECOND, World
from tests.support.worlds import MakeWorld

NAMES = ("w1", "w2", "w3", "w4")


class Four:
    """A target of four that nobody may change."""

    name = "fake"

    def read(self) -> TargetState:
        return TargetState(4, {name: name for name in NAMES})

    def choose(self, state: TargetState, idle: Sequence[str], count: int) -> Sequence[str]:
        return list(idle)[:count]

    def resize(self, state: TargetState, size: int, *, victims: Sequence[str] = ()) -> None:
        raise AssertionError(f"{size} without {victims}")

    def close(self) -> None:
        """Nothing."""


def report(world: World) -> None:
    for number, name in enumerate(NAMES):
        world.broker.report(
            WorkerReport(
                id=WorkerId(f"{name}.1"), name=name, host="h", pid=1, pool="default", profiles=("shell",),
                state=WorkerState.IDLE, slots=4, busy=0, parked=0, cordoned=False, draining=False, version="1",
                started_at=datetime(2026, 1, 1 + number, tzinfo=UTC),
            ),
            ttl=timedelta(hours=1),
        )  # fmt: skip


def test_a_redis_that_lost_everything_makes_no_pool_smaller(make_world: MakeWorld) -> None:
    world = make_world()
    report(world)
    leader = ScaleFleet(
        store=world.store,
        broker=world.broker,
        signals=PoolSignals(world.store, world.broker, world.clock, trust=LEASE),
        target=Four(),
        rules=ScaleRules(scaling=scaling.Rules(maximum=9, down_window=2, down_cooldown=timedelta(0))),
        clock=world.clock,
        ids=SystemIds(),
        telemetry=NullTelemetry(),
        holder="h",
    )

    def passes(count: int) -> None:
        for _ in range(count):
            leader()
            world.advance(1)

    passes(1)
    world.flush()
    passes(2)
    world.lead(0, "epoch")
    passes(2)
    report(world)
    passes(2)
    assert world.store.scale_decisions(DecisionFilter()).items == ()
    world.advance(LEASE / SECOND)
    passes(3)
    [decision] = world.store.scale_decisions(DecisionFilter()).items
    assert (decision.desired, set(decision.going)) == (1, {"w2", "w3", "w4"}), "once it is sure, the youngest"
