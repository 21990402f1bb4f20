"""`oah doctor --direct` and `oah queue repair --direct`: SQL against Redis, on real stores that were damaged."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner, Result

from oah.cli.fleet import free_port
from oah.cli.main import oah
from oah.testing.fleet import CONTROLLER, Fleet
from tests.support import eventually


def call(*args: str) -> Result:
    result = CliRunner().invoke(oah, list(args))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def findings(result: Result) -> dict[str, dict]:
    return {finding["check"]: finding for finding in json.loads(result.stdout)["findings"]}


@pytest.fixture
def fleet(start_fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fleet:
    """No workers, and a leader that was there once: what waits, waits, and nobody repairs it."""
    port = free_port()
    running = start_fleet(workers=0, env={"OAH_CONTROLLER__PORT": str(port)})
    monkeypatch.setenv("OAH_CONTROLLER__PORT", str(port))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OAH_API_URL", running.url)
    monkeypatch.setenv("OAH_DATA_DIR", str(running.data_dir))
    monkeypatch.setenv("OAH_REDIS_URL", "embedded://")
    monkeypatch.setenv("OAH_LEASE_SECONDS", "6")
    for name in ("OAH_API_KEY", "OAH_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    eventually(lambda: running.client.controller()["epoch"]["state"] == "open", within=30, what="the epoch is open")
    return running


def test_doctor_and_repair(fleet: Fleet) -> None:
    healthy = call("doctor", "--direct", "--json")
    assert healthy.exit_code == 0, healthy.stdout
    assert {"eviction", "persistence", "schema", "durability", "epoch", "leader", "audit", "clock_redis"} <= {
        name for name, finding in findings(healthy).items() if finding["level"] == "ok"
    }
    sessions = [fleet.client.create_session("shell")["id"] for _ in range(3)]
    runs = [fleet.client.submit(session, "echo hi")["id"] for session in sessions]
    assert call("queue", "repair", "--direct", "--dry-run").exit_code == 0
    place = json.loads(call("queue", "inspect", sessions[0], "--direct", "--json").stdout)
    assert (place["broker"]["place"], place["owner"]) == ("ready", None)
    assert [run["id"] for run in place["queue"]] == [runs[0]]

    fleet.kill(CONTROLLER)
    with redis.Redis(unix_socket_path=str(fleet.data_dir / "redis" / "redis.sock")) as server:
        lost = [key for key in server.keys("*") if sessions[1].encode() in key]
        assert lost
        server.delete(*lost)

    found = call("doctor", "--direct", "--json")
    assert found.exit_code == 1
    assert sessions[1] in findings(found)["audit_no_place"]["message"]
    dry = json.loads(call("queue", "repair", "--direct", "--dry-run", "--json").stdout)
    found = {"no_place": [sessions[1]], "stray": [sessions[1]]}
    assert (dry["faults"], dry["repaired"], dry["left"]) == (found, [], 1)
    repaired = call("queue", "repair", "--direct", "--json")
    assert repaired.exit_code == 0
    assert json.loads(repaired.stdout)["repaired"] == [sessions[1]]
    assert json.loads(call("queue", "repair", "--direct", "--dry-run", "--json").stdout)["faults"] == {}


def test_doctor_sees_eviction_a_flush_and_a_missing_leader(fleet: Fleet) -> None:
    decided = json.loads(call("controller", "decisions", "--at", ":", "--json").stdout)["items"]
    assert "epoch" in {decision["kind"] for decision in decided}
    fleet.kill(CONTROLLER)
    assert call("controller", "decisions", "--at", ":").exit_code == 5
    assert json.loads(call("controller", "decisions", "--json").stdout) == {"items": [], "more": False}
    with redis.Redis(unix_socket_path=str(fleet.data_dir / "redis" / "redis.sock")) as server:
        server.config_set("maxmemory-policy", "allkeys-lru")
        server.flushall()
    found = call("doctor", "--direct", "--json")
    assert found.exit_code == 1
    wrong = {name for name, finding in findings(found).items() if finding["level"] == "error"}
    assert {"eviction", "epoch", "leader"} <= wrong
    assert "leader" in call("doctor").stdout


def test_requeue_without_an_api(fleet: Fleet) -> None:
    run = fleet.client.submit(fleet.client.create_session("shell")["id"], "echo hi")["id"]
    assert call("requeue", run, "--direct").exit_code == 4
    fleet.client.cancel(run)
    assert call("requeue", run, "--direct").stdout == f"{run} queued\n"
    assert fleet.client.run(run)["status"] == "queued"
    assert call("requeue", "run_nope", "--direct").exit_code == 3
