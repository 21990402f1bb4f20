"""Silence is what a program does not say while we listen: neither the time that we draw nor that of a busy machine."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, cast

from oah.adapters.pty import screen_terminal
from oah.adapters.pty.screen import ScreenModel
from oah.adapters.pty.screen_terminal import ScreenTerminal

SOON = timedelta(milliseconds=10)


class Program:
    """A terminal with what it says, and a clock that everybody reads."""

    dropped = position = 0

    def __init__(self, monkeypatch: Any, *said: bytes | None) -> None:
        self.said = list(said)
        self.now = time.monotonic()
        self.late = 0.0
        monkeypatch.setattr(screen_terminal.time, "monotonic", lambda: self.now)

    def take(self, size: int, timeout: timedelta) -> bytes | None:
        said = self.said.pop(0) if self.said else None
        if said is None:
            self.now += timeout.total_seconds() + self.late
        self.late = 0.0
        return said

    def screen(self) -> ScreenTerminal:
        return ScreenTerminal(cast(Any, self), ScreenModel(rows=4, columns=20), cast(Any, None))


def test_what_we_do_ourselves_is_no_silence(monkeypatch: Any) -> None:
    program = Program(monkeypatch, b"one", b"two")
    screen = program.screen()
    screen.pump(SOON)
    program.now += 30  # a flood is drawn, on a machine that is busy
    assert screen.quiet == 0
    screen.pump(SOON)
    assert screen.quiet < 1
    program.now += 30
    screen.pump(timedelta(seconds=2))
    assert screen.quiet > 2


def test_who_comes_late_himself_listens_once_more(monkeypatch: Any) -> None:
    program = Program(monkeypatch, b"one", None, b"two")
    screen = program.screen()
    screen.pump(SOON)
    program.late = 30.0
    screen._take(SOON, SOON)
    assert screen.quiet == 0
    assert "onetwo" in screen.look().text
