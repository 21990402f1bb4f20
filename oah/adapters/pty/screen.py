"""The screen of a terminal: bytes are cleaned at once, drawn when somebody looks.

Cleaning finds the questions that a program asks, which must be answered at once and at the right cursor; drawing is
dear (pyte: about 0.5 MB/s), so text waits in a bounded buffer until a judgement, a viewer or a question needs it. What
waits beyond the bound is skipped up to the next line: a flood costs constant memory, and the screen says `damaged`
until the program clears it.
"""

from __future__ import annotations

import threading
import unicodedata
from collections import deque
from collections.abc import Iterator
from typing import Any

import pyte
from wcwidth import wcwidth

from oah.adapters.pty.painting import paint
from oah.core.dialogue.answers import Terminal, answer
from oah.core.dialogue.escapes import Cleaner, ModeSet, Query, other_screen
from oah.core.dialogue.frames import Snapshot
from oah.core.dialogue.screen import Screen

WAITING_CHARACTERS = 262_144
"""Text that may wait to be drawn."""

KEPT_CHARACTERS = 65_536
"""What of it is drawn after more has come."""

ABOVE_LINES = 5_000
"""Lines kept that scrolled off the main screen."""

MOST_MARKS = 8
"""Combining characters on one cell: an emulator composes all of them anew with each, so a flood of them would take
hours."""

_CLEARS = ("\x1b[2J", "\x1b[3J", "\x1bc")
_BRACKETED_PASTE = 2004


class _Grid(pyte.Screen):
    """A pyte screen that hands over what scrolls off its top."""

    def __init__(self, columns: int, rows: int, scrolled_off: deque[str] | None) -> None:
        self._scrolled_off = scrolled_off
        self.scrolled = 0
        super().__init__(columns, rows)

    def draw(self, data: str) -> None:
        """Text at the cursor, without what has no width and joins nothing: pyte drops all that follows such a
        character."""
        super().draw(data if data.isascii() else "".join(self._drawable(data)))

    def _drawable(self, data: str) -> Iterator[str]:
        row, column = (self.cursor.y, self.cursor.x) if self.cursor.x else (self.cursor.y - 1, self.columns)
        marks = len(self.buffer[row][column - 1].data) - 1 if row >= 0 else 0
        for char in data:
            if char.isascii() or wcwidth(char) > 0:
                marks = 0
                yield char
            elif unicodedata.combining(char) > 0 and marks < MOST_MARKS:
                marks += 1
                yield char

    def index(self) -> None:
        """One line down, scrolling at the bottom."""
        top, bottom = self.margins or pyte.screens.Margins(0, self.lines - 1)
        if self._scrolled_off is not None and top == 0 and self.cursor.y == bottom:
            self._scrolled_off.append(_line(self, 0))
            self.scrolled += 1
        super().index()

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        """What is on it stays: lines go at the top only when the cursor would be below the last one."""
        rows = lines or self.lines
        if rows < self.lines:
            above = max(self.cursor.y - rows + 1, 0)
            row = self.cursor.y - above
            self.margins = None
            for _ in range(above):
                self.cursor.y = self.lines - 1
                self.index()
            self.cursor.y = row
            for gone in range(rows, self.lines):
                self.buffer.pop(gone, None)
            self.lines = rows
        super().resize(rows, columns)
        self.cursor.x = min(self.cursor.x, self.columns - 1)


class ScreenModel:
    """One terminal's screen. `feed` is for the thread that reads; `look` for any."""

    def __init__(self, *, rows: int, columns: int) -> None:
        self._lock = threading.Lock()
        self._cleaner = Cleaner()
        self._above: deque[str] = deque(maxlen=ABOVE_LINES)
        self._main = _Grid(columns, rows, self._above)
        self._other = _Grid(columns, rows, None)
        self._on = self._main
        self._stream = pyte.Stream(self._on)
        self._waiting: deque[str] = deque()
        self._size = 0
        self._modes: dict[int, bool] = {}
        self._damaged = False
        self._looked: Screen | None = None
        self._looked_at = -1
        self._offset = 0
        self.changes = 0
        """Grows with everything that may change the screen."""

    def feed(self, data: bytes, *, upto: int = 0) -> bytes:
        """Take what the program wrote; returns what the terminal answers to it. `upto`: offset of what comes after it.
        Never raises."""
        with self._lock:
            self._offset = upto
            answers = [self._take(piece) for piece in self._cleaner.feed(data)]
        return b"".join(answers)

    def look(self) -> Screen:
        """The screen now."""
        with self._lock:
            if self._looked is not None and self._looked_at == self.changes:
                return self._looked
            self._draw()
            grid = self._on
            self._looked_at = self.changes
            self._looked = Screen(
                lines=tuple(_line(grid, row) for row in range(grid.lines)),
                columns=grid.columns,
                row=grid.cursor.y,
                column=grid.cursor.x,
                above=tuple(self._above),
                scrolled=self._main.scrolled,
                alternate=grid is self._other,
                bracketed_paste=self._modes.get(_BRACKETED_PASTE, False),
                damaged=self._damaged,
            )
            return self._looked

    def snapshot(self) -> Snapshot:
        """The screen as bytes that paint it, and the offset of what comes after it."""
        with self._lock:
            self._draw()
            on_other = self._on is self._other
            return Snapshot(self._offset, paint(self._main, self._other, on_other=on_other, modes=self._modes))

    def skipped(self) -> None:
        """Output was lost: what comes next may begin in the middle of anything."""
        with self._lock:
            self._cleaner = Cleaner()
            self._wait("\r\n")
            self._damaged = True

    def resize(self, *, rows: int, columns: int) -> None:
        """The terminal has another size; the program will repaint."""
        with self._lock:
            self._draw()
            for grid in (self._main, self._other):
                grid.resize(rows, columns)
            self.changes += 1

    def _take(self, piece: str | Query | ModeSet) -> bytes:
        match piece:
            case str():
                self._wait(piece)
                return b""
            case ModeSet():
                self._mode(piece)
                return b""
            case Query():
                self._draw()
                grid = self._on
                return answer(
                    piece,
                    Terminal(grid.lines, grid.columns, grid.cursor.y + 1, grid.cursor.x + 1, self._modes),
                )

    def _wait(self, text: str) -> None:
        self.changes += 1
        self._waiting.append(text)
        self._size += len(text)
        if self._size > WAITING_CHARACTERS:
            tail = "".join(self._waiting)[-KEPT_CHARACTERS:]
            tail = tail[tail.find("\n") + 1 :]
            self._waiting = deque(("\x1b[r\x1b[m\r\n", tail))
            self._size = len(tail)
            self._damaged = True

    def _mode(self, piece: ModeSet) -> None:
        self.changes += 1
        self._modes.update(dict.fromkeys(piece.modes, piece.on))
        wanted = self._other if piece.on else self._main
        if other_screen(piece) and wanted is not self._on:
            self._draw()
            if piece.on:
                self._other.reset()
            self._on = wanted
            self._stream = pyte.Stream(self._on)
            self._damaged = False

    def _draw(self) -> None:
        if not self._waiting:
            return
        text = "".join(self._waiting)
        self._waiting.clear()
        self._size = 0
        if any(clear in text for clear in _CLEARS):
            self._damaged = False
        try:
            self._stream.feed(text)
        except Exception:  # noqa: BLE001 - an emulator's fault never ends a run
            self._damaged = True
            self._stream = pyte.Stream(self._on)


def _line(grid: Any, row: int) -> str:
    """A row as text: the second cell of a wide character is empty."""
    cells = grid.buffer[row]
    return "".join(cells[column].data for column in range(grid.columns)).rstrip()
