"""Terminal output as text."""

import time

from hypothesis import given
from hypothesis import strategies as st

from oah.core.dialogue.text import Answer, Live, bounded, strip_escapes


def test_escapes_controls_and_line_ends() -> None:
    assert strip_escapes("\x1b[31mred\x1b[0m\r\n\x1b]0;title\x07plain\x1b(B\x07\r\n") == "red\nplain\n"
    assert strip_escapes("\x1bPdevice string\x1b\\after") == "after"
    assert strip_escapes("tab\there") == "tab\there"
    assert strip_escapes("ab\x08c") == "ac"


def test_what_a_line_overwrote_is_gone() -> None:
    assert strip_escapes("10%\r20%\r100%\r\ndone\r\n") == "100%\ndone\n"
    assert strip_escapes("keep\r\r\nnext") == "keep\nnext"
    assert strip_escapes("kept\r") == "kept"


def test_a_long_line_and_many_escapes_take_linear_time() -> None:
    began = time.process_time()
    strip_escapes("x" * 2_000_000 + "\r")
    strip_escapes("\x1b" * 500_000)
    strip_escapes("\x1b]" * 500_000)
    Live().feed("\x1b[" + "1;" * 500_000)
    assert time.process_time() - began < 5.0


@given(st.text(alphabet="ab\x1b[;m]0\x07\r\n\x08P\\", max_size=60))
def test_nothing_but_text_is_left(text: str) -> None:
    clean = strip_escapes(text)
    assert not set(clean) & {"\x1b", "\x07", "\r", "\x08"}


@given(
    st.lists(st.sampled_from(["a", "\x1b[1m", "\x1b]0;t\x07", "\r\n", "é", "\x1b[0", "m"]), max_size=20),
    st.integers(1, 5),
)
def test_progress_does_not_depend_on_where_the_stream_was_cut(parts: list[str], size: int) -> None:
    text = "".join(parts) + "\n."
    whole, pieces = Live(), Live()
    cut = "".join(pieces.feed(text[start : start + size]) for start in range(0, len(text), size))
    assert cut == whole.feed(text)


def test_an_answer_keeps_head_and_tail_and_says_what_is_missing() -> None:
    answer = Answer(1000)
    for number in range(100_000):
        answer.feed(f"{number}\r\n")
    text = answer.text()
    assert len(text.encode()) <= 1000
    assert text.startswith("0\n1\n2\n")
    assert text.endswith("\n99999\n")
    assert "left out" in text
    assert not answer.whole


def test_a_short_answer_is_whole() -> None:
    answer = Answer(1000)
    answer.feed("one\r\n")
    answer.feed("two")
    assert answer.text() == "one\ntwo"
    assert answer.whole


def test_bytes_are_what_counts_and_characters_stay_whole() -> None:
    text = bounded("☃" * 1000, limit=500)
    assert len(text.encode()) <= 500
    assert "\ufffd" not in text
    assert bounded("short", "tail", limit=500) == "shorttail"
