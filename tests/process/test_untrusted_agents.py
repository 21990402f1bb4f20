"""Agents of another user reach what is theirs and nothing of the worker's."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from oah.cli.children import execute
from oah.testing.fleet import Fleet

pytestmark = pytest.mark.process

ROOT = os.getuid() == 0
# Only root can give agents another user; everybody else takes the same path with his own.
UID, GID = (65534, 65534) if ROOT else (os.getuid(), os.getgid())


@pytest.fixture
def fleet(short_tmp: Path, start_fleet: Callable[..., Fleet]) -> Fleet:
    short_tmp.chmod(0o711)
    env = {"OAH_WORKER__AGENT_UID": str(UID), "OAH_WORKER__AGENT_GID": str(GID)}
    # What /proc shows of a worker is what its own start was given.
    return start_fleet(workers=1, env=env, starter=execute)


def test_agents_run_as_their_user_at_home(fleet: Fleet) -> None:
    client = fleet.client
    script = "echo $(id -u) $(id -g) $(umask) && touch $HOME/mine && echo written"
    runs = [client.submit(client.create_session(agent)["id"], script)["id"] for agent in ("shell", "exec")]
    for run in runs:
        assert client.wait(run, timeout=60)["status"] == "completed"
        output = client.result(run)["output"]
        assert f"{UID} {GID} 0022" in output
        assert "written" in output


def test_an_agent_cannot_read_or_signal_the_worker(fleet: Fleet) -> None:
    client, worker = fleet.client, fleet.pids["worker-1"]
    tries = {
        "key": f"cat {fleet.data_dir}/admin.key",
        "database": f"cat {fleet.data_dir}/oah.db",
        "listing": f"ls {fleet.data_dir}",
        "environ": f"cat /proc/{worker}/environ",
        "signal": f"kill -0 {worker}",
    }
    script = "; ".join(
        f"({command}) >/dev/null 2>&1 && echo {name}=open || echo {name}=closed" for name, command in tries.items()
    )
    run = client.submit(client.create_session("shell")["id"], script)["id"]
    assert client.wait(run, timeout=60)["status"] == "completed"
    output = client.result(run)["output"]
    # Its own user's files and processes are an agent's where it shares the worker's user; /proc is closed even there.
    closed = set(tries) if ROOT else {"environ"}
    assert {name for name in tries if f"{name}=closed" in output} >= closed
    assert fleet.data_dir.stat().st_mode & 0o777 == 0o711
    for name in ("admin.key", "oah.db", "redis"):
        assert (fleet.data_dir / name).stat().st_mode & 0o077 == 0, name
