"""The screen of a terminal: what a person would see, at a bounded price."""

from __future__ import annotations

import resource
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oah.adapters.pty.screen import ScreenModel
from oah.core.dialogue.screen import Screen, folded


def shown(data: bytes, *, piece: int = 1 << 20, rows: int = 6, columns: int = 20) -> Screen:
    model = ScreenModel(rows=rows, columns=columns)
    for at in range(0, len(data), piece):
        model.feed(data[at : at + piece])
    return model.look()


def test_lines_cursor_and_what_scrolled_away() -> None:
    screen = shown("".join(f"line {n}\r\n" for n in range(10)).encode())
    assert screen.lines == ("line 5", "line 6", "line 7", "line 8", "line 9", "")
    assert screen.above == tuple(f"line {n}" for n in range(5))
    assert (screen.row, screen.column, screen.scrolled) == (5, 0, 5)
    assert screen.since(3) == ("line 3", "line 4", *screen.lines)
    assert screen.since(7) == ("line 7", "line 8", "line 9", "")


def test_the_other_screen_is_left_as_it_was_found() -> None:
    screen = shown(b"before\x1b[?1049h\x1b[Hon the other")
    assert (screen.alternate, screen.lines[0]) == (True, "on the other")
    screen = shown(b"before\x1b[?1049h\x1b[Hon the other\x1b[?1049l after")
    assert (screen.alternate, screen.lines[0]) == (False, "before after")


def test_nothing_scrolls_away_on_the_other_screen() -> None:
    screen = shown(b"\x1b[?1049h" + b"x\r\n" * 50)
    assert (screen.above, screen.scrolled) == ((), 0)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="aé漢字🙂한 ", min_size=1, max_size=40), st.integers(1, 7))
def test_wide_characters_whole_or_byte_by_byte(text: str, piece: int) -> None:
    data = text.encode()
    screen = shown(data, piece=piece, columns=200)
    assert screen == shown(data, columns=200)
    assert screen.lines[0] == text.rstrip()


def test_what_has_no_width_hides_nothing_behind_it() -> None:
    screen = shown("a\u200bb\ufeffc\u2764\ufe0fd\u202ee\u0301f".encode())
    assert screen.lines[0] == "abc\u2764d\u00e9f"


@pytest.mark.parametrize("marks", ["\u0301", "\u0301\u0316"])
def test_a_flood_of_combining_characters_takes_no_longer_than_one_of_letters(marks: str) -> None:
    begun = time.monotonic()
    screen = shown(("e" + marks * 100_000).encode() + b"x", piece=100)
    assert screen.lines[0].endswith("x") and len(screen.lines[0]) < 20
    assert time.monotonic() - begun < 20, "quadratic, it would be hours"


def test_the_cursor_behind_wide_characters_is_where_it_is_asked_for() -> None:
    model = ScreenModel(rows=6, columns=20)
    assert model.feed("漢字\x1b[6n".encode()) == b"\x1b[1;5R"
    assert model.feed(b"ab\x1b[6") == b""
    assert model.feed(b"n") == b"\x1b[1;7R"


def test_another_size_is_answered_and_drawn() -> None:
    model = ScreenModel(rows=6, columns=20)
    model.feed(b"x" * 25)
    model.resize(rows=10, columns=40)
    assert model.feed(b"\x1b[18t") == b"\x1b[8;10;40t"
    screen = model.look()
    assert (len(screen.lines), screen.columns) == (10, 40)


def test_a_lower_screen_keeps_what_is_on_it() -> None:
    model = ScreenModel(rows=10, columns=20)
    model.feed(b"one\r\ntwo")
    model.resize(rows=4, columns=10)
    assert (model.look().lines, model.look().row) == (("one", "two", "", ""), 1)
    model.feed(b"\r\nthree\r\nfour")
    model.resize(rows=2, columns=10)
    assert (model.look().lines, model.look().above) == (("three", "four"), ("one", "two"))
    assert model.feed(b"\x1b[6n") == b"\x1b[2;5R"


def test_bracketed_paste_is_known() -> None:
    assert shown(b"\x1b[?2004h").bracketed_paste
    assert not shown(b"\x1b[?2004h\x1b[?2004l").bracketed_paste


@pytest.mark.parametrize("piece", [4096, 65536])
def test_a_flood_costs_neither_memory_nor_much_time(piece: int) -> None:
    """10 MB that nobody looks at: cleaned (and so searched for questions), not drawn."""
    model = ScreenModel(rows=40, columns=100)
    data = (b"0123456789abcdef" * 6 + b"\r\n") * (piece // 98 + 1)
    model.feed(data)
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    for _ in range(10_000_000 // len(data)):
        model.feed(data)
    spent = time.process_time() - begun
    screen = model.look()
    assert spent < 6.0, f"{spent:.1f} s"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000
    assert screen.damaged
    assert screen.lines[10] == "0123456789abcdef" * 6
    model.feed(b"\x1b[2J\x1b[Hwhole again")
    assert (model.look().lines[0], model.look().damaged) == ("whole again", False)


def test_what_was_lost_leaves_a_screen_that_goes_on() -> None:
    model = ScreenModel(rows=6, columns=20)
    model.feed(b"before\x1b[38;5")
    model.skipped()
    model.feed(b";1mafter")
    assert model.look().damaged
    assert "after" in model.look().text


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(1, 9))
def test_nothing_that_a_program_writes_raises(data: bytes, piece: int) -> None:
    model = ScreenModel(rows=6, columns=20)
    for at in range(0, len(data), piece):
        model.feed(b"\x1b[" + data[at : at + piece])
    assert len(model.look().lines) == 6


def test_a_look_at_an_unchanged_screen_is_free() -> None:
    model = ScreenModel(rows=40, columns=100)
    model.feed(b"x")
    assert model.look() is model.look()
    first = model.look()
    model.feed(b"y")
    assert model.look() is not first


def test_folding_leaves_what_no_frame_changes() -> None:
    assert folded("│ Ｈello,\n  Wörld! │ ﬁne ─── 漢字") == "hellowörldfine漢字"
