"""The reply as it stands on a screen, and as it grows there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oah.core.dialogue.live import GrowingReply
from oah.core.dialogue.reply import ReplyRules, is_cut, reply
from oah.core.dialogue.screen import Screen
from tests.support.screens import COMPOSER, PROMPT, composed, pattern, screen

SAYS = ReplyRules(echo=pattern(r"^> (.*)$"), begin=pattern(r"^● (.*)$"), noise=(pattern("^✻ "),))


def said(shown: Screen, text: str = "hello", *, rules: ReplyRules = SAYS, mark: int = 0) -> str:
    return reply(shown, text, rules, COMPOSER, mark=mark)


def test_what_stands_between_our_text_and_the_composer() -> None:
    shown = composed(above="old\n> hello\n\n● first\n  second\n✻ Cooked for 2s\n")
    assert said(shown) == "first\nsecond"


def test_our_text_is_found_however_it_was_wrapped() -> None:
    shown = composed(above="> a long text that was\n> wrapped\n● answer")
    assert said(shown, "a long text that was wrapped") == "answer"


def test_a_reply_that_quotes_our_text_is_whole() -> None:
    assert said(composed(above="> hello\n● you said hello\n  hello again")) == "you said hello\nhello again"


def test_what_was_there_before_the_mark_is_none() -> None:
    shown = composed(above="● an old answer\n> hello\n● new")
    assert said(shown, mark=1) == "new"


def test_of_a_reply_longer_than_what_is_kept_the_end_is_read() -> None:
    lines = composed(above="  row 9\n✻ Cooked for 2s\n").lines
    shown = Screen(lines=lines, columns=80, above=("  row 7", "  row 8"), scrolled=90)
    assert said(shown, mark=10) == "row 7\nrow 8\nrow 9"
    assert is_cut(shown, "hello", SAYS, COMPOSER, mark=10)
    assert said(shown, mark=88) == "", "nothing is missing there, and nothing was said"


def test_what_scrolled_away_belongs_to_it() -> None:
    lines = composed(above="  tail").lines
    shown = Screen(lines=lines, columns=80, above=("> hello", "● head", "  middle"), scrolled=3)
    assert said(shown) == "head\nmiddle\ntail"


def test_on_the_other_screen_what_is_left_of_it() -> None:
    shown = Screen(lines=composed(above="  still\n  here").lines, columns=80, alternate=True)
    assert said(shown) == "still\nhere"


def test_a_plain_prompt() -> None:
    rules = ReplyRules(echo=pattern(r"^\$ (.*)$"))
    shown = screen("$ old\nx\n$ ls\nfile a\nfile b\n$ ")
    assert reply(shown, "ls", rules, PROMPT, mark=2) == "file a\nfile b"


def test_nothing_was_said() -> None:
    assert said(composed(above="> hello")) == ""
    assert said(composed()) == ""


# --- as it grows ---


def test_lines_are_shown_once_they_stand() -> None:
    growing = GrowingReply()
    assert growing.look("a") == ""
    assert growing.look("a\nb") == "a\n"
    assert growing.look("a\nbc\nd") == ""
    assert growing.look("a\nbc\nd") == "bc\n"
    assert growing.end("a\nbc\nd") == "d"


def test_what_is_redrawn_is_shown_as_it_ended() -> None:
    growing = GrowingReply()
    growing.look("a\nb\nc")
    assert growing.look("a\nb\nc") == "a\nb\n"
    assert growing.look("x\ny\nz") == ""
    assert growing.end("x\ny\nz") == "\nx\ny\nz"


@given(st.lists(st.text(alphabet="ab\n", max_size=6), max_size=8))
def test_a_reply_that_only_grows_is_shown_exactly(parts: list[str]) -> None:
    growing, reply_, shown = GrowingReply(), "", ""
    for part in parts:
        reply_ += part
        shown += growing.look(reply_)
    assert shown + growing.end(reply_) == reply_
