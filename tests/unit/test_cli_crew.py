"""How many workers there are on a machine: what is asked for, and what the roster says later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from oah.adapters.processes.roster import Roster
from oah.adapters.processes.target import ProcessTarget
from oah.cli import fleet as fleet_module
from oah.cli.children import ChildSpec
from oah.cli.crew import Between, Crew, Workers, scaled_by
from oah.cli.fleet import Fleet, Plan
from oah.cli.main import oah
from oah.settings import Settings


class FakeChild:
    """Lives until it is signalled and let go."""

    def __init__(self, spec: ChildSpec, **_: Any) -> None:
        self.spec = spec
        self.name = spec.name
        self.running = False
        self.signals: list[int] = []
        self.pid = abs(hash(spec.name)) % 30_000

    def start(self) -> None:
        self.running = True

    def signal(self, number: int) -> None:
        self.signals.append(number)

    def wait(self, timeout: float) -> int | None:
        return None if self.running else 0

    def close(self) -> None:
        """Nothing."""


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setattr(fleet_module, "Child", FakeChild)
    made = Fleet(Plan(data_dir=tmp_path, workers=2, clean=True), sink=lambda *_: None)
    made.start()
    return made


@pytest.mark.parametrize(
    ("said", "found"), [("3", Between(3, 3)), ("0..4", Between(0, 4)), ("2..2", Between(2, 2)), ("0", Between(0, 0))]
)
def test_how_many_is_a_number_or_a_range(said: str, found: Between) -> None:
    assert Workers(most=64).convert(said, None, None) == found
    assert found.elastic is (said == "0..4")


@pytest.mark.parametrize("said", ["", "x", "4..1", "-1", "1..", "..3", "1..65", "1...3", "65"])
def test_anything_else_is_a_usage_error(said: str) -> None:
    with pytest.raises(click.BadParameter):
        Workers(most=64).convert(said, None, None)
    result = CliRunner().invoke(oah, ["up", "--workers", said])
    assert result.exit_code == 2


def test_a_controller_is_told_what_to_scale(tmp_path: Path) -> None:
    told = scaled_by(Between(1, 6), Settings(data_dir=tmp_path, worker={"pool": "gpu"}))
    assert told == {
        "OAH_SCALE__TARGET": "processes",
        "OAH_SCALE__POOL": "gpu",
        "OAH_SCALE__MINIMUM": "1",
        "OAH_SCALE__MAXIMUM": "6",
    }


def test_the_roster_is_followed_and_told_who_runs(fleet: Fleet, tmp_path: Path) -> None:
    said: list[str] = []
    crew = Crew(fleet, Roster(tmp_path, "default"), said.append, count=2, prefix="worker")
    target = ProcessTarget(Roster(tmp_path, "default"))
    crew()
    state = target.read()
    assert (state.settled, set(state.members)) == (True, {"worker-1", "worker-2"})
    target.resize(state, 3)
    crew()
    assert fleet["worker-3"].running and target.read().settled
    target.resize(target.read(), 1, victims=["worker-1", "worker-3"])
    crew()
    assert fleet["worker-1"].signals and not fleet["worker-2"].signals
    assert not target.read().settled, "they end at their own pace"
    assert fleet.restart_dead() == []
    for name in ("worker-1", "worker-3"):
        fleet[name].running = False  # type: ignore[misc]
    crew()
    assert fleet.worker_names == ("worker-2",)
    assert target.read().settled
    assert fleet.restart_dead() == [], "who was to go is not started again"
    assert said == [
        "1 more, 3 workers now: worker-3",
        "2 fewer, 1 workers now: worker-1, worker-3",
    ]
    crew.close()


def test_one_that_crashes_is_still_a_member(fleet: Fleet, tmp_path: Path) -> None:
    crew = Crew(fleet, Roster(tmp_path, "default"), lambda _: None, count=2, prefix="worker")
    crew()
    fleet["worker-2"].running = False  # type: ignore[misc]
    crew()
    state = ProcessTarget(Roster(tmp_path, "default")).read()
    assert (state.size, state.settled, state.members["worker-2"]) == (2, False, "starting")
    crew.close()
