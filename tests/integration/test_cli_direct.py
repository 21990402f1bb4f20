"""`--direct`: keys, schema, doctor and repair on real stores, without an API."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oah.cli.main import oah
from tests.support.quarantine import quarantine


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, short_tmp: Path) -> None:
    monkeypatch.chdir(short_tmp)
    monkeypatch.setenv("OAH_DATA_DIR", str(short_tmp / "d"))
    monkeypatch.setenv("OAH_LEASE_SECONDS", "6")
    for name in ("OAH_DATABASE_URL", "OAH_REDIS_URL", "OAH_API_URL", "OAH_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def call(*args: str) -> Result:
    result = CliRunner().invoke(oah, list(args))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_the_first_key_needs_no_api() -> None:
    made = call("key", "create", "--name", "first", "--scope", "admin", "--direct", "--json")
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    assert document["secret"].startswith("oahk_")
    assert (document["scopes"], document["workspace_id"]) == (["admin"], None)
    [listed] = json.loads(call("key", "list", "--direct", "--json").stdout)["items"]
    assert listed["id"] == document["id"]
    assert "secret" not in listed
    assert call("key", "revoke", document["id"], "--direct").exit_code == 0
    [listed] = json.loads(call("key", "list", "--direct", "--json").stdout)["items"]
    assert listed["revoked_at"]
    assert call("key", "revoke", "key_nope", "--direct").exit_code == 3


def test_a_key_of_a_workspace() -> None:
    made = json.loads(call("key", "create", "--name", "x", "--direct", "--json").stdout)
    assert (made["scopes"], made["workspace_id"]) == (["read", "run"], "default")
    assert call("key", "create", "--name", "x", "--workspace", "nope", "--direct").exit_code == 3


def test_db_upgrade_and_current() -> None:
    assert call("db", "current").exit_code == 5
    upgraded = json.loads(call("db", "upgrade", "--json").stdout)
    assert upgraded["schema"] == upgraded["schema_wanted"]
    assert json.loads(call("db", "current", "--json").stdout) == upgraded


def test_doctor_finds_a_database_without_a_schema() -> None:
    result = call("doctor", "--direct", "--json")
    assert result.exit_code == 1
    assert {f["check"] for f in json.loads(result.stdout)["findings"] if f["level"] == "error"} == {"database"}


def test_doctor_cannot_look_into_another_process() -> None:
    call("db", "upgrade")
    result = call("doctor", "--direct", "--json")
    findings = {f["check"]: f for f in json.loads(result.stdout)["findings"]}
    assert result.exit_code == 0
    assert findings["broker"]["level"] == "warning"
    assert "memory://" in findings["broker"]["message"]


def test_repair_needs_the_stores() -> None:
    assert call("queue", "repair", "--dry-run", "--reconcile").exit_code == 2
    assert call("queue", "repair", "--direct").exit_code == 2


def test_agent_check_names_the_fault(short_tmp: Path) -> None:
    listed = call("agent", "check", "--json")
    assert listed.exit_code == 0, "what only the package speaks of may be missing"
    assert {item["name"] for item in json.loads(listed.stdout)["items"] if item["shipped"]} > {"shell", "codex"}
    directory = short_tmp / "d" / "agents.d"
    directory.mkdir(parents=True)
    (directory / "good.toml").write_text('name = "good"\nkind = "command"\nargv = ["sh", "-c", "{input}"]\n')
    (directory / "lost.toml").write_text('name = "lost"\nkind = "command"\nargv = ["no-such-program"]\n')
    (directory / "bad.toml").write_text('name = "bad"\nkind = "dance"\n')
    result = call("agent", "check", "--json")
    faults = {item["name"]: item["fault"] for item in json.loads(result.stdout)["items"]}
    assert result.exit_code == 1
    assert faults["good"] is None
    assert "no-such-program" in faults["lost"]
    assert "kind" in faults["bad"]
    assert faults["shell"] is None
    assert call("agent", "check", str(directory / "good.toml")).exit_code == 0


def test_requeue_by_filter_without_an_api(short_tmp: Path) -> None:
    assert call("db", "upgrade").exit_code == 0
    quarantine(f"sqlite:///{short_tmp / 'd' / 'oah.db'}", 250)
    which = ("--recovery-state", "quarantined", "--since", "2h", "--direct")
    dry = json.loads(call("requeue", *which, "--dry-run", "--json").stdout)
    assert (dry["total"], dry["sample"][0]["id"]) == (250, "q00000")
    assert call("requeue", "--status", "cancelled", "--direct").stdout == "there is nothing to requeue\n"
    assert call("requeue", "--workspace", "nope", "--status", "failed", "--direct").exit_code == 3
    some = call("requeue", "q00001", "q00000", "--direct", "--reason", "looked at")
    assert some.exit_code == 0 and some.stdout == "q00001 requeued at 102\nq00000 requeued at 101\n"
    assert call("requeue", "q00000", "q00002", "--direct", "--json").exit_code == 1
    done = call("requeue", *which, "--yes", "--json")
    assert done.exit_code == 0, done.stderr
    job = json.loads(done.stdout)
    assert (job["state"], job["total"], job["outcomes"]) == ("completed", 247, {"requeued": 247})
    assert job["created_by"].startswith("cli:")
