"""Text into a terminal: harmless, written once, submitted when seen, and never more sure than the screen."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oah.core.dialogue.injection import (
    LINE_BYTES,
    PASTE_BEGIN,
    PASTE_END,
    Delivery,
    Ended,
    InjectionRules,
    Phase,
    Plan,
    Refusal,
    Seen,
    Step,
    Submit,
    Wait,
    harmless,
    is_shown,
    is_staged,
    plan,
    step,
)
from oah.core.dialogue.keys import Typing, typing
from oah.core.dialogue.reading import Composer, Condition, Reading, read
from oah.core.model.delivery import Outcome
from oah.core.model.question import Choice, DialogKind, Question
from oah.core.policy.throttle import Throttle, after
from tests.support.screens import ASKS, RULES, composed, pattern, screen

PASTED = InjectionRules(commands="/!", placeholders=(pattern(r"\[Pasted text #\d+(?: \+(\d+) lines)?\]"),))


def planned(text: str, rules: InjectionRules = PASTED, *, bracketed: bool = True, **more: bool) -> Plan:
    made = plan(text, rules, bracketed=bracketed, **more)
    assert isinstance(made, Plan), made
    return made


def refused(text: str, rules: InjectionRules = PASTED, *, bracketed: bool = True, **more: bool) -> str:
    made = plan(text, rules, bracketed=bracketed, **more)
    assert isinstance(made, Refusal)
    return made.code


@given(st.text())
def test_nothing_harmful_is_left_and_nothing_else_is_changed(text: str) -> None:
    clean = harmless(text)
    assert not any(char < " " and char not in "\n\t" for char in clean)
    assert not any("\x7f" <= char <= "\x9f" for char in clean)
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    assert clean == "".join(char for char in lines if char in "\n\t" or not (char < " " or "\x7f" <= char <= "\x9f"))
    assert harmless(clean) == clean


@given(st.text(min_size=1))
def test_a_paste_ends_where_it_is_ended_and_holds_no_key(text: str) -> None:
    made = plan(text, InjectionRules(), bracketed=True)
    if isinstance(made, Plan):
        assert made.data.startswith(PASTE_BEGIN)
        assert made.data.endswith(PASTE_END)
        body = made.data[len(PASTE_BEGIN) : -len(PASTE_END)]
        assert b"\x1b" not in body
        assert b"\r" not in body
        assert body.decode() == made.text


def test_a_paste_terminator_in_a_text_is_only_text() -> None:
    assert planned("a\x1b[201~\rrm -rf /\r").data == PASTE_BEGIN + b"a[201~\nrm -rf /" + PASTE_END


@pytest.mark.parametrize(
    "text", ["/clear", " /clear", "\t/clear", "\u200b/clear", "\ufeff/clear", "\x1b/clear", "\n/clear", "!ls"]
)
def test_a_command_is_refused_unless_one_is_meant(text: str) -> None:
    assert refused(text) == "command_refused"
    assert planned(text, command=True).text.endswith(text[-5:])


@pytest.mark.parametrize("text", ["exit", " Exit\n", "\tEXIT ", "say  bye"])
def test_a_whole_text_that_is_a_command_is_refused_unless_one_is_meant(text: str) -> None:
    rules = dataclasses.replace(PASTED, words=("exit", "say bye"), guard=" ")
    assert refused(text, rules) == "command_refused", "no guard helps"
    assert planned(text, rules, command=True).text
    assert planned(f"{text} now", rules).text


def test_a_guard_that_helps_is_put_before_a_command() -> None:
    assert planned(" /clear", dataclasses.replace(PASTED, guard="- ")).text == "- /clear"
    assert planned("not /clear", dataclasses.replace(PASTED, guard="- ")).text == "not /clear"


def test_what_cannot_be_typed_is_refused_before_anything_is() -> None:
    assert refused(" \x1b\x07 ") == "input_rejected"
    assert refused("one\ntwo", bracketed=False) == "input_rejected"
    assert planned("one\n", bracketed=False).data == b"one"
    plain = InjectionRules(multiline=True)
    assert planned("one\ntwo", plain, bracketed=False).data == b"one\rtwo"
    assert planned("x" * LINE_BYTES, plain, bracketed=False, canonical=True).data == b"x" * LINE_BYTES
    assert refused("x" * (LINE_BYTES + 1), plain, bracketed=False, canonical=True) == "line_too_long"
    assert planned("x" * (LINE_BYTES + 1), plain, bracketed=False).text


def test_a_tab_that_would_complete_a_word_is_blanks() -> None:
    assert planned("a\tb", bracketed=False).data == b"a    b"
    assert planned("a\tb", bracketed=False, canonical=True).data == b"a\tb"
    assert planned("a\tb").data == PASTE_BEGIN + b"a\tb" + PASTE_END


def test_the_pause_grows_with_the_text_up_to_a_second() -> None:
    assert planned("x").pause < timedelta(seconds=0.1)
    assert timedelta(seconds=0.2) < planned("x" * 17_000).pause < timedelta(seconds=0.3)
    assert planned("x" * 900_000).pause == timedelta(seconds=1)


# --- what is seen of it ---


@pytest.mark.parametrize(
    ("text", "draft", "staged"),
    [
        ("hello there", "hello there", True),
        ("hello there", "hello\nthere", True),
        ("hello there", "", False),
        ("hello there", "hello", False),
        ("one\n" * 20 + "the very end of it", "the very end of it", True),
        ("one\n" * 20 + "end", "something else and the end", False),
        ("row\n" * 330, "[Pasted text #1 +330 lines]", True),
        ("row\n" * 330, "[Pasted text #2 +7 lines]", False),
        ("a\nb", "[Pasted text #1]", True),
        ("🙂🙂", "🙂🙂", True),
    ],
)
def test_staged_is_our_text_or_a_placeholder_of_its_size(text: str, draft: str, staged: bool) -> None:
    assert is_staged(text, Composer(0, 0, draft), PASTED) is staged


def test_a_text_that_stood_there_before_is_not_shown() -> None:
    before = screen("$ hello\nhello\n$ ")
    assert is_shown("hello", before, 0)
    assert not is_shown("hello", before, 2)


# --- the delivery ---


class Course:
    """Steps of one delivery, by hand."""

    def __init__(self, text: str = "hello", rules: InjectionRules = PASTED, *, live: bool = False) -> None:
        self.rules = rules
        self.delivery = Delivery(planned(text, rules), 0.0, live=live)

    def at(self, now: float, reading: Reading, **more: bool) -> Step:
        self.delivery, made = step(self.delivery, Seen(reading, **more), now=now, rules=self.rules)
        return made


EMPTY, STAGED = read(composed(), RULES), read(composed("hello"), RULES)
WORKS = read(composed(above="esc to interrupt"), RULES)
WORKS_STAGED = read(composed("hello", above="esc to interrupt"), RULES)
DIALOG, NOTHING = read(screen(ASKS), RULES), Reading(Condition.UNRECOGNISED)


def test_two_phases_and_then_confirmed() -> None:
    course = Course()
    assert course.at(0.01, EMPTY) == Wait()
    assert course.at(0.02, STAGED) == Wait(), "the pause is not over"
    assert course.at(0.1, STAGED) == Submit()
    assert course.at(0.2, STAGED) == Wait()
    assert course.at(0.3, EMPTY) == Ended(Outcome.CONFIRMED)


def test_what_is_not_seen_is_not_submitted() -> None:
    course = Course()
    assert course.at(4.9, EMPTY) == Wait()
    assert cast(Ended, course.at(5.1, EMPTY)).outcome is Outcome.FAILED
    assert cast(Ended, Course().at(0.1, DIALOG)).outcome is Outcome.FAILED
    assert course.delivery.pressed == 0


def test_the_submit_key_is_pressed_again_and_the_text_never() -> None:
    course = Course()
    assert course.at(0.1, STAGED) == Submit()
    assert [course.at(at, STAGED) for at in (1.2, 1.5, 2.3, 3.4)] == [Submit(), Wait(), Submit(), Wait()]
    ended = cast(Ended, course.at(5.2, STAGED))
    assert ended.outcome is Outcome.FAILED
    assert "submit key" in ended.reason


def test_a_program_at_work_or_asking_has_taken_it() -> None:
    for reading in (WORKS, DIALOG):
        course = Course()
        course.at(0.1, STAGED)
        assert course.at(0.2, reading) == Ended(Outcome.CONFIRMED)


def test_work_proves_nothing_when_there_was_work_before() -> None:
    course = Course(live=True)
    assert course.at(0.1, WORKS_STAGED) == Submit()
    assert course.at(0.3, WORKS_STAGED) == Wait()
    assert course.at(0.4, WORKS) == Ended(Outcome.CONFIRMED), "the composer is empty"
    course = Course(live=True)
    course.at(0.1, WORKS_STAGED)
    assert course.at(0.3, Reading(Condition.WORKING)) == Wait()


def test_work_that_leaves_the_text_in_the_composer_has_not_taken_it() -> None:
    course = Course()
    course.at(0.1, STAGED)
    assert course.at(0.3, WORKS_STAGED) == Wait()


def test_neither_seen_to_be_taken_nor_in_the_composer_is_unverified() -> None:
    course = Course()
    course.at(0.1, STAGED)
    assert course.at(4.0, NOTHING) == Wait()
    assert cast(Ended, course.at(5.2, NOTHING)).outcome is Outcome.UNVERIFIED


BLIND = InjectionRules(blind=True)


def test_a_blind_delivery_is_confirmed_by_what_is_shown_and_moves() -> None:
    course = Course(rules=BLIND)
    assert course.at(0.1, NOTHING, shown=True) == Submit()
    assert course.at(0.2, NOTHING, shown=True) == Wait()
    assert course.at(0.3, NOTHING, shown=True, moved=True) == Ended(Outcome.CONFIRMED)


def test_a_blind_delivery_into_a_sink_is_pressed_once_and_unverified() -> None:
    course = Course(rules=BLIND)
    assert course.at(0.5, NOTHING) == Wait()
    assert course.at(1.1, NOTHING) == Submit()
    assert course.at(2.5, NOTHING, moved=True) == Wait()
    assert cast(Ended, course.at(6.2, NOTHING)).outcome is Outcome.UNVERIFIED
    assert (course.delivery.pressed, course.delivery.phase) == (1, Phase.SUBMITTING)


# --- answers ---

QUESTION = Question(
    name="permission", kind=DialogKind.PERMISSION, text="?", choices=(Choice("1", "Yes"), Choice("2", "No"))
)


def test_keys_for_an_answer() -> None:
    assert typing(QUESTION, "yes", {}, PASTED) == Typing(key=b"1")
    assert typing(QUESTION, "No", {"permission": {"2": "\x1b"}}, PASTED) == Typing(key=b"\x1b")
    assert typing(QUESTION, "maybe", {}, PASTED) is None
    free = dataclasses.replace(QUESTION, free=True)
    assert typing(free, "may\x1b[201~be\n so\r", {}, PASTED) == Typing(b"may[201~be so", b"\r")


# --- how fast ---


@pytest.mark.parametrize(
    ("outcomes", "delay_ms"),
    [
        ("", 100),
        ("F", 100),
        ("FF", 200),
        ("FFF", 500),
        ("FFFFFFFF", 5000),
        ("FFFFFSSS", 1000),
        ("FFFSSUS", 500),
        ("FFFSSS", 250),
        ("FFFSSSSSS", 125),
        ("SSSSSS", 100),
        ("FFFSFSS", 100),
    ],
)
def test_the_throttle(outcomes: str, delay_ms: int) -> None:
    throttle = Throttle()
    for letter in outcomes:
        throttle = after(throttle, {"S": Outcome.CONFIRMED, "F": Outcome.FAILED, "U": Outcome.UNVERIFIED}[letter])
    assert throttle.delay == timedelta(milliseconds=delay_ms)
