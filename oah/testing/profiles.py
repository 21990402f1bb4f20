"""The agents of the test kit for fleets under test (`scripted`, `ledger`), and what the judge needs of runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from oah.bootstrap.kit import PROFILES_DIR
from oah.testing.ledger import LedgerRun

TESTING_AGENTS = Path(__file__).parent / "agents.d"


def install_testing_agents(data_dir: Path) -> None:
    """Put the profiles where the workers and APIs of this data directory find them. Before they start."""
    target = data_dir / PROFILES_DIR
    target.mkdir(parents=True, exist_ok=True)
    for path in TESTING_AGENTS.glob("*.toml"):
        shutil.copy(path, target / path.name)


def ledger_runs(items: Iterable[Mapping[str, Any]]) -> list[LedgerRun]:
    """Runs as the API shows them, for the judge. One that ended otherwise than `completed` need not have lived."""
    return [
        LedgerRun(
            run=item["id"],
            session=item["session_id"],
            position=item["position"],
            attempt=item["attempt"],
            completed=item["status"] == "completed",
        )
        for item in items
    ]
