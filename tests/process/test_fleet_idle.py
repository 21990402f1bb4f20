"""What a worker that has nothing to do costs Redis, at the default lease."""

import time
from pathlib import Path

import pytest

from tests.support.arena import Own, open_arena
from tests.support.proxy import Proxy
from tests.support.servers_redis import RealServer
from tests.support.servers_sql import PostgresServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

WINDOW = 13.0
"""Seconds in which commands are counted. Three kinds come every five seconds, so at most three times each."""

WINDOWS = 5
"""A leader that is kept from its tick for two seconds makes the worker promote in its place, which is no idleness: one
window in which none was late is looked for."""


def test_an_idle_worker_sends_at_most_one_command_a_second(postgres_server: PostgresServer) -> None:
    """Its answers are counted by a proxy that nobody else uses; the first of each connection are not."""
    proxies: list[Proxy] = []

    def through_a_proxy(directory: Path, _: str, redis: RealServer) -> Own:
        proxies.append(Proxy(directory / "w", redis.socket).start())
        return {"worker-1": {"OAH_REDIS_URL": f"{proxies[0].url}?client_name=worker-1"}}

    try:
        with open_arena(postgres_server, workers=1, lease_seconds=30, own=through_a_proxy) as arena:

            def settled() -> bool:
                rows = [row for row in arena.redis.client().client_list() if row["name"] == "worker-1"]
                return bool(rows) and min(int(row["age"]) for row in rows) >= 5

            eventually(settled, within=40, every=0.2, what="it opens no connection any more")
            figures = []
            for _ in range(WINDOWS):
                figures.append(commands_in_a_window(proxies[0]))
                print("an idle worker: {} commands in {:.1f} s".format(*figures[-1]))
                if figures[-1][0] <= figures[-1][1]:
                    break
            assert len(arena.fleet.client.workers()) == 1
            sent, seconds = figures[-1]
            assert 0 < sent <= seconds, figures
    finally:
        for proxy in proxies:
            proxy.close()


def commands_in_a_window(proxy: Proxy) -> tuple[int, float]:
    """How many were answered in how many seconds."""
    began, before = time.monotonic(), proxy.replies
    eventually(lambda: time.monotonic() - began >= WINDOW, within=60, what="the window is over")
    return proxy.replies - before, time.monotonic() - began
