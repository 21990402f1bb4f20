"""What a machine uses of its memory, processors and disk: for the pressure that stops a worker from taking more.

Memory is that of the machine or of the control group that this process is in, whichever is fuller: in a container the
machine's own figures say nothing of its limit. File pages that are no longer in use do not count, as they are given up
first.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from oah.core.policy.pressure import Usage

log = logging.getLogger(__name__)

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
UNLIMITED = 1 << 60
"""A limit of version 1 beyond this is none."""


class MachineGauge:
    """``read`` costs a few small files. ``directory``: whose disk counts; the next that exists above it serves, too."""

    def __init__(self, directory: Path, *, groups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> None:
        self._directory = directory
        self._groups = list(_limited(groups, membership))
        self._cores = os.cpu_count() or 1

    def read(self) -> Usage:
        """A look; what cannot be measured is None."""
        return Usage(memory=_tried(self._memory), load=_tried(self._load), disk=_tried(self._disk))

    def _memory(self) -> float:
        memory = psutil.virtual_memory()
        groups = [share for group in self._groups if (share := _tried(group)) is not None]  # one may have gone
        return max([1 - memory.available / memory.total, *groups])

    def _load(self) -> float:
        return os.getloadavg()[0] / self._cores

    def _disk(self) -> float:
        """Of what may be used by others than root; a file system may also run out of names."""
        directory = next(each for each in (self._directory, *self._directory.parents) if each.exists())
        told = os.statvfs(directory)
        used = told.f_blocks - told.f_bfree
        blocks = used / (used + told.f_bavail) if used + told.f_bavail else 0.0
        names = 1 - told.f_favail / told.f_files if told.f_files else 0.0
        return max(blocks, names)


def _tried(figure: Callable[[], float]) -> float | None:
    try:
        return figure()
    except (OSError, ValueError, psutil.Error) as error:
        log.debug("not measured: %s", error)
        return None


def _limited(groups: Path, membership: Path) -> Iterator[Callable[[], float]]:
    """The group of this process and those around it. In a container the path of the group may not be there: its own
    group is then the top."""
    version_2 = (groups, ("memory.max", "memory.high"), "memory.current", "inactive_file")
    version_1 = (groups / "memory", ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
    for line in _text(membership).splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            yield from _of_version(*version_2, path)
        elif "memory" in controllers.split(","):
            yield from _of_version(*version_1, path)


def _of_version(top: Path, limits: tuple[str, ...], used: str, free: str, path: str) -> Iterator[Callable[[], float]]:
    """Beyond ``memory.high`` nobody is killed, and nothing gets on."""
    own = top / path.strip("/")
    for directory in (own, *own.parents) if own.is_dir() else (top,):
        if not directory.is_relative_to(top):
            return
        for limit in limits:
            if (directory / limit).exists():
                yield _share(directory / limit, directory / used, directory / "memory.stat", free)


def _share(limit: Path, used: Path, details: Path, free: str) -> Callable[[], float]:
    """A limit may be changed while its processes live."""

    def look() -> float:
        most = limit.read_text().strip()
        if not most.isdigit() or not 0 < int(most) < UNLIMITED:
            return 0.0
        words = dict(line.split() for line in details.read_text().splitlines())
        return max(int(used.read_text()) - int(words.get(free, 0)), 0) / int(most)

    return look


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
