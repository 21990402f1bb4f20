"""A worker's terminals for those who watch them: found by session, read by offset, typed into by one person at a time.

Reading costs the agent nothing: the terminal keeps its last bytes anyway, and a full-screen agent's screen is drawn
anyway. Of a line-wise program the screen is drawn when somebody looks, from what is kept.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Protocol

from oah.adapters.pty.screen import ScreenModel
from oah.adapters.pty.terminal import PtyTerminal
from oah.core.dialogue.draft import draft_after, gives
from oah.core.dialogue.frames import Snapshot
from oah.core.dialogue.screen import Screen
from oah.core.model.ids import SessionId
from oah.errors import AgentError
from oah.ports.viewing import ViewState

_DRAWN_AT_ONCE = 64 * 1024
_LAST_LINES = 64 * 1024
"""Of a line-wise program's bytes these are drawn when nobody has looked for long: many screens full."""
_CLEAR_LINE = b"\x15"
_CLEARING = timedelta(seconds=0.5)


class Sized(Protocol):
    """Whose size a viewer may change."""

    def resize(self, *, rows: int, columns: int) -> None: ...


class _LateModel:
    """The screen of a program that nobody draws: caught up with when somebody looks."""

    def __init__(self, terminal: PtyTerminal, *, rows: int, columns: int) -> None:
        self._terminal = terminal
        self._model = ScreenModel(rows=rows, columns=columns)
        self._at = 0
        self._lock = threading.Lock()

    def caught_up(self) -> ScreenModel:
        with self._lock:
            first = max(self._terminal.replayable(), self._terminal.end - _LAST_LINES)
            if self._at < first:
                self._at = first
                self._model.skipped()
            while data := self._terminal.replay(self._at, _DRAWN_AT_ONCE):
                self._at += len(data)
                self._model.feed(data, upto=self._at)
                if self._at >= first + 2 * _LAST_LINES:  # it writes faster than we draw
                    break
        return self._model

    def resize(self, *, rows: int, columns: int) -> None:
        self.caught_up().resize(rows=rows, columns=columns)


class Live:
    """ports.viewing.LiveTerminal."""

    def __init__(
        self,
        session_id: SessionId,
        terminal: PtyTerminal,
        agent: Sized,
        *,
        model: ScreenModel | None,
        rows: int,
        columns: int,
    ) -> None:
        self.session_id = session_id
        self._terminal = terminal
        self._agent = agent
        self._model = model
        self._late = None if model is not None else _LateModel(terminal, rows=rows, columns=columns)
        self._size = self._own_size = rows, columns
        self._bound: tuple[str | None, int, int] = (None, 0, 0)
        self._ended = False
        self._version = 1

    # -- told by the agent ------------------------------------------------------------------------------------------

    def bound(self, run_id: str | None, attempt: int) -> None:
        """Which run the terminal is at, None: none."""
        if self._bound[:2] != (run_id, attempt):
            self._bound = run_id, attempt, self._terminal.end
            self._changed()

    def leave(self) -> None:
        """The agent is gone."""
        if not self._ended:
            self._ended = True
            self._changed()

    def _changed(self) -> None:
        self._version += 1
        self._terminal.nudge()

    # -- viewers ----------------------------------------------------------------------------------------------------

    def state(self) -> ViewState:
        """See ports.viewing.LiveTerminal."""
        version = self._version
        run_id, attempt, since = self._bound
        rows, columns = self._size
        return ViewState(
            version=version,
            rows=rows,
            columns=columns,
            run_id=run_id,
            attempt=attempt,
            since=since,
            ended=self._ended,
        )

    @property
    def end(self) -> int:
        """See ports.viewing.LiveTerminal."""
        return self._terminal.end

    def read(self, offset: int, limit: int) -> bytes | None:
        """See ports.viewing.LiveTerminal."""
        return self._terminal.replay(offset, limit)

    def snapshot(self) -> Snapshot:
        """See ports.viewing.LiveTerminal."""
        return self._drawn().snapshot()

    def screen(self) -> Screen:
        """See ports.viewing.LiveTerminal."""
        return self._drawn().look()

    def _drawn(self) -> ScreenModel:
        if self._late is not None:
            return self._late.caught_up()
        assert self._model is not None
        return self._model

    def wait(self, offset: int, version: int, timeout: timedelta) -> None:
        """See ports.viewing.LiveTerminal."""
        self._terminal.wait_beyond(offset, lambda: self._version != version, timeout)

    # -- the writer -------------------------------------------------------------------------------------------------

    def type(self, data: bytes, timeout: timedelta) -> None:
        """See ports.viewing.LiveTerminal."""
        terminal = self._terminal
        end = time.monotonic() + timeout.total_seconds()
        if self._ended:
            raise AgentError("the agent is gone", code="agent_gone")
        if not terminal.typing.acquire(timeout=timeout.total_seconds()):
            raise AgentError("a text is being given to the program; nothing was typed", code="typing_busy")
        try:
            terminal.pressed_at = time.monotonic()
            left = timedelta(seconds=max(min(end - time.monotonic(), 0.5), 0.05))
            terminal.write(data, left, gives=gives(data))
            terminal.draft = draft_after(terminal.draft, data)
        finally:
            terminal.typing.release()

    def resize(self, *, rows: int, columns: int) -> None:
        """See ports.viewing.LiveTerminal."""
        if self._ended or self._size == (rows, columns):
            return
        if self._late is not None:
            self._late.resize(rows=rows, columns=columns)
        self._agent.resize(rows=rows, columns=columns)
        self._size = rows, columns
        self._changed()

    def let_go(self) -> None:
        """See ports.viewing.LiveTerminal."""
        self.resize(rows=self._own_size[0], columns=self._own_size[1])
        if self._late is not None and self._terminal.draft and not self._ended:
            with suppress(AgentError):
                self.type(_CLEAR_LINE, _CLEARING)


class Lives:
    """ports.viewing.LiveTerminals. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_session: dict[SessionId, Live] = {}

    def add(self, live: Live) -> None:
        """The session's agent has a terminal now."""
        with self._lock:
            self._by_session[live.session_id] = live

    def remove(self, live: Live) -> None:
        """And no more. Repeatable."""
        with self._lock:
            if self._by_session.get(live.session_id) is live:
                del self._by_session[live.session_id]
        live.leave()

    def find(self, session_id: SessionId) -> Live | None:
        """See ports.viewing.LiveTerminals."""
        with self._lock:
            return self._by_session.get(session_id)
