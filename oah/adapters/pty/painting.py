"""A screen as bytes that paint it on another terminal: both of its screens, colours, margins, modes and cursor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyte import graphics
from pyte import modes as pyte_modes

_SHOWN_MODES = (1, 1000, 1002, 1003, 1004, 1005, 1006, 1007, 2004)
"""Private modes that are not drawn. A viewer strips what concerns its own mouse and paste."""
_FOREGROUND = {name: code for table in (graphics.FG_ANSI, graphics.FG_AIXTERM) for code, name in table.items()}
_BACKGROUND = {name: code for table in (graphics.BG_ANSI, graphics.BG_AIXTERM) for code, name in table.items()}
_FLAGS = {"bold": "1", "italics": "3", "underscore": "4", "blink": "5", "reverse": "7", "strikethrough": "9"}


def paint(main: Any, other: Any, *, on_other: bool, modes: Mapping[int, bool]) -> bytes:
    """`main`, `other`: pyte screens."""
    parts = ["\x1b[?1049l", _grid(main)]
    if on_other:
        parts += ["\x1b[?1049h", _grid(other)]
    parts += [f"\x1b[?{mode}{'h' if modes.get(mode) else 'l'}" for mode in _SHOWN_MODES]
    return "".join(parts).encode("utf-8", "replace")


def _grid(grid: Any) -> str:
    parts = ["\x1b[?6l\x1b[?7h\x1b[4l\x1b[r\x1b[m\x1b[2J"]
    style = ""
    for row in range(grid.lines):
        text, style = _row(grid, row, style)
        if text:
            parts.append(f"\x1b[{row + 1};1H{text}")
    parts.append(_cursor(grid))
    return "".join(parts)


def _row(grid: Any, row: int, style: str) -> tuple[str, str]:
    """What paints a row, and the style that is set after it."""
    cells = grid.buffer[row]
    last = max(
        (column for column, cell in cells.items() if cell != grid.default_char and column < grid.columns), default=-1
    )
    parts = []
    for column in range(last + 1):
        cell = cells[column]
        wanted = _style(cell)
        if wanted != style:
            parts.append(f"\x1b[{wanted}m")
            style = wanted
        parts.append(cell.data)
    return "".join(parts), style


def _style(cell: Any) -> str:
    codes = ["0", *(code for flag, code in _FLAGS.items() if getattr(cell, flag))]
    codes += _colour(cell.fg, _FOREGROUND, "38") + _colour(cell.bg, _BACKGROUND, "48")
    return ";".join(codes) if len(codes) > 1 else ""


def _colour(name: str, table: Mapping[str, int], kind: str) -> list[str]:
    if name == "default":
        return []
    if name in table:
        return [str(table[name])]
    try:
        red, green, blue = bytes.fromhex(name)
    except ValueError:
        return []
    return [kind, "2", str(red), str(green), str(blue)]


def _cursor(grid: Any) -> str:
    """Margins, the modes that are drawn, and the cursor, also where it waits at the end of a full line."""
    row, column = grid.cursor.y, grid.cursor.x
    top = 0
    parts = []
    if grid.margins is not None:
        parts.append(f"\x1b[{grid.margins.top + 1};{grid.margins.bottom + 1}r")
    if pyte_modes.DECOM in grid.mode:
        top = grid.margins.top if grid.margins is not None else 0
        parts.append("\x1b[?6h")
    if column >= grid.columns:
        cell = grid.buffer[row][grid.columns - 1]
        parts.append(f"\x1b[{row - top + 1};{grid.columns}H\x1b[{_style(cell)}m{cell.data}")
    else:
        parts.append(f"\x1b[{row - top + 1};{column + 1}H")
    parts.append(f"\x1b[{_style(grid.cursor.attrs)}m")
    parts += [] if pyte_modes.DECAWM in grid.mode else ["\x1b[?7l"]
    parts += ["\x1b[4h"] if pyte_modes.IRM in grid.mode else []
    parts.append("\x1b[?25l" if grid.cursor.hidden else "\x1b[?25h")
    return "".join(parts)
