"""Slots: one thread each, which runs agents and nothing else.

A slot is idle again when its agent's turn is over and the tree is gone or parked; recording the outcome is the
settler's business.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from oah.worker.work import Assignment


@dataclass(frozen=True, slots=True)
class _Stop:
    """Ends one slot thread."""


class Slots:
    """Thread safe. ``execute`` runs in slot threads; ``freed`` is called after each, in the slot thread."""

    def __init__(
        self,
        count: int,
        *,
        execute: Callable[[Assignment], None],
        freed: Callable[[], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self._count = count
        self._execute = execute
        self._freed = freed
        self._crashed = crashed
        self._queue: queue.SimpleQueue[Assignment | _Stop] = queue.SimpleQueue()
        self._lock = threading.Condition()
        self._working: list[Assignment] = []
        self._threads = [threading.Thread(target=self._run, name=f"slot-{n}", daemon=True) for n in range(count)]

    def start(self) -> None:
        """Start the slot threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End them once their work is done; nothing must be assigned any more."""
        for _ in self._threads:
            self._queue.put(_Stop())
        for thread in self._threads:
            thread.join()

    def assign(self, assignment: Assignment) -> None:
        """Give a started run to an idle slot. The claimer never assigns more than ``idle``."""
        with self._lock:
            self._working.append(assignment)
        self._queue.put(assignment)

    @property
    def idle(self) -> int:
        """Slots without an assignment."""
        with self._lock:
            return self._count - len(self._working)

    @property
    def working(self) -> list[Assignment]:
        """The assignments now."""
        with self._lock:
            return list(self._working)

    def wait_idle(self, timeout: float) -> bool:
        """Wait until no slot works; False when ``timeout`` seconds passed first."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._working, timeout)

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, _Stop):
                return
            try:
                self._execute(item)
            except Exception as error:  # noqa: BLE001  the component that owns us decides
                self._crashed(error)
            finally:
                with self._lock:
                    self._working.remove(item)
                    self._lock.notify_all()
            self._freed()
