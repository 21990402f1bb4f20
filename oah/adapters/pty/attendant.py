"""Looks after the terminals that no slot thread looks after: of warm agents, and where a turn waits for somebody.

A program must not freeze because nobody reads it, must get its answers from the terminal, and its screen must be right
when somebody looks. One thread does that for all of a worker's agents; it sleeps while they say nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger(__name__)


class Attended(Protocol):
    """An agent that nobody drives at the moment."""

    def on_words(self, call: Callable[[], None] | None) -> None:
        """Call this whenever its terminal has something to say (None = nobody). It does not block."""

    def attend(self) -> None:
        """Take what the terminal has said, answer what it asks. Does not wait."""


class Attendant:
    """Thread safe. Its thread lives while there is somebody to look after."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._kept: set[Attended] = set()
        self._due: OrderedDict[Attended, None] = OrderedDict()
        self._busy: Attended | None = None
        self._thread: threading.Thread | None = None

    def keep(self, agent: Attended) -> None:
        """Look after it from now on."""
        with self._changed:
            self._kept.add(agent)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="attendant", daemon=True)
                self._thread.start()
        agent.on_words(lambda: self._spoken(agent))
        self._spoken(agent)

    def hand_over(self, agent: Attended) -> None:
        """No more; returns once nothing of it is being done. Repeatable."""
        agent.on_words(None)
        with self._changed:
            self._kept.discard(agent)
            self._due.pop(agent, None)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._busy is not agent)

    def _spoken(self, agent: Attended) -> None:
        with self._changed:
            if agent in self._kept:
                self._due[agent] = None
                self._changed.notify_all()

    def _run(self) -> None:
        while (agent := self._next()) is not None:
            try:
                agent.attend()
            except Exception:  # noqa: BLE001 - one broken agent must not silence the others
                _log.exception("an agent could not be looked after")
            with self._changed:
                self._busy = None
                self._changed.notify_all()

    def _next(self) -> Attended | None:
        """The next that has spoken; None when there is nobody left to look after."""
        with self._changed:
            while not self._due:
                if not self._kept:
                    self._thread = None
                    return None
                self._changed.wait()
            self._busy, _ = self._due.popitem(last=False)
            return self._busy
