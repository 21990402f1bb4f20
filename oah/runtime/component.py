"""One lifecycle for everything that runs.

start → `started` is set once it works → stop(grace) asks → join waits. What ends by an error keeps it in `failure` and
tells who watches; nothing dies in silence. `started` is also set when a start failed, so that nobody waits for ever.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from oah.errors import Broken

log = logging.getLogger(__name__)


class Component(Protocol):
    """What a group starts and stops."""

    @property
    def name(self) -> str: ...

    @property
    def started(self) -> threading.Event:
        """Set when it works, or when it has ended before it did."""

    @property
    def failure(self) -> BaseException | None:
        """The error that ended it; None while it runs and after an orderly stop."""

    def start(self) -> None:
        """Begin, and return at once. Once only: Broken the second time."""

    def stop(self, grace: timedelta) -> None:
        """Ask it to end within `grace`; returns at once. Repeatable, a shorter grace hurries it."""

    def join(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end; False when `timeout` passed before."""

    def watch(self, on_end: Callable[[Component], None]) -> None:
        """Call back once when it ends, from its own thread (at once if it has ended)."""


class ThreadComponent(ABC):
    """A component that is one thread. Subclasses write `run`, which returns soon after `stopping` is set."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._watchers: list[Callable[[Component], None]] = []
        self._ended = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.stopping = threading.Event()
        self.grace = timedelta(0)

    @property
    def name(self) -> str:
        """Also the thread's name."""
        return self._name

    @property
    def started(self) -> threading.Event:
        """Set by `run` through `serving()`, or when the thread has ended."""
        return self._started

    @property
    def failure(self) -> BaseException | None:
        """The error that ended `run`."""
        return self._failure

    @abstractmethod
    def run(self) -> None:
        """The work, in the component's thread. Call `serving()` once it works."""

    def serving(self) -> None:
        """Say that the component works."""
        self._started.set()

    def interrupt(self) -> None:  # noqa: B027 (an empty default: most have nothing but `stopping` to wait for)
        """Wake `run` from whatever it waits in besides `stopping`. Called by `stop`, from any thread."""

    def start(self) -> None:
        """Start the thread. Raises Broken the second time; after `stop` it ends at once."""
        with self._lock:
            if self._thread is not None:
                raise Broken(f"component {self._name} was started twice")
            self._thread = threading.Thread(target=self._live, name=self._name, daemon=True)
        self._thread.start()

    def stop(self, grace: timedelta) -> None:
        """Set `stopping` and interrupt the wait."""
        self.grace = grace
        self.stopping.set()
        self.interrupt()

    def join(self, timeout: timedelta | None = None) -> bool:
        """Wait for the thread; a component that was never started counts as ended."""
        if self._thread is None:
            return True
        self._thread.join(None if timeout is None else max(0.0, timeout.total_seconds()))
        return not self._thread.is_alive()

    def watch(self, on_end: Callable[[Component], None]) -> None:
        """Remember who wants to know of the end."""
        with self._lock:
            if not self._ended:
                self._watchers.append(on_end)
                return
        on_end(self)

    def _live(self) -> None:
        try:
            if not self.stopping.is_set():
                self.run()
        except BaseException as error:
            # Whatever ends a thread must be seen by its group.
            self._failure = error
            log.critical("component failed", extra={"component": self._name}, exc_info=error)
        finally:
            with self._lock:
                self._ended = True
                watchers, self._watchers = self._watchers, []
            for on_end in watchers:
                on_end(self)
            # Last: who waits for it finds the watchers told.
            self._started.set()
