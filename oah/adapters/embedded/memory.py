"""`memory://`: an in-process server. It holds no truth and ends with the process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fakeredis import FakeRedisConnection, FakeServer


@dataclass(frozen=True, slots=True)
class MemoryServer:
    """What adapters/redis needs to reach it (its ``Dial``)."""

    settings: Mapping[str, Any]
    address: str = "memory://"
    in_process: bool = True
    connection_class: type[Any] | None = FakeRedisConnection

    def close(self) -> None:
        """Nothing to end."""


def start_memory() -> MemoryServer:
    """A new, empty one."""
    return MemoryServer({"server": FakeServer(version=(7,), server_type="redis")})
