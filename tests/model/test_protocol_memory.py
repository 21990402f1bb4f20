"""The whole protocol on the embedded default: SQLite and the in-process server."""

import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import fakeredis
from hypothesis import HealthCheck, settings

from oah.adapters.embedded.memory import start_memory
from oah.adapters.redis.connect import open_broker
from oah.adapters.sql.store import open_store
from tests.model.machine import Protocol
from tests.model.stores import RedisBehind, SqliteBehind
from tests.model.world import World


@cache
def _template() -> Path:
    """A migrated, empty database; each example gets a copy."""
    path = Path(tempfile.mkdtemp(prefix="oah-model-")) / "template.db"
    store = open_store(f"sqlite:///{path}")
    store.migrate()
    store.close()
    return path


class OnMemory(Protocol):
    """One file and one in-process server an example."""

    def make(self) -> World:
        self.folder = Path(tempfile.mkdtemp(prefix="oah-model-"))
        path = self.folder / "oah.db"
        shutil.copy(_template(), path)
        server = start_memory()
        self.store = open_store(f"sqlite:///{path}")
        self.broker = open_broker("memory://", server=server)
        client = fakeredis.FakeRedis(server=server.settings["server"])
        return World(self.store, self.broker, SqliteBehind(path), RedisBehind(client))

    def close(self) -> None:
        self.broker.close()
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)


TestProtocolOnMemory = OnMemory.TestCase
TestProtocolOnMemory.settings = settings(
    max_examples=int(os.environ.get("OAH_TEST_EXAMPLES", "30")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
