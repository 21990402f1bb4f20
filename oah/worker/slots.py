"""Slots: one thread each, which runs agents and nothing else.

A slot is idle again when its agent's turn is over and the tree is gone or parked; recording the outcome is the
settler's business. An assignment takes as many slots as the profile of its agent weighs; its thread is one of them.
As many slots as ``size`` are open: threads come and go with it.
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
        weigh: Callable[[Assignment], int] = lambda assignment: 1,
    ) -> None:
        self._size = count
        self._execute = execute
        self._freed = freed
        self._crashed = crashed
        self._weigh = weigh
        self._queue: queue.SimpleQueue[Assignment | _Stop] = queue.SimpleQueue()
        self._lock = threading.Condition()
        self._working: list[Assignment] = []
        self._lent: set[int] = set()
        self._used = 0
        self._peak = 0
        self._threads = 0
        self._begun = False
        self._named = 0

    def start(self) -> None:
        """Start the slot threads."""
        with self._lock:
            self._begun = True
            self._adjust()

    def resize(self, count: int) -> None:
        """Open or close slots. What works goes on; a slot that is in use is closed when it is free."""
        with self._lock:
            self._size = count
            self._adjust()

    def assign(self, assignment: Assignment) -> None:
        """Give a started run to an idle slot. Should there be none any more (they were closed meanwhile, or it weighs
        more than is idle), it runs all the same."""
        with self._lock:
            self._working.append(assignment)
            self._used += self._weigh(assignment)
            self._peak = max(self._peak, self._used)
            self._adjust()
        self._queue.put(assignment)

    def lend(self, assignment: Assignment) -> bool:
        """Its run waits and needs no slot, though its thread stays. False: it has ended, or has lent it before."""
        with self._lock:
            if id(assignment) in self._lent or not any(each is assignment for each in self._working):
                return False
            self._lent.add(id(assignment))
            self._used -= self._weigh(assignment)
            self._adjust()
            return True

    def take_back(self, assignment: Assignment) -> None:
        """It goes on, should it not have ended."""
        with self._lock:
            if id(assignment) in self._lent:
                self._lent.discard(id(assignment))
                self._used += self._weigh(assignment)
                self._peak = max(self._peak, self._used)
                self._adjust()

    @property
    def busy(self) -> int:
        """Assignments that hold slots."""
        with self._lock:
            return len(self._working) - len(self._lent)

    @property
    def size(self) -> int:
        """Slots that are open."""
        return self._size

    @property
    def used(self) -> int:
        """Slots that assignments take."""
        return self._used

    @property
    def idle(self) -> int:
        """Slots without an assignment."""
        with self._lock:
            return max(self._size - self._used, 0)

    @property
    def working(self) -> list[Assignment]:
        """The assignments now, also those that have lent their slots."""
        with self._lock:
            return list(self._working)

    def peak(self) -> int:
        """The most that was in use at once since this was last asked."""
        with self._lock:
            peak, self._peak = self._peak, self._used
            return peak

    def wait_idle(self, timeout: float) -> bool:
        """Wait until no slot works; False when ``timeout`` seconds passed first."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._working, timeout)

    def _adjust(self) -> None:
        """As many threads as slots, besides those of lent ones, and at least one for each assignment. With the lock
        held."""
        if not self._begun:
            return
        wanted = max(self._size + len(self._lent), len(self._working))
        for _ in range(wanted - self._threads):
            self._named += 1
            threading.Thread(target=self._run, name=f"slot-{self._named}", daemon=True).start()
        for _ in range(self._threads - wanted):
            self._queue.put(_Stop())
        self._threads = wanted

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
                    self._used -= 0 if id(item) in self._lent else self._weigh(item)
                    self._lent.discard(id(item))
                    self._adjust()
                    self._lock.notify_all()
            self._freed()
