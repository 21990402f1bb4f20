"""What a terminal answers to what a program asks it. Pure: the bytes follow from the question and the screen.

A program that asks and hears nothing starts late or gives up; one that hears of abilities that nobody here has sends
sequences for them. So the answers describe a plain xterm with 256 colours, and say "no" to everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from oah.core.dialogue.escapes import Ask, Query

CELL_WIDTH, CELL_HEIGHT = 8, 16
"""Pixels of a cell, for programs that ask for the size in pixels."""

FOREGROUND, BACKGROUND = "rgb:d0d0/d0d0/d0d0", "rgb:1010/1010/1010"
"""Light on dark: programs that choose colours by the background choose those of a dark one."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """What of a screen is asked for. `row` and `column` count from 1; `modes`: private modes known to be on or off."""

    rows: int
    columns: int
    row: int
    column: int
    modes: Mapping[int, bool] = field(default_factory=dict)


def answer(query: Query, terminal: Terminal) -> bytes:
    """The answer; empty where a plain terminal says nothing."""
    return _ANSWERS[query.ask](query.argument, terminal).encode("ascii")


def _mode(argument: str, terminal: Terminal) -> str:
    state = terminal.modes.get(int(argument))
    return f"\x1b[?{int(argument)};{0 if state is None else 1 if state else 2}$y"


def _colour(argument: str, _: Terminal) -> str:
    value = {"10": FOREGROUND, "11": BACKGROUND, "12": FOREGROUND}.get(argument)
    return "" if value is None else f"\x1b]{argument};{value}\x1b\\"


_ANSWERS: Mapping[Ask, Callable[[str, Terminal], str]] = {
    Ask.STATUS: lambda _, t: "\x1b[0n",
    Ask.CURSOR: lambda _, t: f"\x1b[{t.row};{t.column}R",
    Ask.CURSOR_EXTENDED: lambda _, t: f"\x1b[?{t.row};{t.column};1R",
    Ask.DEVICE: lambda _, t: "\x1b[?62;22c",
    Ask.DEVICE_SECONDARY: lambda _, t: "\x1b[>41;0;0c",
    Ask.VERSION: lambda _, t: "\x1bP>|OAH\x1b\\",
    Ask.KEYBOARD: lambda _, t: "\x1b[?0u",
    Ask.MODE: _mode,
    Ask.MODE_ANSI: lambda a, t: f"\x1b[{int(a)};0$y",
    Ask.COLOUR: _colour,
    Ask.PALETTE: lambda _, t: "",
    Ask.SIZE_CELLS: lambda _, t: f"\x1b[8;{t.rows};{t.columns}t",
    Ask.SIZE_PIXELS: lambda _, t: f"\x1b[4;{t.rows * CELL_HEIGHT};{t.columns * CELL_WIDTH}t",
    Ask.SETTING: lambda _, t: "\x1bP0$r\x1b\\",
    Ask.CAPABILITY: lambda _, t: "\x1bP0+r\x1b\\",
}
