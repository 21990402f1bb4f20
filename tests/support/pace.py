"""How long the suite takes: which files begin first, and what the processes of tests need not do again and again.

Files are spread over workers by pytest-xdist in the order of collection. Files that take long must begin early, or
one of them is alone at the end. `SECONDS` are measured (`--junitxml` has the times), on two cores, three files at
once; what is not in it is taken for short. It need not be exact, and no test depends on it.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

SECONDS: dict[str, int] = {
    "chaos/test_stores_stopped.py": 122,
    "chaos/test_workers_load.py": 87,
    "chaos/test_scenarios.py": 80,
    "process/test_fleet_attach.py": 70,
    "chaos/test_seeds.py": 66,
    "chaos/test_stores_lost.py": 55,
    "process/test_fleet_cancel.py": 50,
    "process/test_jobs_requeue.py": 45,
    "process/test_fleet_waiting.py": 45,
    "process/test_real_agents.py": 45,
    "process/test_fleet_messages.py": 50,
    "process/test_real_homes.py": 40,
    "process/test_mailboxes_inside.py": 40,
    "process/test_gateway_losses.py": 40,
    "integration/test_api_mail_readers.py": 35,
    "integration/test_gateway_groups.py": 26,
    "integration/test_gateway_mail.py": 24,
    "integration/test_api_mailboxes.py": 20,
    "process/test_fleet_killers.py": 40,
    "process/test_up_system.py": 38,
    "integration/test_cli_repair.py": 36,
    "chaos/test_stores_edges.py": 32,
    "process/test_fleet_losses.py": 30,
    "process/test_webhooks_fleet.py": 28,
    "chaos/test_stores_clock.py": 28,
    "process/test_terminal_leaks.py": 26,
    "process/test_fleet_idle.py": 26,
    "process/test_fleet_stops.py": 25,
    "process/test_fleet_homes.py": 25,
    "process/test_fleet_retries.py": 25,
    "integration/test_controller_process.py": 24,
    "process/test_fleet_baseline.py": 24,
    "process/test_screen_turns.py": 24,
    "process/test_up_demo.py": 22,
    "model/test_protocol_memory.py": 21,
    "process/test_up_fleet.py": 20,
    "process/test_fleet_leaders.py": 20,
    "process/test_screen_corpus.py": 20,
    "golden/test_talks.py": 20,
    "contract/test_store_letters.py": 18,
    "model/test_store_machine.py": 15,
    "contract/test_store_limits.py": 12,
    "architecture/test_imports.py": 12,
}
FULL = bool(os.environ.get("OAH_TEST_FULL"))
"""Whether what is dear is tried in full (`make test-full`): thousands of runs and starts, hundreds of megabytes. An
ordinary run tries the same with fewer."""
FOLDERS = {"chaos": 15, "process": 10, "integration": 4, "model": 4, "contract": 3, "golden": 3}


def pytest_configure(config: pytest.Config) -> None:
    """Files keep the order that they have here; what tests start may keep the bytecode that it compiles."""
    config.option.loadscopereorder = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if not _only_distributes(config):
        gc.disable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first; each file's tests as they stand there."""
    items.sort(key=lambda item: -_seconds(item.path.relative_to(config.rootpath)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of tests that are collected stay: the garbage collector need not look at them ever again."""
    if not _only_distributes(session.config):
        gc.freeze()
        gc.enable()


def _only_distributes(config: pytest.Config) -> bool:
    """Whether this is the process that gives the tests to others."""
    return bool(config.getoption("numprocesses", default=None)) and not hasattr(config, "workerinput")


def _seconds(path: Path) -> int:
    """Of a file below the root. One that nobody has measured is taken for what its folder usually is."""
    if path.parts[0] != "tests":
        return 0
    return SECONDS.get(path.relative_to("tests").as_posix(), FOLDERS.get(path.parts[1], 1))
