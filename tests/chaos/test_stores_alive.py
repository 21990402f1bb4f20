"""A worker whose stores are black holes is not ready, and alive: starting it again would help nobody."""

import time

import pytest

from oah.cli.fleet import free_port
from tests.process.test_fleet_pool import page
from tests.support.scenes import play
from tests.support.servers_redis import RealServer, valkey_binary
from tests.support.servers_sql import PostgresServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.chaos

LIMIT = 30.0
"""Half of the default: no call of a store may keep the claim loop for so long."""


def test_a_worker_without_its_stores_is_alive(postgres_server: PostgresServer) -> None:
    port = free_port()
    own = {"OAH_WORKER__PORT": str(port), "OAH_WORKER__STUCK_SECONDS": f"{LIMIT:g}"}
    with play(postgres_server, RealServer("valkey", valkey_binary()), workers=1, own={"worker-1": own}) as scene:
        client = scene.fleet.client
        sessions = [client.create_session("shell")["id"] for _ in range(12)]
        runs = [client.submit(session, "sleep 0.3")["id"] for session in sessions for _ in range(4)]
        eventually(lambda: client.run(runs[0])["status"] != "queued", within=20, what="work is under way")
        scene.near.redis.stall()
        scene.near.sql.stall()
        begun, answers = time.monotonic(), []

        def over() -> bool:
            answers.append(page(port, "/healthz"))
            return time.monotonic() - begun > 1.5 * LIMIT

        eventually(over, within=2 * LIMIT, every=1.0, what="they were away for long enough")
        assert page(port, "/readyz")[0] == 503
        assert {status for status, _ in answers} == {200}, answers[-1]
        scene.near.heal()
        ended = ("completed", "failed")
        eventually(lambda: all(client.run(run)["status"] in ended for run in runs), within=90, every=0.5)
