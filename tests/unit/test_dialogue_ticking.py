"""What only counts or moves in a dialog is none of what it asks; all else is, to the last blank."""

from __future__ import annotations

import dataclasses
import tomllib
from datetime import timedelta
from importlib.resources import files
from types import SimpleNamespace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oah.adapters.pty.asked import AskedQuestion
from oah.adapters.pty.matching import compiled
from oah.core.dialogue.reading import Condition, Dialog, DialogRule, Reading, asks_the_same, read, stands
from oah.core.dialogue.screen import Screen
from oah.core.dialogue.screen_profile import screen_profile
from oah.core.dialogue.turn import Asks, Going, Turn, TurnRules, judge, standing
from oah.core.model.question import DialogKind
from tests.support.clock import StillClock
from tests.support.screens import RULES, pattern, screen

FEW = settings(max_examples=60, deadline=None)

FRAMED = DialogRule(
    name="permission",
    kind=DialogKind.PERMISSION,
    lines=(pattern("Do you want to proceed"),),
    choice=pattern(r"^\W*(\d)\. (.*)$"),
    top=pattern("^╭─{20,}"),
    inside=pattern("^│"),
    end=pattern("^╰─{20,}"),
)
CHOICES = ("Yes", "Yes, and do not ask again", "No, and say why")


def drawn(*above: str, choices: tuple[str, ...] = CHOICES, marked: int = 1, below: tuple[str, ...] = ()) -> str:
    rows = [*above, *[f"{'❯' if n == marked else ' '} {n}. {words}" for n, words in enumerate(choices, 1)], *below]
    return "\n".join([f"╭{'─' * 60}╮", *[f"│ {row:<58} │" for row in rows], f"╰{'─' * 60}╯"])


def seen(text: str, rule: DialogRule = FRAMED) -> Reading:
    return read(screen(text, rows=40), dataclasses.replace(RULES, dialogs=(rule,)))


def dialog(*above: str, title: str = "Do you want to proceed?", rule: DialogRule = FRAMED, **more: object) -> Dialog:
    found = seen(drawn(title, *above, **more), rule).dialog  # type: ignore[arg-type]
    assert found is not None
    return found


COMMAND = "  rm -r build"
CLOCKS = (
    "Continuing in {} s…",
    "Continuing in {}",
    "⠋ Auto-accepting in {} seconds...",
    "(auto-approve in {}s)",
    "This dialog closes in {}s unless you press a key",
    "Will continue automatically in {} seconds",
    "Times out in 0:{:02}",
    "{} s left",
    "Time remaining: {}s",
)
GROWING = ("Waiting for you… {}s", "Elapsed: {} s", "✻ Waiting for approval ({}s)", "Esc to cancel · {}s")


@FEW
@given(st.sampled_from(CLOCKS), st.integers(1, 59), st.integers(0, 58))
def test_a_countdown_that_goes_on_is_the_same_dialog(clock: str, more: int, less: int) -> None:
    assume(less < more)
    before, after = dialog(COMMAND, clock.format(more)), dialog(COMMAND, clock.format(less))
    assert asks_the_same(before, after)
    assert not asks_the_same(after, before), "it began anew: somebody is asked again"
    assert not asks_the_same(before, dialog("  rm -r other", clock.format(less)))
    assert not asks_the_same(before, dialog(COMMAND, clock.format(less), choices=CHOICES[:2]))
    assert not asks_the_same(before, dialog(COMMAND)), "and without its clock it is another one"


@FEW
@given(st.sampled_from(GROWING), st.integers(0, 9_999), st.integers(0, 9_999))
def test_what_counts_up_says_nothing_either(clock: str, one: int, other: int) -> None:
    spot = "below" if clock.startswith("Esc") else "above"
    first, second = ((clock.format(n),) for n in (one, other))
    if spot == "below":
        assert asks_the_same(dialog(COMMAND, below=first), dialog(COMMAND, below=second))
    else:
        assert asks_the_same(dialog(COMMAND, *first), dialog(COMMAND, *second))


