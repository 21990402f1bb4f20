"""The roster of a pool on this machine: which workers there shall be, and which there are.

A controller writes the first, the one supervisor the second; either may die and come back, neither asks the other.
Every change is a new file under a lock, and names the version that it was made from.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from oah.errors import Conflict, Unavailable

SUPERVISED = "supervisor.lock"
"""Locked for as long as a supervisor lives, whatever ends it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the file says. `prefix`: of the names of workers; they are numbered from 1."""

    members: tuple[str, ...] = ()
    version: int = 0
    prefix: str = "worker"
    host: str | None = None


@dataclass(slots=True)
class Roster:
    """Of one pool, below the data directory that controller and supervisor share."""

    data_dir: Path
    pool: str
    _held: int | None = field(default=None, repr=False)

    @property
    def directory(self) -> Path:
        """Where it lies."""
        return self.data_dir / "pools" / quote(self.pool, safe="")

    # --- both sides ---

    def read(self) -> Entry:
        """Raises Unavailable where there is none."""
        said = self._document("roster.json")
        try:
            return Entry(tuple(said["members"]), int(said["version"]), str(said["prefix"]), said.get("host"))
        except (KeyError, TypeError, ValueError) as error:
            raise Unavailable(f"{self.directory / 'roster.json'} is no roster", code="no_roster") from error

    def running(self) -> dict[str, int]:
        """Name → process id of those that the supervisor has, the leaving ones included."""
        try:
            return {str(name): int(pid) for name, pid in self._document("running.json").items()}
        except (Unavailable, AttributeError, TypeError, ValueError):
            return {}

    # --- the controller's side ---

    def supervised(self) -> bool:
        """Whether a supervisor lives."""
        with self._locked(SUPERVISED, fcntl.LOCK_SH) as free:
            return not free

    def change(self, entry: Entry, members: Sequence[str]) -> None:
        """From what was read to these. Raises Conflict when it has changed meanwhile."""
        with self._writing():
            if self.read().version != entry.version:
                raise Conflict(f"the roster of pool '{self.pool}' has changed meanwhile", code="roster_changed")
            self._write_roster(entry, members, version=entry.version + 1)

    # --- the supervisor's side ---

    def supervise(self, count: int, *, prefix: str, host: str) -> Entry:
        """Become the supervisor, until this process ends; begin with so many. Raises Conflict where there is one."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.directory / SUPERVISED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _lock(descriptor, fcntl.LOCK_EX, tries=20):
            os.close(descriptor)
            raise Conflict(
                f"workers of pool '{self.pool}' are supervised already with this data directory", code="supervised"
            )
        self._held = descriptor
        with self._writing():
            try:
                version = self.read().version
            except Unavailable:
                version = 0
            names = [f"{prefix}-{number}" for number in range(1, count + 1)]
            self.tell_running({})
            self._write_roster(Entry(prefix=prefix, host=host), names, version=version + 1)
        return self.read()

    def tell_running(self, pids: Mapping[str, int]) -> None:
        """Which processes there are now."""
        self._write("running.json", dict(pids))

    def close(self) -> None:
        """No longer the supervisor."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    # --- files ---

    def _document(self, name: str) -> Any:
        try:
            return json.loads((self.directory / name).read_bytes())
        except (OSError, ValueError) as error:
            raise Unavailable(
                f"no workers of pool '{self.pool}' are supervised on this machine",
                code="no_roster",
                hint="`oah up --workers MIN..MAX` or `oah worker supervise`, with the controller's data directory",
            ) from error

    def _write_roster(self, entry: Entry, members: Sequence[str], *, version: int) -> None:
        said = {"members": list(members), "version": version, "prefix": entry.prefix, "host": entry.host}
        self._write("roster.json", said)

    def _write(self, name: str, document: object) -> None:
        path = self.directory / name
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(document), encoding="utf-8")
        fresh.replace(path)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with self._locked("roster.lock", fcntl.LOCK_EX, tries=100) as locked:
            if not locked:
                raise Unavailable(f"the roster of pool '{self.pool}' is locked", code="roster_locked")
            yield

    @contextlib.contextmanager
    def _locked(self, name: str, how: int, *, tries: int = 1) -> Iterator[bool]:
        try:
            descriptor = os.open(self.directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            yield True  # nobody has ever been here
            return
        try:
            yield _lock(descriptor, how, tries=tries)
        finally:
            os.close(descriptor)


def _lock(descriptor: int, how: int, *, tries: int) -> bool:
    for number in range(tries):
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if number + 1 < tries:
                time.sleep(0.02)
            continue
        return True
    return False
