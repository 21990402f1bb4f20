"""A worker is frozen while its agents work: its successor's agents must begin after those are dead, and the judge must
be able to see
it when they do not."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from oah.testing.fleet import Fleet
from oah.testing.ledger import judge, read_ledger
from oah.testing.processes import state
from oah.testing.profiles import install_testing_agents, ledger_runs
from tests.support import eventually

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize(("armed", "wrong"), [(True, set()), (False, {"overlap"})])
def test_a_frozen_worker_loses_its_agents_before_the_successors_first_line(
    start_fleet: Callable[..., Fleet], short_tmp: Path, armed: bool, wrong: set[str]
) -> None:
    """With the deadman off the frozen worker's agents go on beside their successors: the deliberate violation."""
    install_testing_agents(short_tmp / "d")
    fleet = start_fleet(workers=2, slots=4, env={} if armed else {"OAH_TESTING_DEADMAN_OFF": "1"})
    ledger = fleet.data_dir / "ledger"
    client = fleet.client
    runs = []
    for _ in range(4):
        session = client.create_session("ledger", env={"OAH_LEDGER": str(ledger)})["id"]
        runs.append(client.submit(session, "20 grandchild")["id"])

    def started() -> list[str]:
        known = {line.run for line in read_ledger(ledger)}
        return [run for run in runs if run in known]

    eventually(lambda: len(started()) == 4, within=20, what="four agents write")
    victim = next(name for name in ("worker-1", "worker-2") if any(on(fleet, run, name) for run in runs))
    moved = [run for run in runs if on(fleet, run, victim)]
    fleet.signal(victim, signal.SIGSTOP)
    eventually(lambda: state(fleet.pids[victim]) == "T", what="the worker stands still")

    def again() -> bool:
        return any(line.attempt == 2 and line.number > 20 for line in read_ledger(ledger) if line.run in moved)

    eventually(again, within=45, what="a recovered run writes on the other worker")
    rows = [{**client.run(run), "status": "running"} for run in runs]
    found = judge(read_ledger(ledger), ledger_runs(rows))
    assert {violation.kind for violation in found} == wrong, found
    for run in runs:
        client.cancel(run)


def on(fleet: Fleet, run: str, worker: str) -> bool:
    """Whether this worker runs it now."""
    owner = fleet.client.run(run).get("worker_id")
    return bool(owner) and fleet.worker_of(owner) == worker
