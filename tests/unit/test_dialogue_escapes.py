"""What a program writes, cut into text, modes and questions: wherever a read cuts, whatever is in it."""

from __future__ import annotations

import itertools
import re

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oah.core.dialogue.answers import Terminal, answer
from oah.core.dialogue.escapes import LONGEST_ASK, Ask, Cleaner, ModeSet, Piece, Query

NASTY = (
    b"\x1b\x1b\x1b[]P_^X;:?>=<0123456789ABCHJKLMPXcdefghlmnrqtu$+! "
    b"\x07\x08\x9b\x9c\\\r\n\x0e\x0fabc\xc3\xa9\xf0\x9f\x98\x80\x00\x18\x1a\x7f"
)
noise = st.lists(st.sampled_from([bytes([byte]) for byte in NASTY]), max_size=60).map(b"".join) | st.binary(max_size=80)
cuts = st.lists(st.integers(0, 80), max_size=6)


def fed(data: bytes, *at: int) -> list[Piece]:
    """Joined where only a cut divides a text."""
    cleaner, pieces = Cleaner(), []
    edges = [0, *sorted(set(at)), len(data)]
    for begin, end in itertools.pairwise(edges):
        pieces.extend(cleaner.feed(data[begin:end]))
    joined: list[Piece] = []
    for piece in pieces:
        if joined and isinstance(piece, str) and isinstance(joined[-1], str):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def text(data: bytes) -> str:
    return "".join(piece for piece in fed(data) if isinstance(piece, str))


@settings(max_examples=600, deadline=None)
@given(noise, cuts)
def test_it_does_not_matter_where_a_read_cuts(data: bytes, at: list[int]) -> None:
    assert fed(data, *at) == fed(data)


_WHITELIST = re.compile(
    r"\x1b(?:[DEMH78c]|\[[0-9;]*[@ABCDEFGLMPXadegHfrJKm]|\[\?[0-9;]*[hl]|\[4[hl])|[\x07-\x0d]|[^\x00-\x1f\x7f-\x9f]"
)


@settings(max_examples=600, deadline=None)
@given(noise)
def test_only_what_is_on_the_list_comes_through_and_no_emulator_raises_on_it(data: bytes) -> None:
    clean = text(data)
    assert "".join(_WHITELIST.findall(clean)) == clean
    screen = pyte.Screen(20, 6)
    pyte.Stream(screen).feed(clean)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.characters(blacklist_categories=["Cc", "Cs"]), max_size=40), cuts)
def test_characters_of_any_language_come_whole(said: str, at: list[int]) -> None:
    assert "".join(str(piece) for piece in fed(said.encode(), *at)) == said


@pytest.mark.parametrize(
    ("asked", "query"),
    [
        (b"\x1b[6n", Query(Ask.CURSOR)),
        (b"\x1b[?6n", Query(Ask.CURSOR_EXTENDED)),
        (b"\x1b[5n", Query(Ask.STATUS)),
        (b"\x1b[c", Query(Ask.DEVICE)),
        (b"\x1b[0c", Query(Ask.DEVICE)),
        (b"\x1b[>c", Query(Ask.DEVICE_SECONDARY)),
        (b"\x1b[>0q", Query(Ask.VERSION)),
        (b"\x1b[?u", Query(Ask.KEYBOARD)),
        (b"\x1b[?2026$p", Query(Ask.MODE, "2026")),
        (b"\x1b]11;?\x1b\\", Query(Ask.COLOUR, "11")),
        (b"\x1b]10;?\x07", Query(Ask.COLOUR, "10")),
        (b"\x1b]4;7;?\x07", Query(Ask.PALETTE, "7")),
        (b"\x1b[18t", Query(Ask.SIZE_CELLS)),
        (b"\x1bP+q544e\x1b\\", Query(Ask.CAPABILITY, "544e")),
        (b"\x1bP$qm\x1b\\", Query(Ask.SETTING, "m")),
    ],
)
def test_a_question_is_one_even_byte_by_byte(asked: bytes, query: Query) -> None:
    data = b"before" + asked + b"after"
    assert fed(data, *range(len(data))) == ["before", query, "after"]
    assert isinstance(answer(query, Terminal(40, 100, 3, 7)), bytes)


def test_the_answers_say_where_the_cursor_is_and_how_large_the_screen() -> None:
    terminal = Terminal(40, 100, 3, 7, {2004: True, 25: False})
    assert answer(Query(Ask.CURSOR), terminal) == b"\x1b[3;7R"
    assert answer(Query(Ask.SIZE_CELLS), terminal) == b"\x1b[8;40;100t"
    assert answer(Query(Ask.MODE, "2004"), terminal) == b"\x1b[?2004;1$y"
    assert answer(Query(Ask.MODE, "25"), terminal) == b"\x1b[?25;2$y"
    assert answer(Query(Ask.MODE, "1"), terminal) == b"\x1b[?1;0$y"


def test_no_answer_holds_anything_that_the_program_chose() -> None:
    """Or a program could make its terminal type for it."""
    for ask in Ask:
        argument = "5" if ask in (Ask.MODE, Ask.MODE_ANSI) else "rm -rf x\r"
        said = answer(Query(ask, argument), Terminal(40, 100, 1, 1))
        assert b"rm" not in said
        assert b"\r" not in said
        assert b"\n" not in said


def test_modes_and_titles_are_not_drawn() -> None:
    assert fed(b"\x1b[?1049h\x1b]0;title\x07x\x1b[?2004;25l") == [
        ModeSet((1049,), True),
        "x\x1b[?25l",
        ModeSet((2004, 25), False),
    ]
    assert text(b"a\x1b[<1u\x1b[=1;1u\x1b[>4;?mb\x1b%Gc\x1b(0d") == "abcd"


def test_colours_with_sub_parameters_become_plain_ones() -> None:
    assert text(b"\x1b[38:2::1:2:3m\x1b[4:3m\x1b[48:5:9m\x1b[m") == "\x1b[38;2;1;2;3m\x1b[4m\x1b[48;5;9m\x1b[0m"


def test_a_string_that_never_ends_costs_no_memory() -> None:
    cleaner = Cleaner()
    cleaner.feed(b"\x1b]52;c;")
    for _ in range(200):
        assert cleaner.feed(b"A" * 65536) == []
    assert len(cleaner._kept) <= LONGEST_ASK + 1
    assert cleaner.feed(b"\x07seen") == ["seen"]