@FEW
@given(st.sampled_from("⠋⠙⠹⠸✻✽✶◐◓"), st.sampled_from("⠋⠙⠹⠸✻✽✶◐◓"), st.integers(1, 3))
def test_a_spinner_and_the_marked_choice_say_nothing(one: str, other: str, marked: int) -> None:
    assert asks_the_same(dialog(COMMAND, f"{one} Thinking about it"), dialog(COMMAND, f"{other} Thinking about it"))
    assert asks_the_same(dialog(COMMAND), dialog(COMMAND, marked=marked))


@FEW
@given(st.integers(0, 99), st.integers(0, 99))
def test_a_clock_in_brackets_after_the_question_or_a_choice(one: int, other: int) -> None:
    titles = [f"Do you want to proceed? ({n}s)" for n in (one, other)]
    assert asks_the_same(dialog(COMMAND, title=titles[0]), dialog(COMMAND, title=titles[1]))
    choices = [(f"Yes (auto in {n} s)", "No") for n in (one, other)]
    assert asks_the_same(dialog(COMMAND, choices=choices[0]), dialog(COMMAND, choices=choices[1]))
    assert not asks_the_same(
        dialog(COMMAND, choices=choices[0]), dialog(COMMAND, choices=(f"No (auto in {one} s)", "No"))
    )


def seconds(of: float) -> timedelta:
    return timedelta(seconds=of)


@pytest.mark.parametrize("clock", [each for each in CLOCKS if "0:" not in each])
def test_a_countdown_that_has_fallen_faster_than_time_passed_is_another(clock: str) -> None:
    """Two approvals of the same order, one right after the other: an answer to the first is none to the second."""
    nine, five = (dialog(COMMAND, clock.format(left)) for left in (9, 5))
    assert asks_the_same(nine, five, passed=seconds(4))
    assert asks_the_same(nine, five, passed=seconds(2)), "a machine that stalls shows it late"
    assert not asks_the_same(nine, five, passed=seconds(0.5))
    assert asks_the_same(nine, five, passed=seconds(11)), "nor did the program get the processor"
    assert not asks_the_same(nine, five, passed=seconds(13)), "that one was over long ago"
    assert asks_the_same(nine, nine, passed=seconds(99)), "one that rests is no clock"


@pytest.mark.parametrize("spot", ["title", "choice", "below", "row", "waits"])
def test_a_clock_anywhere_moves_no_further_than_time_has_passed(spot: str) -> None:
    def shown(at: int) -> Dialog:
        match spot:
            case "title":
                return dialog(COMMAND, title=f"Do you want to proceed? ({at}s)")
            case "choice":
                return dialog(COMMAND, choices=(f"Yes (auto in {at} s)", "No"))
            case "below":
                return dialog(COMMAND, below=(f"Esc to cancel · {at}s",))
            case "row":
                return dialog(COMMAND, f"Elapsed: {at} s")
            case _:
                return dialog(COMMAND, f"✻ Waiting for approval ({at}s)")

    for one, other in ((2, 10), (10, 2)):
        assert asks_the_same(shown(one), shown(other), passed=seconds(8))
        assert not asks_the_same(shown(one), shown(other), passed=seconds(1)), "it began anew"


def test_a_clock_of_minutes_ticks_by_a_minute() -> None:
    one, other = (dialog(COMMAND, f"Waiting for you… {minutes}m") for minutes in (4, 5))
    assert asks_the_same(one, other, passed=seconds(1))
    assert not asks_the_same(one, dialog(COMMAND, "Waiting for you… 7m"), passed=seconds(1))


def test_a_question_into_which_a_text_is_typed_keeps_its_time_as_well() -> None:
    rule = dataclasses.replace(FRAMED, kind=DialogKind.QUESTION, free=True, choice=None)
    one, typed, soon, anew = (
        dialog(f"Continuing in {left} s…", f"answer: {text}", choices=(), rule=rule)
        for left, text in ((9, ""), (7, "blue"), (3, ""), (12, ""))
    )
    assert asks_the_same(one, typed, passed=seconds(2))
    assert not asks_the_same(one, soon, passed=seconds(1))
    assert not asks_the_same(one, anew)
    clock = dialog("Continuing in 8 s…", "answer: Elapsed: 5 s", choices=(), rule=rule)
    assert asks_the_same(one, clock, passed=seconds(1)), "whatever is typed"


