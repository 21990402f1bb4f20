"""A group: started in order, stopped in reverse, and the first failure stops all.

Each component is started only when the one before works, so what others stand on comes first in the list and goes last.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import timedelta

from oah.errors import Broken, Unavailable
from oah.ports.clock import Clock
from oah.runtime.component import Component

log = logging.getLogger(__name__)

SETTLE = timedelta(seconds=20)
"""Beyond the grace, to put in order what is over, also when a store is away. Supervisors wait for grace + 30 s."""


class Group:
    """Components of one process. `start`, `wait`, `stop` are for its main thread; `request_stop`, `hurry` for any."""

    def __init__(
        self, components: Sequence[Component], *, clock: Clock, start_timeout: timedelta = timedelta(seconds=30)
    ) -> None:
        self._components = tuple(components)
        self._clock = clock
        self._start_timeout = start_timeout
        self._begun: list[Component] = []
        self._ended = threading.Event()
        self._hurried = threading.Event()
        self._lock = threading.Lock()
        self._first: Component | None = None
        self._stopping = False

    @property
    def failure(self) -> BaseException | None:
        """The error of the component that failed first."""
        return self._first.failure if self._first is not None else None

    @property
    def failed(self) -> str | None:
        """The name of the component that failed first, or ended although nobody asked."""
        return self._first.name if self._first is not None else None

    def start(self) -> None:
        """Start all. When one fails or is late, those that run are stopped and its error is raised.

        Raises Unavailable (`start_timeout`) for a component that does not work in time.
        """
        try:
            for component in self._components:
                self._begin(component)
                if self._ended.is_set():
                    break
            self.raise_failure()
        except BaseException:
            self.stop(timedelta(0))
            raise

    def _begin(self, component: Component) -> None:
        self._begun.append(component)
        component.watch(self._on_end)
        component.start()
        if not component.started.wait(self._start_timeout.total_seconds()):
            raise Unavailable(f"{component.name} did not start in time", code="start_timeout")

    def request_stop(self) -> None:
        """End `wait`. From any thread."""
        self._ended.set()

    def hurry(self) -> None:
        """No more grace: what is being stopped ends now. From any thread."""
        self._hurried.set()
        self._ended.set()
        if self._stopping:
            for component in reversed(self._begun):
                component.stop(timedelta(0))

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until a stop is requested or a component ended by itself; False when `timeout` passed before."""
        return self._ended.wait(None if timeout is None else timeout.total_seconds())

    def stop(self, grace: timedelta, *, settle: timedelta = SETTLE) -> list[str]:
        """Stop all in reverse, the grace shared by all; each gets `settle` beyond it to end.

        Returns the names of those that did not end. Repeatable.
        """
        with self._lock:
            self._stopping = True
        self._ended.set()
        deadline = self._clock.monotonic() + grace.total_seconds()
        late = []
        for component in reversed(self._begun):
            left = timedelta(seconds=max(0.0, deadline - self._clock.monotonic()))
            if self._hurried.is_set():
                left = timedelta(0)
            component.stop(left)
            if not component.join(left + settle):
                log.error("component does not stop", extra={"component": component.name})
                late.append(component.name)
        return late

    def raise_failure(self) -> None:
        """Raise what the first failed component raised, or Broken for one that ended although nobody asked."""
        if self._first is None:
            return
        if self._first.failure is not None:
            raise self._first.failure
        raise Broken(f"component {self._first.name} ended by itself")

    def _on_end(self, component: Component) -> None:
        with self._lock:
            if self._stopping and component.failure is None:
                return
            if self._first is None:
                self._first = component
        self._ended.set()
