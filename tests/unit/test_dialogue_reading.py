"""What a screen says: ready, working, asking, blocked, or not recognised; never more than it shows."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from oah.core.dialogue.place import Place, place
from oah.core.dialogue.reading import Condition, Dialog, DialogRule, Reading, read, stands, unknown
from oah.core.dialogue.turn import Asks, Going, Over, Turn, TurnRules, Unseen, judge, key, output, replied
from oah.core.model.question import Choice, DialogKind, Question
from tests.support.screens import ASKS, PROMPT, RULE, RULES, composed, pattern, screen

RULES_OF_TURN = TurnRules()


def test_a_composer_is_ready_and_says_what_stands_in_it() -> None:
    assert read(composed(), RULES).condition is Condition.READY
    reading = read(composed("half a\n  line"), RULES)
    assert reading.composer is not None
    assert reading.composer.draft == "half a\nline"


def test_work_above_the_composer_is_work() -> None:
    reading = read(composed(above="✻ Thinking… (2s · esc to interrupt)\n"), RULES)
    assert reading.condition is Condition.WORKING
    assert reading.composer is not None


def test_what_is_typed_into_the_composer_is_no_work() -> None:
    assert read(composed("esc to interrupt"), RULES).condition is Condition.READY


def test_old_lines_far_above_say_nothing() -> None:
    old = "esc to interrupt\n" + "\n".join(f"line {n}" for n in range(30))
    assert read(composed(above=old), dataclasses.replace(RULES, near=8)).condition is Condition.READY


def test_a_dialog_asks_with_its_choices() -> None:
    reading = read(screen(ASKS), RULES)
    assert reading.condition is Condition.ASKING
    assert reading.dialog is not None
    assert reading.dialog.choices == (Choice("1", "Yes"), Choice("2", "No, and say why"))
    assert reading.dialog.question.takes("yes")


def test_a_login_blocks() -> None:
    assert read(screen("Select login method"), RULES).condition is Condition.BLOCKED


def test_a_dialog_that_a_text_quotes_is_none_while_the_composer_is_there() -> None:
    assert read(composed(above=ASKS), RULES).condition is Condition.READY
    assert read(composed(ASKS), RULES).condition is Condition.READY


@pytest.mark.parametrize("frame", ["╌" * 30, "-" * 30, "═" * 30, ""])
def test_another_frame_is_not_recognised_rather_than_ready(frame: str) -> None:
    assert read(screen(f"{frame}\n> \n{frame}\n? for help"), RULES).condition is Condition.UNRECOGNISED


def test_a_composer_without_its_lower_border_is_none() -> None:
    assert read(screen(f"{RULE}\n> hello"), RULES).condition is Condition.UNRECOGNISED


def test_a_composer_far_above_the_bottom_is_an_old_one() -> None:
    below = "\n".join(f"line {n}" for n in range(9))
    assert read(composed(below=below), RULES).condition is Condition.UNRECOGNISED


def test_a_plain_prompt_is_where_the_cursor_is() -> None:
    rules = dataclasses.replace(RULES, composer=PROMPT)
    assert read(screen("$ ls\nfile\n$ "), rules).condition is Condition.READY
    assert read(screen("$ sleep 9\n", row=1), rules).condition is Condition.UNRECOGNISED
    assert read(screen("$ ls\nfile\n$ ", row=0), rules).condition is Condition.UNRECOGNISED


# --- may a text be given? ---

READY, WORKING = read(composed(), RULES), read(composed(above="esc to interrupt"), RULES)
ASKING, BLOCKED = read(screen(ASKS), RULES), read(screen("Select login method"), RULES)
NOTHING = Reading(Condition.UNRECOGNISED)


@pytest.mark.parametrize(
    ("reading", "quiet", "blind", "found"),
    [
        (READY, 1.0, False, Place.FREE),
        (READY, 0.5, False, Place.WAIT),
        (read(composed("half"), RULES), 1.0, False, Place.TAKEN),
        (WORKING, 99.0, False, Place.WAIT),
        (ASKING, 1.0, False, Place.ASKS),
        (ASKING, 0.1, False, Place.WAIT),
        (BLOCKED, 1.0, False, Place.BLOCKED),
        (NOTHING, 19.0, False, Place.WAIT),
        (NOTHING, 21.0, False, Place.UNKNOWN),
        (NOTHING, 1.0, True, Place.FREE),
        (NOTHING, 0.5, True, Place.WAIT),
    ],
)
def test_the_place_to_type(reading: Reading, quiet: float, blind: bool, found: Place) -> None:
    assert place(reading, quiet=quiet, settle=RULES_OF_TURN.settle, rules=RULES_OF_TURN, blind=blind) is found


# --- is the turn over? ---


def judged(
    turn: Turn, reading: Reading, now: float, *, answered: bool = False, rules: TurnRules = RULES_OF_TURN
) -> object:
    return judge(turn, reading, answered=answered, now=now, rules=rules)[1]


def test_over_needs_work_or_an_answer_and_quiet() -> None:
    turn = Turn(changed_at=0.0)
    assert isinstance(judged(turn, READY, 5.0), Going), "nothing has moved yet"
    assert isinstance(judged(turn, READY, 5.0, answered=True), Over)
    assert isinstance(judged(turn, READY, 0.5, answered=True), Going), "not quiet yet"
    turn, _ = judge(turn, WORKING, answered=False, now=1.0, rules=RULES_OF_TURN)
    assert isinstance(judged(output(turn, 2.0), READY, 2.9), Over)
    assert isinstance(judged(key(output(turn, 2.0), 2.5), READY, 2.9), Going), "a key counts as much as output"


def test_silence_alone_never_ends_a_turn() -> None:
    turn = Turn(changed_at=0.0, worked=True)
    assert isinstance(judged(turn, WORKING, 500.0), Going)
    assert isinstance(judged(turn, NOTHING, 500.0, rules=TurnRules(unknown=None)), Going)
    assert isinstance(judged(turn, read(composed("someone types"), RULES), 500.0), Going)


def test_a_turn_of_which_nothing_was_seen_is_told_apart() -> None:
    assert isinstance(judged(Turn(changed_at=0.0), READY, 10.5), Unseen)


def test_somebody_is_asked_about_a_dialog_that_stands_and_about_what_nobody_knows() -> None:
    turn = Turn(changed_at=0.0)
    assert isinstance(judged(turn, ASKING, 0.2), Going)
    assert judged(turn, ASKING, 0.6) == Asks(ASKING.dialog)
    assert judged(turn, BLOCKED, 0.6) == Asks(BLOCKED.dialog)
    assert isinstance(judged(turn, NOTHING, 19.0), Going)
    assert judged(turn, NOTHING, 20.5) == Asks(None)


def test_a_dialog_that_was_just_answered_is_not_asked_about_again_at_once() -> None:
    turn = replied(Turn(changed_at=0.0), ASKING.dialog, 1.0)
    assert isinstance(judged(turn, ASKING, 2.0), Going)
    assert judged(turn, ASKING, 6.5) == Asks(ASKING.dialog), "the answer was not taken"
    turn, _ = judge(turn, WORKING, answered=False, now=2.0, rules=RULES_OF_TURN)
    assert judged(turn, ASKING, 3.0) == Asks(ASKING.dialog), "the same question, after work, is another"


# --- questions ---

QUESTION = Question(
    name="q",
    kind=DialogKind.PERMISSION,
    text="?",
    choices=(Choice("1", "Yes"), Choice("2", "Yes, always"), Choice("n", "No, and say why")),
)


@pytest.mark.parametrize(
    ("answer", "key"),
    [
        ("1", "1"),
        ("yes", "1"),
        (" YES,  always ", "2"),
        ("N", "n"),
        ("no, and", "n"),
        ("no", "n"),
        ("", None),
        ("4", None),
    ],
)
def test_an_answer_is_a_key_or_words(answer: str, key: str | None) -> None:
    chosen = QUESTION.chosen(answer)
    assert (chosen.key if chosen else None) == key
    assert QUESTION.takes(answer) == (key is not None)


def test_an_answer_that_could_mean_two_is_none() -> None:
    assert QUESTION.chosen("y") is None


def test_free_text_answers_what_takes_it() -> None:
    question = unknown(screen("What now?"))
    assert (question.name, question.text, question.choices) == ("unknown", "What now?", ())
    assert question.takes("anything")
    assert not question.takes("  ")


def test_what_blocks_is_no_question() -> None:
    assert DialogKind.LOGIN.blocks
    assert DialogKind.FATAL.blocks
    assert not any(kind.blocks for kind in DialogKind if kind not in (DialogKind.LOGIN, DialogKind.FATAL))
    assert timedelta(seconds=20) == RULES_OF_TURN.unknown


# --- where a dialog is ---

FRAMED = DialogRule(
    name="permission",
    kind=DialogKind.PERMISSION,
    lines=(pattern("Do you want to proceed"),),
    choice=pattern(r"^\W*(\d)\. (.*)$"),
    top=pattern("^╭─"),
    inside=pattern("^│"),
    end=pattern("^╰─"),
)
BOX = f"╭{'─' * 24}╮\n│ rm -rf /\n{ASKS}\n╰{'─' * 24}╯"


def dialog_of(text: str, rule: DialogRule = FRAMED) -> Dialog | None:
    return read(screen(text), dataclasses.replace(RULES, dialogs=(rule,))).dialog


def test_a_framed_dialog_is_its_frame_and_nothing_above_it() -> None:
    dialog = dialog_of(f"> {ASKS}\nDo you want to proceed?\n{BOX}\nesc to leave")
    assert dialog is not None and dialog.whole
    assert dialog.text.splitlines()[0] == "rm -rf /"
    assert dialog.text.count("Do you want to proceed") == 1
    assert dialog_of(ASKS) is None, "without its frame it is none"
    assert dialog_of(f"{BOX}\n" + "\n".join(f"line {n}" for n in range(6))) is None, "far above it is an old one"


def test_a_frame_whose_top_has_scrolled_away_is_not_whole() -> None:
    dialog = dialog_of(f"{ASKS}\n╰{'─' * 24}╯")
    assert dialog is not None and not dialog.whole and len(dialog.choices) == 2


def test_a_dialog_without_a_frame_begins_where_it_asks() -> None:
    dialog = dialog_of(f"Do you want to proceed? SECRET\nsaid\n{ASKS}", RULES.dialogs[0])
    assert dialog is not None and "SECRET" not in dialog.text and len(dialog.choices) == 2


def test_two_lines_that_could_be_its_first_leave_it_in_doubt() -> None:
    rule = dataclasses.replace(FRAMED, top=pattern("^  Would you"), inside=pattern("^(?:$|  |│)"), end=None)
    once, twice = f"  Would you like?\n{ASKS}", f"• said\n  Would you like? SECRET\n  Would you like?\n{ASKS}"
    dialog, doubtful = dialog_of(f"• said\n  more\n{once}", rule), dialog_of(twice, rule)
    assert dialog is not None and dialog.whole and "more" not in dialog.text
    assert doubtful is not None and not doubtful.whole


def test_a_plain_prompt_asks_where_the_cursor_is() -> None:
    rule = DialogRule(name="y", kind=DialogKind.PERMISSION, lines=(pattern("Yes/No"),), at_cursor=True)
    rules = dataclasses.replace(RULES, dialogs=(rule,))
    assert read(screen("rm it Yes/No\nfoo? Yes/No"), rules).dialog is not None
    assert read(screen("foo? Yes/No\nworking"), rules).dialog is None
    assert read(screen("foo? Yes/No\nworking", row=0), rules).dialog is None


def test_a_question_stands_until_it_has_left_the_screen() -> None:
    asked = ASKING.dialog
    assert asked is not None
    assert stands(asked, ASKING)
    moved = ASKS.replace("❯ 1", "  1").replace("  2", "❯ 2")
    assert stands(asked, read(screen(moved), RULES)), "another choice is marked, none is taken"
    assert not stands(asked, READY) and not stands(asked, WORKING) and not stands(asked, NOTHING)
    assert not stands(asked, read(screen(ASKS.replace("say why", "why not")), RULES)), "it asks something else"
    free = dataclasses.replace(asked, free=True, kind=DialogKind.QUESTION)
    assert stands(free, read(screen(ASKS + "\nblue"), RULES)), "a text is typed"
    assert stands(None, NOTHING)
    assert not any(stands(None, each) for each in (READY, WORKING, ASKING))


# --- where work is told ---


def test_work_is_told_around_the_composer_only() -> None:
    rules = dataclasses.replace(RULES, busy_above=3)
    assert read(composed(above="esc to interrupt\n"), rules).condition is Condition.WORKING
    assert read(composed(below="esc to interrupt"), rules).condition is Condition.WORKING
    assert read(composed(above="esc to interrupt\nsaid\nmore\n"), rules).condition is Condition.READY
    assert read(screen("said\nesc to interrupt\n"), rules).condition is Condition.WORKING, "no composer is there"
    told = "esc to interrupt\n" + "\n".join("said" for _ in range(7))
    assert read(screen(told), rules).condition is Condition.UNRECOGNISED


def test_a_status_that_does_not_move_is_asked_about_where_a_profile_says_so() -> None:
    turn, rules = Turn(changed_at=0.0), TurnRules(still=timedelta(seconds=60))
    assert isinstance(judged(turn, WORKING, 59.0, rules=rules), Going)
    assert judged(turn, WORKING, 61.0, rules=rules) == Asks(None)
    assert isinstance(judged(turn, WORKING, 900.0), Going)
    assert isinstance(judged(turn, read(screen("esc to interrupt"), RULES), 900.0, rules=rules), Going), "no composer"
