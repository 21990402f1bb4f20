"""The fleet that other tests use: real processes, killed and started again by name or index."""

import signal
from collections.abc import Callable

import pytest

from oah.errors import Unavailable
from oah.testing.fleet import CONTROLLER, Fleet
from oah.testing.processes import alive
from tests.support import eventually

pytestmark = pytest.mark.process


def test_a_worker_that_is_killed_and_comes_back_recovers_its_own_run(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(workers=1, slots=2)
    client = fleet.client
    assert set(fleet.pids) == {"api", "controller", "worker-1"}
    run = client.submit(client.create_session("shell")["id"], "sleep 3; echo done")["id"]
    eventually(lambda: client.run(run)["status"] == "running", within=30, what="the run runs")
    first = client.run(run)["worker_id"]
    assert fleet.worker_of(first) == "worker-1"
    pid = fleet.kill(0)
    assert not alive(pid)
    assert "worker-1" not in fleet.pids
    assert fleet.restart("worker-1") != pid
    assert client.wait(run, timeout=60)["status"] == "completed"
    started = [attempt["worker_id"] for attempt in client.attempts(run)]
    assert len(started) == 2
    assert started[0] == first != started[1]
    assert fleet.lines("worker-1")
    assert "worker-1 (pid" in fleet.report()


def test_processes_end_as_they_are_told(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(workers=1)
    fleet.signal(CONTROLLER, signal.SIGTERM)
    assert fleet.wait_exit(CONTROLLER) == 0
    fleet.signal(0, signal.SIGSTOP)
    with pytest.raises(Unavailable):
        fleet.wait_exit(0, within=0.2)
    fleet.close()
    assert fleet.pids == {}
    assert fleet.stubborn == []


def test_a_fleet_that_does_not_come_up_says_why(start_fleet: Callable[..., Fleet]) -> None:
    with pytest.raises(Unavailable, match="before the system was ready") as caught:
        start_fleet(workers=0, database_url="mysql://nonsense")
    assert "mysql" in "".join(caught.value.__notes__)
