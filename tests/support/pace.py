"""How long the suite takes: which files begin first, and what the processes of tests need not do again and again.

Files are spread over workers by pytest-xdist in the order of collection. Files that take long must begin early, or
one of them is alone at the end; and files that mostly wait (for leases to end) begin beside files that mostly compute,
or the machine idles first and is overloaded later. `SECONDS` are measured (`--junitxml` has the times), on two cores,
five files at once; what is not in it is taken for short. It need not be exact, and no test depends on it.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

SECONDS: dict[str, int] = {
    "process/test_screen_turns.py": 140,
    "chaos/test_stores_stopped.py": 129,
    "process/test_real_agents.py": 88,
    "process/test_fleet_waiting.py": 78,
    "chaos/test_scenarios.py": 71,
    "chaos/test_seeds.py": 70,
    "chaos/test_stores_lost.py": 69,
    "integration/test_controller_retries.py": 62,
    "chaos/test_stores_alive.py": 58,
    "process/test_up_system.py": 52,
    "process/test_fleet_attach.py": 49,
    "integration/test_api_mail_readers.py": 49,
    "integration/test_api_runs.py": 43,
    "integration/test_api_inside.py": 41,
    "contract/test_store_letters.py": 40,
    "integration/test_gateway_mail.py": 39,
    "integration/test_api_events.py": 37,
    "process/test_pty_loss.py": 36,
    "chaos/test_workers_load.py": 35,
    "integration/test_controller_recovery.py": 35,
    "integration/test_gateway_groups.py": 35,
    "integration/test_api_busy.py": 35,
    "integration/test_api_mailboxes.py": 34,
    "integration/test_api_requeue.py": 33,
    "process/test_fleet_stops.py": 31,
    "integration/test_api_process.py": 31,
    "process/test_fleet_homes.py": 29,
    "process/test_fleet_retries.py": 29,
    "process/test_jobs_requeue.py": 28,
    "model/test_protocol_memory.py": 27,
    "process/test_fleet_timeouts.py": 27,
    "process/test_fleet_crashes.py": 27,
    "process/test_terminal_scenarios.py": 27,
    "process/test_fleet_leaders.py": 26,
    "process/test_fleet_messages.py": 26,
    "process/test_fleet_baseline.py": 24,
    "process/test_screen_plain.py": 24,
    "process/test_nursery.py": 24,
    "process/test_real_homes.py": 24,
    "chaos/test_stores_clock.py": 23,
    "process/test_agent_timeouts.py": 23,
    "process/test_webhooks_fleet.py": 23,
    "process/test_terminal_leaks.py": 23,
    "process/test_up_demo.py": 22,
    "process/test_fleet_cancel.py": 22,
    "integration/test_controller_epochs.py": 21,
    "model/test_mail_machine.py": 20,
    "golden/test_talks.py": 20,
    "contract/test_store_agent_mail.py": 20,
    "contract/test_store_schedules.py": 20,
    "process/test_gateway_losses.py": 20,
    "model/test_protocol_servers.py": 20,
    "process/test_fleet_idle.py": 20,
    "contract/test_store_webhooks.py": 19,
    "contract/test_store_mail.py": 19,
    "process/test_fleet_killers.py": 19,
    "integration/test_cli_repair.py": 19,
    "integration/test_api_schedules.py": 19,
    "integration/test_recovery_matrix.py": 19,
    "integration/test_api_webhooks.py": 19,
    "integration/test_api_messages.py": 18,
    "integration/test_controller_process.py": 18,
    "integration/test_api_pools.py": 18,
    "model/test_broker_machine.py": 18,
    "process/test_fleet_losses.py": 17,
    "chaos/test_stores_edges.py": 17,
    "process/test_screen_corpus.py": 17,
    "contract/test_store_mail_groups.py": 17,
    "integration/test_redis_servers.py": 16,
    "process/test_pty_host.py": 16,
    "contract/test_store_limits.py": 16,
    "model/test_store_machine.py": 15,
    "integration/test_client_calls.py": 15,
    "process/test_schedules_fleet.py": 15,
    "process/test_mailboxes_inside.py": 14,
    "contract/test_store_retention.py": 14,
    "integration/test_jobs_rq.py": 14,
    "process/test_scale_processes.py": 14,
    "contract/test_store_mail_parallel.py": 14,
    "integration/test_cli_api.py": 14,
    "architecture/test_tests.py": 13,
    "process/test_terminal_views.py": 13,
    "integration/test_dead_letters.py": 13,
    "model/test_fairness.py": 13,
    "architecture/test_imports.py": 13,
    "process/test_fleet_rollout.py": 13,
    "architecture/test_metrics.py": 12,
    "integration/test_controller_reconcile.py": 12,
    "contract/test_ready_queue.py": 12,
    "process/test_agent_scripted.py": 12,
}
FULL = bool(os.environ.get("OAH_TEST_FULL"))
"""Whether what is dear is tried in full (`make test-full`): thousands of runs and starts, hundreds of megabytes. An
ordinary run tries the same with fewer."""
WAITING = ("chaos", "process")
"""Folders whose files mostly wait."""
FOLDERS = {"chaos": 15, "process": 10, "integration": 4, "model": 4, "contract": 3, "golden": 3}


def pytest_configure(config: pytest.Config) -> None:
    """Files keep the order that they have here; what tests start may keep the bytecode that it compiles."""
    config.option.loadscopereorder = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if not _only_distributes(config):
        gc.disable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first, of both kinds so that they end together; each file's tests as they stand there."""
    files = dict.fromkeys(item.path.relative_to(config.rootpath) for item in items)
    order = _order(list(files))
    items.sort(key=lambda item: order[item.path.relative_to(config.rootpath)])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of tests that are collected stay: the garbage collector need not look at them ever again."""
    if not _only_distributes(session.config):
        gc.freeze()
        gc.enable()


def _only_distributes(config: pytest.Config) -> bool:
    """Whether this is the process that gives the tests to others."""
    return bool(config.getoption("numprocesses", default=None)) and not hasattr(config, "workerinput")


def _order(files: list[Path]) -> dict[Path, float]:
    """File → which part of its kind's time is over when it begins."""
    found: dict[Path, float] = {}
    for waiting in (True, False):
        mine = [path for path in files if (path.parts[1] in WAITING) is waiting] if files else []
        mine.sort(key=lambda path: -_seconds(path))
        total, over = sum(_seconds(path) for path in mine) or 1, 0
        for path in mine:
            found[path] = over / total
            over += _seconds(path)
    return found


def _seconds(path: Path) -> int:
    """Of a file below the root. One that nobody has measured is taken for what its folder usually is."""
    if path.parts[0] != "tests":
        return 0
    return SECONDS.get(path.relative_to("tests").as_posix(), FOLDERS.get(path.parts[1], 1))
