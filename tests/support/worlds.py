"""Worlds (tests/model/world.py) on the embedded default and on real servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest

from oah.adapters.sql.store import open_store
from oah.core.policy.recovery import Strategy
from tests.model.stores import PostgresBehind, RedisBehind, SqliteBehind
from tests.model.world import SECOND, World
from tests.support.servers_redis import FakeServer


class MakeWorld(Protocol):
    """A fresh deployment whose shard has been open, and whose leaders have led, for a lease."""

    def __call__(
        self,
        *,
        strategy: Strategy = Strategy.REQUEUE_RUNNING,
        max_attempts: int = 50,
        sessions: int = 3,
        second: timedelta = SECOND,
    ) -> World: ...


def begun(world: World) -> World:
    """The first epoch is minted, and a lease has passed."""
    world.lead(0, "epoch")
    world.advance(world.lease / world.second + 0.1)
    return world


@pytest.fixture(params=["memory", "servers"])
def make_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeWorld]:
    """On SQLite and the in-process server, and on PostgreSQL and Valkey."""
    with ExitStack() as stack:

        def make(**kw: Any) -> World:
            found = _on_memory if request.param == "memory" else _on_servers
            return begun(found(request, stack, tmp_path, kw))

        yield make


def _on_memory(request: pytest.FixtureRequest, stack: ExitStack, tmp_path: Path, kw: dict[str, Any]) -> World:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.db"
    path.write_bytes(request.getfixturevalue("sqlite_template").read_bytes())
    server = FakeServer()
    store = stack.enter_context(closing(open_store(f"sqlite:///{path}")))
    broker = stack.enter_context(closing(server.broker()))
    return World(store, broker, SqliteBehind(path), RedisBehind(server.client()), **kw)


def _on_servers(request: pytest.FixtureRequest, stack: ExitStack, tmp_path: Path, kw: dict[str, Any]) -> World:
    server = request.getfixturevalue("valkey_server")
    server.reset()
    postgres = request.getfixturevalue("postgres_server")
    name = postgres.create()
    stack.callback(postgres.drop, name)
    store = stack.enter_context(closing(open_store(postgres.url(name))))
    broker = stack.enter_context(closing(server.broker()))
    behind = stack.enter_context(psycopg.connect(postgres.url(name), autocommit=True))
    return World(store, broker, PostgresBehind(behind), RedisBehind(server.client()), **kw)
