"""A worker's name is a locked directory: ``<data>/workers/<name>/``.

Who holds the lock knows that earlier incarnations of this name on this host are gone, and may kill and recover what
they left. The same name on another host is another worker.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from oah.core.model.ids import WorkerId
from oah.errors import Conflict

FURTHER = 1_000
"""How many workers of the same base name one host may have."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A name that is ours until this process ends (the kernel releases the lock)."""

    name: str
    directory: Path
    descriptor: int

    def worker_id(self, nonce: str) -> WorkerId:
        """The id of this incarnation."""
        return WorkerId(f"{self.name}.{nonce[:12]}")

    def release(self) -> None:
        """Give the name back before the process ends."""
        os.close(self.descriptor)


def take_name(data_dir: Path, base: str, *, exact: bool) -> Identity:
    """Lock ``base``, or with ``exact`` False the next free ``base-N``. Raises Conflict when it is taken."""
    for number in range(1, 2 if exact else FURTHER):
        name = base if number == 1 else f"{base}-{number}"
        directory = data_dir / "workers" / name
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        return Identity(name, directory, descriptor)
    raise Conflict(
        f"the worker name '{base}' is taken on this host",
        code="worker_name_taken",
        hint="stop the other worker, or choose another name with --name",
    )
