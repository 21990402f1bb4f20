"""The elastic pool of real workers: slots come and go, agents take as many as they weigh, pressure keeps one out."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oah.adapters.pty.profiles import load_profiles
from oah.bootstrap.kit import PROFILES_DIR
from oah.cli.fleet import free_port
from oah.testing.fleet import Fleet
from tests.support import eventually

pytestmark = pytest.mark.process

HEAVY = """
name = "heavy"
kind = "command"
argv = ["bash", "-c", "{input}"]
slot_weight = 3
"""


def page(port: int, path: str) -> tuple[int, Any]:
    """What a worker says of itself to everybody."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_slots_open_when_they_are_needed_and_close_again(start_fleet: Callable[..., Fleet], short_tmp: Path) -> None:
    agents = short_tmp / "d" / PROFILES_DIR
    agents.mkdir(parents=True)
    (agents / "heavy.toml").write_text(HEAVY)
    assert load_profiles(agents)["heavy"].slot_weight == 3
    calm, pressed = free_port(), free_port()
    fleet = start_fleet(
        workers=2,
        slots=4,
        env={
            "OAH_WORKER__SLOTS_MIN": "1",
            "OAH_WORKER__SLOT_IDLE_SECONDS": "0.5",
            "OAH_WORKER__HEARTBEAT_SECONDS": "0.5",
        },
        own={
            "worker-1": {"OAH_WORKER__PORT": str(calm)},
            "worker-2": {
                "OAH_WORKER__PORT": str(pressed),
                "OAH_WORKER__PRESSURE__DISK": "0.000001",
                "OAH_WORKER__STUCK_SECONDS": "0.001",
            },
        },
    )
    client, gate = fleet.client, short_tmp / "gate"
    holds = f"while [ ! -e {gate} ]; do sleep 0.05; done"

    def submit(agent: str) -> str:
        return str(client.submit(client.create_session(agent)["id"], holds)["id"])

    def worker(name: str) -> dict[str, Any]:
        return next(each for each in client.workers() if each["name"] == name)

    def running(*runs: str) -> bool:
        documents = [client.run(run) for run in runs]
        return all(each["status"] == "running" for each in documents) and {
            fleet.worker_of(each["worker_id"]) for each in documents
        } == {"worker-1"}

    eventually(lambda: worker("worker-2")["pressure"] == ["disk"], within=20, every=0.1, what="it is under pressure")
    assert (worker("worker-1")["slots"], worker("worker-1")["slots_max"], client.queue()["globalSlotCapacity"]) == (
        1,
        4,
        8,
    )
    runs = [submit("shell") for _ in range(4)]
    eventually(lambda: running(*runs), within=20, every=0.1, what="all run on the worker that is not under pressure")
    further = submit("shell")
    eventually(lambda: (worker("worker-1")["slots"], worker("worker-1")["busy"]) == (4, 4), within=20, every=0.1)
    assert client.run(further)["wait_reason"]["code"] == "no_free_slot"
    two, shown = page(pressed, "/pool"), page(calm, "/pool")
    assert (two[1]["slots"], two[1]["pressure"], two[1]["busy"]) == (1, ["disk"], 0)
    assert (shown[1]["slots"], shown[1]["recent"][-1]["to"]) == (4, 4)
    gate.touch()
    assert [client.wait(run, timeout=30)["status"] for run in [*runs, further]] == ["completed"] * 5
    eventually(lambda: worker("worker-1")["slots"] == 1, within=30, every=0.1, what="they are closed again")
    assert client.queue()["globalSlotCapacity"] == 8, "what opens and closes is no capacity that comes and goes"

    gate.unlink()
    first, second = submit("heavy"), submit("heavy")
    eventually(lambda: running(first) or running(second), within=20, every=0.1)
    eventually(lambda: worker("worker-1")["weight"] == 3, within=20, every=0.1)
    light = submit("shell")
    eventually(lambda: running(light), within=20, every=0.1, what="what is left is enough for a light one")
    assert worker("worker-1")["weight"] <= 4 and {client.run(run)["status"] for run in (first, second)} == {
        "running",
        "queued",
    }
    gate.touch()
    assert [client.wait(run, timeout=30)["status"] for run in (first, second, light)] == ["completed"] * 3

    assert (page(calm, "/healthz")[0], page(calm, "/healthz")[0]) == (200, 200)

    def stuck() -> bool:
        status, body = page(pressed, "/healthz")
        return (status, body["status"]) == (503, "stuck")

    eventually(stuck, within=20, what="nothing has moved within a millisecond")