class Shown:
    """Of a terminal what a question looks at."""

    def __init__(self, now: Dialog) -> None:
        self.model, self.terminal = SimpleNamespace(changes=0), SimpleNamespace(pressed_at=float("-inf"))
        self.key_at = float("-inf")
        self.dialog = now

    def shows(self, now: Dialog) -> None:
        self.model.changes += 1
        self.dialog = now

    def read(self) -> Reading:
        return Reading(Condition.ASKING, None, self.dialog)

    def look(self) -> Screen:
        return screen(self.dialog.text)


def test_an_answer_to_one_question_reaches_no_equal_one_that_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StillClock()
    monkeypatch.setattr("oah.adapters.pty.asked.time", clock)
    counted = [dialog(COMMAND, f"Continuing in {left} s…") for left in range(60)]
    shown = Shown(counted[59])
    asked = AskedQuestion(shown)  # type: ignore[arg-type]
    asked.put(counted[59])
    asked.question = counted[59].question
    clock.seconds += 30
    assert asked.stands(), "it has not moved"
    for left in range(58, 30, -1):
        clock.seconds += 1
        shown.shows(counted[left])
        assert asked.stands()
    clock.seconds += 1
    shown.shows(counted[20])
    assert not asked.stands() and not asked.asks()


ORDERS = (
    "kill {}",
    "kill -9 {}",
    "sleep {}s",
    "sleep {} s",
    "timeout: {}s",
    "timeout {}s make",
    "Cancel the meeting in {} minutes",
    "Shut the server down in {} s",
    "the link expires in {} hours",
    "at now + {} minutes",
    "echo 'Continuing in {} s'",
    "$ (sleep {}s)",
    "curl http://host:{}/",
    "date -s 10:{:02}",
    "echo done, {}s",
    "1{}. the step",
    "$ echo really? {}s",
    "lunch today? ({}m)",
    "chmod {}:{} file",
)


@FEW
@given(st.sampled_from(ORDERS), st.integers(1, 59), st.integers(1, 59))
def test_two_orders_that_differ_in_a_number_are_two_questions(order: str, one: int, other: int) -> None:
    assume(one != other)
    clock = "Continuing in 5 s…"
    first, second = (dialog(f"  {order.format(n, n)}", clock) for n in (one, other))
    assert not asks_the_same(first, second)
    assert asks_the_same(first, first)


_TEXT = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=50)


@FEW
@given(_TEXT, _TEXT, _TEXT, _TEXT)
def test_what_differs_in_anything_else_differs(before: str, after: str, one: str, other: str) -> None:
    """Whatever stands in an order's row, behind a sign that no clock begins with."""
    one, other = f"{before}{one}{after}"[:50], f"{before}{other}{after}"[:50]
    first, second = dialog(f"  $ {one}"), dialog(f"  $ {other}")
    ends = {each.rstrip(" │╭╮╰╯─┌┐└┘") for each in (one, other)}
    assert asks_the_same(first, second) is (len(ends) == 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rm -r ./build", "rm -r /build"),
        ("rm a b", "rm ab"),
        ("a > b", "a < b"),
        ("+ a line", "- a line"),
        ("if x:", "  if x:"),
        ("[", "]"),
        ("rm -r .", "rm -r .."),
    ],
)
def test_signs_blanks_and_indents_are_a_part_of_it(one: str, other: str) -> None:
    assert not asks_the_same(dialog(f"  {one}"), dialog(f"  {other}"))


def test_a_profile_names_lines_that_tick_in_its_programs_own_way() -> None:
    rule = dataclasses.replace(FRAMED, ticks=(pattern(r"^│ patience \d+ of \d+"),))
    one, other = (f"patience {n} of 9" for n in (1, 7))
    assert not asks_the_same(dialog(COMMAND, one), dialog(COMMAND, other))
    first, second = dialog(COMMAND, one, rule=rule), dialog(COMMAND, other, rule=rule)
    assert asks_the_same(first, second) and "patience 1" in first.text, "it is shown all the same"
    assert not asks_the_same(first, dialog("  rm -r other", other, rule=rule))


