"""Workers as people see them: elastic slots, weights, pressure; and whether those inside an API are alive."""

from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from oah.cli.main import oah
from tests.support.api import Deployment, deploy
from tests.support.servers_redis import FakeServer


@pytest.fixture
def shown(api: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Deployment:
    """Three workers: one elastic, one with heavy agents, one under pressure."""
    api.report_worker(name="elastic", slots=3, slots_max=8, busy=2, weight=2)
    api.report_worker(name="heavy", slots=8, slots_max=8, busy=2, weight=7, weights={"python": 3}, memory_ratio=0.6)
    api.report_worker(name="pressed", pressure=("memory", "disk"), memory_ratio=0.95, disk_ratio=0.97)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OAH_API_URL", api.url)
    monkeypatch.setenv("OAH_API_KEY", api.secrets["admin"])
    return api


def test_what_the_fleet_counts_is_the_maximum(shown: Deployment) -> None:
    by_name = {worker["name"]: worker for worker in shown.client().workers()}
    told = {name: [w[key] for key in ("slots", "slots_max", "busy", "weight")] for name, w in by_name.items()}
    assert told == {"elastic": [3, 8, 2, 2], "heavy": [8, 8, 2, 7], "pressed": [8, 8, 2, 2]}
    assert (by_name["pressed"]["pressure"], by_name["pressed"]["disk_ratio"]) == (["memory", "disk"], 0.97)
    queue = shown.client().queue()
    assert (queue["globalSlotCapacity"], queue["globalBusySlots"]) == (24, 11)
    assert queue["availableIdleCapacity"] == 6 + 1 + 0, "nobody gives anything to a machine under pressure"


def test_the_tables_show_it(shown: Deployment) -> None:
    rows = CliRunner().invoke(oah, ["worker", "list"]).stdout.splitlines()
    assert [next(word for word in rows if word.startswith(name)) for name in ("elastic", "heavy", "pressed")]
    text = "\n".join(rows)
    assert all(words in text for words in ("2/3 of 8", "2 (7)/8", "memory,disk"))
    top = CliRunner().invoke(oah, ["top", "--once"]).stdout
    assert "2/3 of 8" in top and "memory" in top


def test_a_run_says_that_its_workers_are_under_pressure_or_too_full_for_it(shown: Deployment) -> None:
    client = shown.client()
    assert shown.broker.lead("controller", lease=timedelta(minutes=5))
    python = client.create_session("python")["id"]
    run = client.submit(python, "x")["id"]
    assert client.run(run)["wait_reason"]["code"] == "dispatching", "the elastic one has room"
    shown.report_worker(name="elastic", slots=8, busy=8, profiles=("shell", "python"))
    reason = client.run(run)["wait_reason"]
    assert (reason["code"], reason["workers"]) == ("no_free_slot", 3), "one slot is free, it takes three"
    for name in ("elastic", "heavy"):
        shown.report_worker(name=name, pressure=("load",))
    reason = client.run(run)["wait_reason"]
    assert (reason["code"], reason["resources"]) == ("pressure", ["disk", "load", "memory"])


def test_an_api_is_not_alive_while_a_worker_inside_it_is_stuck(sqlite_url: str, tmp_path: Path) -> None:
    stuck: list[str] = []
    broker = FakeServer().broker()
    with deploy(sqlite_url, broker, tmp_path, stuck=lambda: stuck) as api, api.http(None) as http:
        assert http.get("/healthz").status_code == 200
        stuck.append("the claimer loop has not moved for 61 s")
        answer = http.get("/healthz")
        assert (answer.status_code, answer.json()["status"], answer.json()["reasons"]) == (503, "stuck", stuck)
        stuck.clear()
        assert http.get("/healthz").status_code == 200
    broker.close()
