"""The same random lives on PostgreSQL and Valkey: fewer, because every step is a real round trip and a real commit."""

import os
from contextlib import closing

import psycopg
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from oah.adapters.sql.store import open_store
from tests.model.machine import Protocol
from tests.model.stores import PostgresBehind, RedisBehind
from tests.model.world import World
from tests.support.servers_redis import RealServer
from tests.support.servers_sql import PostgresServer

TABLES = "run_events, run_steps, run_attempts, session_owners, runs, sessions, workspace_counters, dispatch_epochs"


def test_the_protocol_on_servers(valkey_server: RealServer, postgres_server: PostgresServer) -> None:
    name = postgres_server.create()
    url = postgres_server.url(name)
    with (
        closing(open_store(url)) as store,
        closing(valkey_server.broker()) as broker,
        psycopg.connect(url, autocommit=True) as behind,
    ):

        class OnServers(Protocol):
            """One database and one server, emptied for each example."""

            def make(self) -> World:
                valkey_server.reset()
                behind.execute(f"TRUNCATE {TABLES}")
                return World(store, broker, PostgresBehind(behind), RedisBehind(valkey_server.client()))

        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            OnServers,
            settings=settings(
                max_examples=int(os.environ.get("OAH_TEST_EXAMPLES", "15")),
                stateful_step_count=25,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
            ),
        )
    postgres_server.drop(name)
