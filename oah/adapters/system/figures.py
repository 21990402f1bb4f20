"""Figures of this process and its machine, for the registry's heartbeat and `oah top`."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """`cpu_percent`: of one core, since the last look, this process alone. `tree_*`: with all living descendants
    (agents). `load`: 1-minute load average per core. `open_files`: 0 where they cannot be seen. Memory in bytes."""

    cpu_percent: float
    rss_bytes: int
    tree_rss_bytes: int
    tree_processes: int
    threads: int
    open_files: int
    load: float
    memory_available_bytes: int
    memory_total_bytes: int


def _open_files(process: psutil.Process) -> int:
    try:
        return process.num_fds()
    except psutil.AccessDenied:
        # A process that drives agents closes its /proc to its own user as well.
        return 0


class ProcessGauge:
    """Measures one process. Keep one instance: CPU is a difference between two looks. Used by one thread."""

    def __init__(self, pid: int | None = None) -> None:
        self._process = psutil.Process(pid)
        self._process.cpu_percent(None)

    def read(self) -> ProcessFigures:
        """A look. A descendant that ends meanwhile is left out; so is what this user may not see."""
        process = self._process
        with process.oneshot():
            cpu, rss, threads = process.cpu_percent(None), process.memory_info().rss, process.num_threads()
        tree_rss, tree = rss, 1
        for child in process.children(recursive=True):
            try:
                tree_rss += child.memory_info().rss
            except psutil.Error:
                continue
            tree += 1
        memory = psutil.virtual_memory()
        return ProcessFigures(
            cpu_percent=cpu,
            rss_bytes=rss,
            tree_rss_bytes=tree_rss,
            tree_processes=tree,
            threads=threads,
            open_files=_open_files(process),
            load=os.getloadavg()[0] / (psutil.cpu_count() or 1),
            memory_available_bytes=memory.available,
            memory_total_bytes=memory.total,
        )
