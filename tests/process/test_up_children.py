"""Supervision: deaths are told with their last lines, restarts back off, output keeps its child's name."""

import signal
import socket
from pathlib import Path

import pytest

from oah.cli.children import Child, ChildSpec
from oah.cli.fleet import (
    BACKOFF_FIRST_SECONDS,
    BACKOFF_MOST_SECONDS,
    Fleet,
    Plan,
    describe_exit,
    plan_from,
    require_port,
)
from oah.errors import Conflict
from oah.settings import Settings
from tests.support import eventually

pytestmark = pytest.mark.process


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Mortal(Plan):
    """One child that ends at once, with something said."""

    def specs(self):
        yield ChildSpec("mortal", ["version"], self.environment())


def _fleet(tmp_path: Path, clock: Clock) -> tuple[Fleet, list[tuple[str, str]]]:
    lines: list[tuple[str, str]] = []
    plan = Mortal(data_dir=tmp_path / "data", clean=True)
    return Fleet(plan, sink=lambda name, line: lines.append((name, line)), clock=clock), lines


def test_a_child_that_dies_again_and_again_is_restarted_ever_later(tmp_path: Path) -> None:
    clock = Clock()
    fleet, lines = _fleet(tmp_path, clock)
    fleet.start()
    pauses = []
    for _ in range(4):
        [death] = eventually(fleet.restart_dead, within=30, what="the child's death")
        assert death.last_lines == ("0.1.0",)
        assert death.exit_code == 0
        pauses.append(death.restart_in)
        assert fleet.restart_dead() == []
        assert not fleet["mortal"].running
        clock.now += death.restart_in
        assert fleet.restart_dead() == []
    assert pauses == [BACKOFF_FIRST_SECONDS * 2**n for n in range(4)]
    assert fleet["mortal"].starts == 5
    eventually(lambda: lines == [("mortal", "0.1.0")] * 5, within=30, what="five lines")
    fleet.stop(grace=5)
    clock.now += 100
    assert fleet.restart_dead() == []


def test_the_back_off_has_an_end_and_a_long_life_resets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    fleet, _ = _fleet(tmp_path, clock)
    fleet.start()
    fleet._deaths["mortal"].in_a_row = 20
    monkeypatch.setattr(fleet["mortal"], "started_at", 0.0)
    [death] = eventually(fleet.restart_dead, within=30)
    assert (death.in_a_row, death.restart_in) == (21, BACKOFF_MOST_SECONDS)
    clock.now += death.restart_in
    fleet.restart_dead()
    monkeypatch.setattr(fleet["mortal"], "started_at", clock.now)
    clock.now += 31
    [death] = eventually(fleet.restart_dead, within=30)
    assert (death.exit_code, death.in_a_row, death.restart_in) == (0, 1, 0.0), "drained: the next one starts at once"
    fleet.stop(grace=5)


def test_what_was_killed_on_purpose_stays_dead(tmp_path: Path) -> None:
    fleet, _ = _fleet(tmp_path, Clock())
    fleet.start()
    pid = fleet.kill("mortal", signal.SIGKILL)
    assert pid == fleet["mortal"].pid
    assert fleet["mortal"].wait(60) is not None
    assert fleet.restart_dead() == []
    fleet.stop(grace=5)


def test_a_clean_plan_hides_the_callers_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAH_DATABASE_URL", "postgresql://mine")
    monkeypatch.setenv("OTHER", "kept")
    clean = Plan(data_dir=tmp_path, clean=True).environment()
    assert "OAH_DATABASE_URL" not in clean
    assert clean["OTHER"] == "kept"
    assert Plan(data_dir=tmp_path).environment()["OAH_DATABASE_URL"] == "postgresql://mine"


def test_the_plan_names_its_children(tmp_path: Path) -> None:
    plan = Plan(data_dir=tmp_path, workers=2, slots=3, port=1)
    assert [spec.name for spec in plan.specs()] == ["api", "controller", "worker-1", "worker-2"]
    assert plan.environment()["OAH_WORKER__SLOTS"] == "3"
    assert plan.url == "http://127.0.0.1:1"
    assert Plan(data_dir=tmp_path, host="0.0.0.0", port=1).url == "http://127.0.0.1:1"
    assert Plan(data_dir=tmp_path, host="::1", port=1).url == "http://[::1]:1"


def test_a_gateway_is_one_more_child_with_its_port(tmp_path: Path) -> None:
    plan = Plan(data_dir=tmp_path, workers=1, gateway_port=4222)
    assert [spec.name for spec in plan.specs()] == ["api", "controller", "gateway", "worker-1"]
    assert plan.environment()["OAH_GATEWAY_PORT"] == "4222"
    settings = Settings(data_dir=tmp_path, gateway_port=1)
    assert plan_from(settings, workers=0, slots=None).gateway_port == 1
    assert plan_from(settings, workers=0, slots=None, gateway=False).gateway_port is None


def test_up_takes_a_private_server_unless_a_redis_is_named(tmp_path: Path) -> None:
    plan = plan_from(Settings(data_dir=tmp_path, api_port=1), workers=1, slots=None)
    assert (plan.redis_url, plan.workers, plan.port, plan.data_dir) == ("embedded://", 1, 1, tmp_path)
    named = plan_from(Settings(data_dir=tmp_path, redis_url="redis://there:1"), workers=1, slots=None)
    assert named.redis_url == "redis://there:1"


def test_up_beside_another_one_takes_another_port_for_its_controller(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = Settings(data_dir=tmp_path, controller={"port": taken.getsockname()[1]}, gateway={"probe_port": 0})
        assert plan_from(settings, workers=0, slots=None).env == {"OAH_CONTROLLER__PORT": "0"}
    assert plan_from(settings, workers=0, slots=None).env == {}


def test_a_port_that_is_taken_is_a_conflict() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Conflict, match="cannot listen"):
            require_port("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize(("code", "text"), [(0, "exit 0"), (3, "exit 3"), (-9, "SIGKILL"), (-300, "signal 300")])
def test_exit_codes_for_people(code: int, text: str) -> None:
    assert describe_exit(code) == text


def test_standard_error_of_a_child_is_read_too(tmp_path: Path) -> None:
    lines: list[str] = []
    spec = ChildSpec("c", ["session", "create", "--agent"], Plan(data_dir=tmp_path, clean=True).environment())
    child = Child(spec, sink=lambda _, line: lines.append(line), cwd=tmp_path)
    child.start()
    assert child.wait(30) == 2
    child.close()
    assert lines
    assert lines[0].startswith("error: ")
