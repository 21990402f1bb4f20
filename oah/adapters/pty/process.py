"""A spawned agent as the worker knows it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta

from oah.adapters.pty.hostside.tree import Tree
from oah.adapters.pty.terminal import PtyTerminal
from oah.ports.terminal import ExitNotice

_log = logging.getLogger(__name__)


class PtyProcess:
    """ports.terminal.AgentProcess. `tree` is what the worker needs to kill it itself when the host fails."""

    def __init__(self, agent_id: str, tree: Tree, terminal: PtyTerminal) -> None:
        self._agent_id = agent_id
        self.tree = tree
        self._terminal = terminal
        self._changed = threading.Condition()
        self._notice: ExitNotice | None = None
        self._empty = False
        self._calls: list[Callable[[ExitNotice], None]] = []

    @property
    def agent_id(self) -> str:
        return self._agent_id

    @property
    def pid(self) -> int:
        return self.tree.pid

    @property
    def terminal(self) -> PtyTerminal:
        return self._terminal

    @property
    def empty(self) -> bool:
        """Whether its tree was verified empty."""
        return self._empty

    def exited(self) -> ExitNotice | None:
        """See ports.terminal.AgentProcess."""
        return self._notice

    def wait(self, timeout: timedelta | None) -> ExitNotice | None:
        """See ports.terminal.AgentProcess."""
        with self._changed:
            seconds = None if timeout is None else timeout.total_seconds()
            self._changed.wait_for(lambda: self._notice is not None, seconds)
            return self._notice

    def wait_empty(self, timeout: timedelta) -> bool:
        """Wait until its tree was verified empty."""
        with self._changed:
            return self._changed.wait_for(lambda: self._empty, timeout.total_seconds())

    def on_exit(self, call: Callable[[ExitNotice], None]) -> None:
        """See ports.terminal.AgentProcess."""
        with self._changed:
            if self._notice is None:
                self._calls.append(call)
                return
        call(self._notice)

    # -- the host's side --------------------------------------------------------------------------------------------

    def ended(self, notice: ExitNotice) -> None:
        """The root ended. Only the first notice counts."""
        with self._changed:
            self._empty = self._empty or notice.tree_empty
            calls, self._calls = self._calls, []
            if self._notice is None:
                self._notice = notice
            self._changed.notify_all()
        for call in calls:
            try:
                call(notice)
            except Exception:  # noqa: BLE001 - an observer's fault is not the host's
                _log.exception("an observer of agent %s failed", self._agent_id)

    def emptied(self) -> None:
        """The tree was verified empty after all."""
        with self._changed:
            self._empty = True
            self._changed.notify_all()
