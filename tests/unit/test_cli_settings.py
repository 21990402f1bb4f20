"""Which address, which key, which settings a command uses, and what `oah config show` says of them."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from oah.cli.arguments import DURATION
from oah.cli.configuration import mask_url
from oah.cli.connection import Connection, api_key, load_settings
from oah.cli.main import oah
from oah.errors import InvalidRequest


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OAH_")]:
        monkeypatch.delenv(name)


def _admin_key(tmp_path) -> None:
    (tmp_path / ".oah").mkdir()
    (tmp_path / ".oah" / "admin.key").write_text("oahk_secret\n")


@pytest.mark.parametrize("url", ["http://127.0.0.1:8787", "http://localhost:1", "http://[::1]:8787"])
def test_the_admin_key_of_this_machine_opens_this_machine(tmp_path, url: str) -> None:
    _admin_key(tmp_path)
    assert api_key(load_settings(), url) == "oahk_secret"


@pytest.mark.parametrize("url", ["https://oah.example.org", "http://127.0.0.1.example.org", "http://10.0.0.1:8787"])
def test_the_admin_key_is_never_sent_to_another_machine(tmp_path, url: str) -> None:
    _admin_key(tmp_path)
    assert api_key(load_settings(), url) is None


def test_a_key_that_was_given_wins(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    _admin_key(tmp_path)
    monkeypatch.setenv("OAH_API_KEY", "mine")
    assert api_key(load_settings(), "http://127.0.0.1:8787") == "mine"
    assert api_key(load_settings(), "https://oah.example.org") == "mine"


def test_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAH_API_URL", "http://there:1/")
    assert Connection().url == "http://there:1"
    assert Connection(url="http://here:2").url == "http://here:2"
    for wrong in ("there:1", "ftp://there", "http://"):
        with pytest.raises(InvalidRequest):
            assert Connection(url=wrong).url


def test_options_win_over_the_environment_inside_a_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAH_WORKER__SLOTS", "3")
    monkeypatch.setenv("OAH_WORKER__POOL", "blue")
    worker = load_settings(worker={"slots": 5, "pool": None}, data_dir=None).worker
    assert (worker.slots, worker.pool) == (5, "blue")


def test_bad_settings_are_a_line_without_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAH_LEASE_SECONDS", "hunter2")
    result = CliRunner().invoke(oah, ["config", "show"])
    assert result.exit_code == 2
    assert "OAH_LEASE_SECONDS" in result.stderr
    assert "hunter2" not in result.stderr
    assert result.stderr.count("\n") == 1


def _shown(*args: str) -> dict:
    result = CliRunner().invoke(oah, ["config", "show", "--json", *args])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_config_show_names_the_source(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / "oah.toml").write_text("lease_seconds = 12\napi_port = 1\n[worker]\npool = 'blue'\nslots = 2\n")
    monkeypatch.setenv("OAH_WORKER__SLOTS", "3")
    monkeypatch.setenv("OAH_API_PORT", "2")
    monkeypatch.setenv("OAH_WORKERS__SLOTS", "9")
    document = _shown()
    items = {item["name"]: (item["value"], item["source"]) for item in document["items"]}
    assert items["lease_seconds"] == (12.0, "oah.toml")
    assert items["api_port"] == (2, "environment")
    assert items["worker.pool"] == ("blue", "oah.toml")
    assert items["worker.slots"] == (3, "environment")
    assert items["worker.parked"] == (None, "default")
    assert document["derived"]["margin_seconds"] == 2.0
    assert document["unknown"] == ["OAH_WORKERS__SLOTS"]


def test_a_section_given_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAH_WORKER", '{"slots": 4}')
    items = {item["name"]: (item["value"], item["source"]) for item in _shown()["items"]}
    assert items["worker.slots"] == (4, "environment")
    assert items["worker.pool"] == ("default", "default")


def test_config_show_never_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAH_API_KEY", "hunter2")
    monkeypatch.setenv("OAH_DATABASE_URL", "postgresql://me:hunter2@db/oah?password=hunter2&x=1")
    monkeypatch.setenv("OAH_REDIS_URL", "rediss://:hunter2@redis:6379/0")
    for args in (["config", "show", "--json"], ["config", "show"]):
        result = CliRunner().invoke(oah, args)
        assert result.exit_code == 0
        assert "hunter2" not in result.output
        assert "postgresql://me:***@db/oah" in result.output


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("sqlite:////x/oah.db", "sqlite:////x/oah.db"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis://u:p:q@h", "redis://u:***@h"),
        ("postgresql:///db?host=/s&password=p", "postgresql:///db?host=/s&password=***"),
    ],
)
def test_mask(url: str, masked: str) -> None:
    assert mask_url(url) == masked


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5", 1.5), ("250ms", 0.25), ("5m", 300), ("1h30m", 5400), ("2d", 172800)]
)
def test_durations(text: str, seconds: float) -> None:
    assert DURATION.convert(text, None, None) == seconds


def test_help_is_quick_because_it_loads_nothing() -> None:
    code = "import sys, oah.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    heavy = {"httpx", "pydantic", "sqlalchemy", "redis", "rich", "fastapi", "pexpect", "psutil"}
    assert done.returncode == 0, done.stderr
    assert not heavy & set(done.stdout.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    result = CliRunner().invoke(oah, ["completion", shell])
    assert result.exit_code == 0
    assert "_OAH_COMPLETE" in result.stdout


def test_completion_knows_the_commands() -> None:
    environment = {**os.environ, "_OAH_COMPLETE": "bash_complete", "COMP_WORDS": "oah run att", "COMP_CWORD": "2"}
    code = "from oah.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, env=environment)
    assert done.stdout.split() == ["plain,attach", "plain,attempts"]


def test_a_reader_that_has_left_is_no_failure() -> None:
    """Its end of the pipe is closed before anything is written: every write fails."""
    reading, writing = os.pipe()
    os.close(reading)
    code = "from oah.cli.main import main; main()"
    command = [sys.executable, "-c", code, "config", "show"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_version() -> None:
    assert CliRunner().invoke(oah, ["version"]).stdout.strip() == "0.1.0"


def test_without_a_command_help_comes_and_a_usage_error() -> None:
    result = CliRunner().invoke(oah, [])
    assert result.exit_code == 2
    assert "Commands:" in result.stderr


def test_hooks_are_shown_as_they_are_written(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "hooks.toml"
    file.write_text('[[hooks]]\nname = "a"\nwhen = "before_run"\ncommand = ["true"]\n')
    monkeypatch.setenv("OAH_CONFIG", str(file))
    answer = CliRunner().invoke(oah, ["config", "show", "--json"])
    assert answer.exit_code == 0, answer.output
    [shown] = [one for one in json.loads(answer.stdout)["items"] if one["name"] == "hooks"]
    assert shown["value"] == [{"name": "a", "when": ["before_run"], "command": ["true"], "timeout_seconds": 10}]
