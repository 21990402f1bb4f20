"""One ``oah up`` for a data directory: two would start the same workers for ever."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oah.errors import Conflict

NAME = "up.lock"


@contextmanager
def sole(data_dir: Path) -> Iterator[None]:
    """Hold the directory for this process; however it ends, it lets go. Raises Conflict ``already_up``."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(data_dir / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            raise Conflict(
                f"oah up runs on {data_dir} already (pid {holder})",
                code="already_up",
                hint="use that one, or name another directory with --data-dir",
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)
