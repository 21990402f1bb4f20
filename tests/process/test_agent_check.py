"""`oah agent check NAME`: a program is tried as a worker would use it, and an update that broke it is named."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oah.cli.main import oah

PROFILE = """
name = "echo"
kind = "screen"
argv = ["echoer"]
quit = "exit\\r"
ready_seconds = 20
[version]
argv = ["echoer", "--version"]
known = ["1."]
[screen]
settle_seconds = 0.4
[screen.composer]
start = '^you> ?(.*)$'
at_cursor = true
footer = 0
[screen.reply]
echo = '^you> ?(.*)$'
"""
PROGRAM = """#!/bin/bash
if [ "$1" = --version ]; then echo "echoer {version}"; exit; fi
while read -r -e -p '{prompt}' line; do
  [ "$line" = exit ] && exit
  echo "said: $line"
done
"""


def _check(
    directory: Path, *more: str, version: str = "1.0.0", prompt: str = "you> "
) -> tuple[Result, dict[str, object]]:
    (directory / "d" / "agents.d").mkdir(parents=True, exist_ok=True)
    (directory / "d" / "agents.d" / "echo.toml").write_text(PROFILE)
    program = directory / "echoer"
    program.write_text(PROGRAM.replace("{version}", version).replace("{prompt}", prompt))
    program.chmod(0o755)
    env = {"OAH_DATA_DIR": str(directory / "d"), "OAH_WORKER__PATH": f"{directory}:/usr/bin:/bin"}
    result = CliRunner().invoke(oah, ["agent", "check", "echo", "--json", *more], env=env, prog_name="oah")
    return result, json.loads(result.stdout)["items"][0]


def test_a_program_that_fits_its_profile_is_well(tmp_path: Path) -> None:
    result, report = _check(tmp_path, "--converse")
    assert result.exit_code == 0, result.output
    assert (report["fault"], report["warning"], report["version"]) == (None, None, "1.0.0")
    turns = report["turns"]
    assert isinstance(turns, list)
    assert ["said: " in turn["reply"] for turn in turns] == [True, True]


def test_a_program_that_draws_otherwise_is_a_mismatch_with_its_screen(tmp_path: Path) -> None:
    result, report = _check(tmp_path, "--timeout", "3", prompt="me: ")
    assert result.exit_code == 1
    assert report["fault"] == "adapter_mismatch"
    assert "me:" in f"{report['screen']} {report['reason']}"


def test_a_version_that_is_not_known_is_a_warning(tmp_path: Path) -> None:
    result, report = _check(tmp_path, version="2.0")
    assert result.exit_code == 0
    assert report["warning"] == "version 2.0; the profile was made for 1."


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    env = {"OAH_DATA_DIR": str(tmp_path / "d"), "OAH_WORKER__PATH": "/nowhere"}
    result = CliRunner().invoke(oah, ["agent", "check", "codex"], env=env, prog_name="oah")
    assert result.exit_code == 1
    assert "program_not_found: no program 'codex' on the PATH" in result.stdout


@pytest.mark.parametrize("as_json", [True, False])
def test_the_profiles_of_this_machine_are_listed(tmp_path: Path, as_json: bool) -> None:
    env = {"OAH_DATA_DIR": str(tmp_path / "d"), "OAH_WORKER__PATH": "/usr/bin:/bin"}
    result = CliRunner().invoke(oah, ["agent", "list", "--here", *(["--json"] if as_json else [])], env=env)
    assert result.exit_code == 0, result.output
    assert "shell" in result.stdout
    if as_json:
        items = {item["name"]: item for item in json.loads(result.stdout)["items"]}
        assert items["codex"]["fault"] == "no program 'codex' on the PATH"
        assert items["shell"]["fault"] is None
