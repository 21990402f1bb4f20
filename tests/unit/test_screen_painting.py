"""A snapshot paints, on any terminal, exactly what the screen model has; what follows continues it."""

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oah.adapters.pty.screen import ScreenModel

ROWS, COLUMNS = 8, 20

SEQUENCES = (
    "\x1b[2J", "\x1b[H", "\x1b[3;5H", "\x1b[7;20H", "\x1b[1;31m", "\x1b[0m", "\x1b[38;5;200m", "\x1b[48;2;1;2;3m", "\x1b[7m",
    "\x1b[K", "\x1b[1K", "\x1b[2;6r", "\x1b[r", "\x1b[4L", "\x1b[2M", "\x1bM", "\n", "\r\n", "\t", "\x1b[?25l", "\x1b[?25h",
    "\x1b[?7l", "\x1b[?7h", "\x1b[?1049h", "\x1b[?1049l", "\x1b[?2004h", "\x1b[94m", "\x1b[4h", "\x1b[4l",
)  # fmt: skip
TEXTS = ("hello", "日本語", "x" * 25, "é", "a\u0301b", "│ box │", " ")
inputs = st.lists(st.sampled_from(SEQUENCES + TEXTS), max_size=30).map("".join)


def _cells(model: ScreenModel) -> object:
    model.look()
    grid = model._on
    return [
        [grid.buffer[row][column] for column in range(COLUMNS)] for row in range(ROWS)
    ], (grid.cursor.y, grid.cursor.x, grid.cursor.hidden, grid.cursor.attrs, grid.margins)


@given(inputs, inputs)
def test_a_viewer_that_joins_in_the_middle_sees_the_same_screen(before: str, after: str) -> None:
    model = ScreenModel(rows=ROWS, columns=COLUMNS)
    model.feed(before.encode(), upto=7)
    snapshot = model.snapshot()
    assert snapshot.offset == 7
    viewer = ScreenModel(rows=ROWS, columns=COLUMNS)
    viewer.feed(snapshot.paint)
    assert _cells(viewer) == _cells(model)
    model.feed(after.encode())
    viewer.feed(after.encode())
    assert viewer.look().lines == model.look().lines


@pytest.mark.parametrize("text", ["\x1b[1;33mbold\x1b[0m plain \x1b[7mback", "日本" * 12])
def test_any_emulator_can_be_painted_on(text: str) -> None:
    model = ScreenModel(rows=ROWS, columns=COLUMNS)
    model.feed(text.encode())
    other = pyte.Screen(COLUMNS, ROWS)
    pyte.ByteStream(other).feed(model.snapshot().paint.replace(b"\x1b[?1049l", b""))
    assert tuple(line.rstrip() for line in other.display) == model.look().lines
