"""Real workers of one machine: of six busy and four idle, four are wanted."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from oah.adapters.processes.roster import Roster
from oah.adapters.processes.target import ProcessTarget
from oah.adapters.system.clock import SystemClock
from oah.adapters.system.ids import SystemIds
from oah.bootstrap.kit import open_broker, open_database
from oah.cli.crew import Crew
from oah.core.policy import scaling
from oah.ports.scaling import DecisionFilter, Outcome
from oah.ports.telemetry import NullTelemetry
from oah.services.scale import ScaleFleet, ScaleRules
from oah.services.signals import PoolSignals
from oah.settings import Settings
from oah.testing.fleet import Fleet
from tests.support import eventually

pytestmark = pytest.mark.process


@pytest.mark.timeout(120)
def test_of_six_busy_and_four_idle_the_idle_go_then_two_drain(
    start_fleet: Callable[..., Fleet], short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = start_fleet(workers=10, slots=1, env={"OAH_WORKER__HEARTBEAT_SECONDS": "1"})
    monkeypatch.setenv("OAH_CONFIG", os.devnull)
    settings = Settings(data_dir=fleet.data_dir, redis_url="embedded://", lease_seconds=6)
    crew = Crew(fleet.children, Roster(fleet.data_dir, "default"), lambda _: None, count=10, prefix="worker")
    runs = {}
    for number in range(6):
        gate = short_tmp / f"gate-{number}"
        os.mkfifo(gate)
        session = fleet.client.create_session("shell")["id"]
        runs[fleet.client.submit(session, f"cat {gate}")["id"]] = gate

    def where() -> dict[str, str]:
        """Run → the worker that has it."""
        found = {run: fleet.client.run(run) for run in runs}
        return {run: fleet.worker_of(each["worker_id"]) for run, each in found.items() if each["status"] == "running"}

    at = eventually(lambda: found if len(found := where()) == 6 else None, within=30, what="six runs run")

    def reported() -> bool:
        """Who is told to go is chosen by what workers report, and that is a heartbeat late, or many on a busy machine:
        of one that looks idle and is not, another takes the place later, by a second decision."""
        return {fleet.worker_of(each["id"]) for each in fleet.client.workers() if each["busy"]} == set(at.values())

    eventually(reported, within=30, what="the registry knows who is busy")
    with closing(open_database(settings)) as store, closing(open_broker(settings)) as broker:

        def leader(holder: str) -> ScaleFleet:
            return ScaleFleet(
                store=store,
                broker=broker,
                signals=PoolSignals(store, broker, SystemClock(), trust=settings.lease),
                target=ProcessTarget(Roster(fleet.data_dir, "default")),
                rules=ScaleRules(scaling=scaling.Rules(minimum=1, maximum=4)),
                clock=SystemClock(),
                ids=SystemIds(),
                telemetry=NullTelemetry(),
                holder=holder,
            )

        def size(scale: ScaleFleet) -> int:
            crew()
            scale()
            crew()
            return len(fleet.children.worker_pids())

        one = leader("one")
        eventually(lambda: size(one) == 6, within=40, what="the four idle ones are gone")
        assert set(fleet.children.worker_pids()) == set(at.values())
        two = leader("two")
        for _ in range(3):
            size(two)
        [decision] = store.scale_decisions(DecisionFilter(pool="default")).items
        leaving = set(decision.going)
        assert (decision.outcome, decision.current, decision.desired, len(leaving)) == (Outcome.DRAINING, 10, 4, 2)
        assert where() == at
        for run in (run for run, worker in at.items() if worker in leaving):
            runs[run].write_text("over\n")
        eventually(lambda: size(two) == 4, within=40, what="the two that drained are gone")
        for run in (run for run, worker in at.items() if worker not in leaving):
            runs[run].write_text("over\n")
        decisions = store.scale_decisions(DecisionFilter(pool="default")).items
        assert [each.outcome for each in decisions] == [Outcome.SCALED], decisions
    for run in runs:
        assert fleet.client.wait(run, timeout=30)["status"] == "completed"
        assert len(fleet.client.attempts(run)) == 1
        assert "over" in fleet.client.output(run)
