"""A snapshot paints, on any terminal, exactly what the screen model has; what follows continues it."""

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oah.adapters.pty.screen import ScreenModel

ROWS, COLUMNS = 8, 20

ESCAPES = """[2J [H [3;5H [7;20H [1;31m [0m [38;5;200m [48;2;1;2;3m [7m [94m [K [1K [2;6r [r [4L [2M M [4h [4l
[?25l [?25h [?7l [?7h [?6h [?6l [?1049h [?1049l [?2004h"""
SEQUENCES = (*map("\x1b{}".format, ESCAPES.split()), "\n", "\r\n", "\t")
TEXTS = ("hello", "日本語", "x" * 25, "é", "a\u0301b", "│ box │", " ")
inputs = st.lists(st.sampled_from(SEQUENCES + TEXTS), max_size=30).map("".join)


def _cells(model: ScreenModel) -> object:
    model.look()
    grid = model._on
    return [[grid.buffer[row][column] for column in range(COLUMNS)] for row in range(ROWS)], (
        grid.cursor.y,
        grid.cursor.x,
        grid.cursor.hidden,
        grid.cursor.attrs,
        grid.margins,
    )


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
