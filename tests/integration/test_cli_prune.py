"""`oah db prune`: on the stores themselves, with the rules of the settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oah.cli.main import oah
from tests.contract.test_store_retention import DAY, age_all, done
from tests.support.store_clerk import Clerk


@pytest.fixture
def run(clerk: Clerk, monkeypatch: pytest.MonkeyPatch, short_tmp: Path) -> Any:
    monkeypatch.chdir(short_tmp)
    monkeypatch.setenv("OAH_DATA_DIR", str(short_tmp / "d"))
    monkeypatch.setenv("OAH_DATABASE_URL", clerk.url)

    def call(*args: str) -> Any:
        result = CliRunner().invoke(oah, ["db", "prune", *args])
        assert result.exit_code == 0, result.output
        return result.stdout

    return call


def test_it_counts_then_deletes_then_finds_nothing(clerk: Clerk, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        done(clerk, f"r{number}")
    age_all(clerk, 20 * DAY)
    done(clerk, "young")
    assert json.loads(run("--dry-run", "--json"))["pruned"]["events"] == 9
    assert "runs: 0 would go" in run("--dry-run").splitlines()
    monkeypatch.setenv("OAH_RETENTION__RUNS_DAYS", "15")
    assert json.loads(run("--dry-run", "--json"))["pruned"]["runs"] == 3
    told = json.loads(run("--json"))
    assert (told["dry_run"], told["pruned"]["events"], told["pruned"]["runs"]) == (False, 9, 3)
    assert set(json.loads(run("--json"))["pruned"].values()) == {0}
    assert clerk.run("young").result == "done"