def test_free_text_grows_and_another_question_is_another() -> None:
    rule = dataclasses.replace(FRAMED, kind=DialogKind.QUESTION, free=True, choice=None)
    asked, typed = (dialog("answer: " + text, choices=(), rule=rule) for text in ("", "dark blue"))
    assert asks_the_same(asked, typed) and asks_the_same(typed, asked)
    other = dialog("answer: ", title="Do you want to proceed to Rome?", choices=(), rule=rule)
    assert not asks_the_same(asked, other)
    assert not asks_the_same(
        dialog("db1", "in 1", choices=(), rule=rule), dialog("db12", "in 12", choices=(), rule=rule)
    )
    allowed = dataclasses.replace(rule, kind=DialogKind.PERMISSION)
    one, longer = (dialog(f"  kill {number}", choices=(), rule=allowed) for number in (12, 123))
    assert not asks_the_same(one, longer), "nothing is typed into what is to be allowed"


def test_a_dialog_of_another_name_or_none_at_all_is_another() -> None:
    asked = dialog(COMMAND)
    assert not asks_the_same(asked, dataclasses.replace(asked, name="trust"))
    assert stands(asked, Reading(Condition.ASKING, None, asked))
    assert not stands(asked, Reading(Condition.UNRECOGNISED))


def test_a_dialog_that_never_rests_is_asked_about_when_it_has_stood() -> None:
    rules, state = TurnRules(), Turn(0.0)
    looks = [(tenth / 10, dialog(COMMAND, f"{'⠋⠙⠹'[tenth % 3]} Thinking")) for tenth in range(8)]
    held, asked_at = None, None
    for at, now in looks:
        held = standing(held, now, output_at=at, key_at=0.0)
        reading = Reading(Condition.ASKING, None, now)
        state = dataclasses.replace(state, changed_at=at)
        stood = held.stood(at, rules)
        state, verdict = judge(state, reading, answered=False, now=at, rules=rules, stood=stood)
        assert isinstance(verdict, Asks | Going)
        if isinstance(verdict, Asks) and asked_at is None:
            asked_at = at
    assert asked_at == 0.5
    pressed = standing(held, looks[-1][1], output_at=0.7, key_at=0.7)
    assert pressed.since == 0.7, "after a key it is another"
    assert standing(held, dialog("  rm -r other"), output_at=0.8, key_at=0.0).since == 0.8


def test_one_that_never_rests_in_its_own_way_is_asked_about_in_the_end() -> None:
    rules, held, stood = TurnRules(), None, []
    for tenth in range(60):
        held = standing(held, dialog(COMMAND, f"patience {tenth}"), output_at=tenth / 10, key_at=0.0)
        stood.append(held.stood(tenth / 10, rules) >= rules.asked.total_seconds())
    assert stood.index(True) == 50
    assert standing(held, dialog(COMMAND), output_at=6.0, key_at=6.0).stood(6.1, rules) < 0.5


def test_another_choice_of_claude_code_may_be_marked() -> None:
    table = tomllib.loads((files("oah.core.dialogue.profiles") / "claude-code.toml").read_text(encoding="utf-8"))
    rules = screen_profile(table, compiled, source="claude-code").screen

    def asked(keys: str, order: str = "touch here") -> Dialog:
        rows = ["─" * 40, " Bash command", f"   {order}", " Do you want to proceed?", " ❯ 1. Yes", "   2. No", "", keys]
        found = read(screen("\n".join(rows)), rules).dialog
        assert found is not None and found.name == "permission"
        return found

    first = asked(" Esc to cancel · Tab to amend · ctrl+e to explain")
    assert asks_the_same(first, asked(" Esc to cancel · ctrl+e to explain"))
    assert not asks_the_same(first, asked(" Esc to cancel · ctrl+e to explain", "touch there"))
