"""What figures cost: the broker's and SQL's, with much in the queues. Prints milliseconds per call.

.venv/bin/python -m benchmarks.queue_cost --sessions 100000 --workspaces 200 --runs-per-session 1
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

from oah.adapters.sql.store import open_store
from oah.core.model.ids import EpochId, RunId, SessionId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.ports.broker import Ensure, WorkspaceLimit
from tests.support.servers_redis import RealServer, valkey_binary
from tests.support.store_clerk import Clerk

LANE = Lane("default", "shell")
CHUNK = 1_000


def timed(what: str, call: Callable[[], Any], *, times: int = 9) -> None:
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        took.append((time.perf_counter() - begun) * 1000)
    print(f"{what:34} median {median(took):8.2f} ms   most {max(took):8.2f} ms")


def broker_figures(sessions: int, workspaces: int) -> None:
    server = RealServer("valkey", valkey_binary())
    server.start()
    try:
        with closing(server.broker()) as broker:
            epoch = EpochId("bench")
            assert broker.mint(epoch, seen=broker.view().id) and broker.open(epoch)
            timed("broker.figures, empty", broker.figures)
            for begin in range(0, sessions, CHUNK):
                numbers = range(begin, min(sessions, begin + CHUNK))
                broker.ensure(epoch, [_ensure(n, workspaces) for n in numbers])
            timed(f"broker.figures, {sessions} ready", broker.figures)
            names = [WorkspaceId(f"ws{n}") for n in range(workspaces)]
            broker.limits(epoch, [WorkspaceLimit(name, 1, 5) for name in names])
            timed("  and every workspace has a cap", broker.figures)
    finally:
        server.remove()


def _ensure(number: int, workspaces: int) -> Ensure:
    name = SessionId(f"s{number}")
    return Ensure(name, LANE, WorkspaceId(f"ws{number % workspaces}"), ReadyClass.INTERACTIVE)


def sql_figures(sessions: int, runs: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{Path(directory) / 'oah.db'}"
        store = open_store(url)
        store.migrate()
        clerk = Clerk(store, url)
        names = [f"s{n:06}" for n in range(sessions)]
        for name in names:
            clerk.session(name)
        for _ in range(runs):
            for begin in range(0, sessions, CHUNK):
                clerk.send(*(clerk.new(name) for name in names[begin : begin + CHUNK]))
        for name in names[:32]:
            clerk.start(name)
        timed(f"store.lane_runs, {sessions * runs} queued", store.lane_runs)
        timed(f"store.counts, {sessions * runs} queued", lambda: store.counts(None, lease=timedelta(seconds=30)))
        assert RunId("r0001") == clerk.run("r0001").id
        store.close()


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--sessions", type=int, default=100_000)
    asked.add_argument("--workspaces", type=int, default=200)
    asked.add_argument("--sql-sessions", type=int, default=2_000)
    asked.add_argument("--runs-per-session", type=int, default=50)
    given = asked.parse_args()
    broker_figures(given.sessions, given.workspaces)
    sql_figures(given.sql_sessions, given.runs_per_session)


if __name__ == "__main__":
    main()
