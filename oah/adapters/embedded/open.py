"""Which server an address asks this process to start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from oah.adapters.embedded.private import PrivateServer, start_private

if TYPE_CHECKING:
    from oah.adapters.embedded.memory import MemoryServer


def open_server(url: str, *, data_dir: Path, binary: str | None = None) -> MemoryServer | PrivateServer | None:
    """For ``memory://`` and ``embedded://`` the running server; None for addresses of other people's servers.

    What it returns is passed to ``oah.adapters.redis.connect.open_broker`` as ``server``. Every call with ``memory://``
    makes a new, empty one: call it once in a process. Raises InvalidRequest (no binary) or Unavailable.
    """
    match url.partition("://")[0]:
        case "memory":
            # Only here: fakeredis takes longer to load than the rest of a worker.
            from oah.adapters.embedded.memory import start_memory  # noqa: PLC0415

            return start_memory()
        case "embedded":
            return start_private(data_dir, binary=binary)
        case _:
            return None
