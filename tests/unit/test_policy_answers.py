"""Who answers for people: nothing without a rule, never a guess, deny before all others."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oah.core.model.question import Choice, DialogKind, Question, question_from
from oah.core.policy.answers import ASK_ALWAYS, Action, Answer, Ask, Deny, Rule, Rules, decide, rules_from
from oah.errors import InvalidRequest

YES_NO = (Choice("1", "Yes"), Choice("2", "Yes, and do not ask again"), Choice("3", "No, tell it what to do (esc)"))


def question(text: str = "Bash command\n  ls -la\nDo you want to proceed?", **more: Any) -> Question:
    given = {"name": "permission", "kind": DialogKind.PERMISSION, "choices": YES_NO, **more}
    return Question(text=text, **given)


def rules(*tables: dict[str, Any]) -> tuple[Rule, ...]:
    return rules_from(tables, re.compile, source="test")


def of(*tables: dict[str, Any], profile: tuple[dict[str, Any], ...] = ()) -> Rules:
    return Rules(workspace=rules(*tables), profile=rules(*profile))


ALLOW_LS: dict[str, Any] = {"action": "allow", "name": "ls", "matches": r"^\s*ls "}
DENY_RM: dict[str, Any] = {"action": "deny", "name": "rm", "matches": r"\brm\b"}
ALLOW_ALL: dict[str, Any] = {"action": "allow", "name": "all", "kinds": ["permission"]}


def test_without_a_rule_a_person_is_asked() -> None:
    assert decide(question(), ASK_ALWAYS) == Ask()
    assert decide(question("rm -rf /"), of(ALLOW_LS)) == Ask()


def test_a_rule_that_fits_answers_with_the_plain_yes() -> None:
    assert decide(question(), of(ALLOW_LS)) == Answer("1", "ls")
    assert decide(question(), of(profile=(ALLOW_LS,))) == Answer("1", "ls")
    assert decide(question(), of({**ALLOW_LS, "answer": "yes, and do not"})) == Answer("2", "ls")


def test_deny_comes_before_all_others_wherever_it_stands() -> None:
    both = question("ls x; rm y")
    assert decide(both, of(ALLOW_ALL, profile=(DENY_RM,))) == Deny("3", "rm")
    assert decide(both, of(DENY_RM, profile=(ALLOW_ALL,))) == Deny("3", "rm")


def test_a_workspace_comes_before_the_profile() -> None:
    asks = {"action": "ask", "names": ["permission"]}
    assert decide(question(), of(asks, profile=(ALLOW_ALL,))) == Ask()
    assert decide(question(), of(ALLOW_ALL, profile=(asks,))) == Answer("1", "all")


@pytest.mark.parametrize(
    "choices",
    [(), (Choice("a", "Maybe"), Choice("b", "Later")), (Choice("1", "Yes"), Choice("2", "yes."))],
    ids=["none", "others", "two"],
)
def test_nothing_is_guessed(choices: tuple[Choice, ...]) -> None:
    assert decide(question(choices=choices), of(ALLOW_ALL)) == Ask()
    assert decide(question(), of({**ALLOW_ALL, "answer": "certainly"})) == Ask()


@pytest.mark.parametrize("kind", [DialogKind.LOGIN, DialogKind.FATAL])
def test_what_blocks_a_program_no_rule_answers(kind: DialogKind) -> None:
    assert decide(question(kind=kind), of({"action": "allow", "kinds": [kind.value]})) == Ask()


def test_what_no_profile_knows_only_a_rule_that_says_so_answers() -> None:
    unknown = question(name="unknown", kind=DialogKind.QUESTION)
    assert decide(unknown, of({"action": "allow", "kinds": ["question"]})) == Ask()
    assert decide(unknown, of({"action": "allow", "name": "any", "names": ["unknown"]})) == Answer("1", "any")


def test_a_pattern_sees_single_lines_of_the_dialog() -> None:
    assert decide(question("say\nls", choices=YES_NO), of({**ALLOW_LS, "matches": r"say\sls"})) == Ask()


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"action": "allow"},
        {"action": "perhaps", "kinds": ["permission"]},
        {"action": "allow", "kinds": ["nonesuch"]},
        {"action": "allow", "kinds": "permission"},
        {"action": "allow", "names": [1]},
        {"action": "allow", "names": ["x"], "more": 1},
        {"action": "allow", "matches": ""},
        {"action": "allow", "matches": "x" * 2_000},
        {"action": "allow", "names": ["x"], "answer": 1},
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rules(wrong)
    assert caught.value.code == "invalid_answers"


def test_rules_are_bounded() -> None:
    with pytest.raises(InvalidRequest):
        rules(*[ALLOW_LS] * 101)


@given(st.text(max_size=80), st.lists(st.tuples(st.text(min_size=1, max_size=3), st.text(max_size=20)), max_size=4))
def test_total_and_only_what_is_offered(text: str, offered: list[tuple[str, str]]) -> None:
    choices = tuple(Choice(key, words) for key, words in offered)
    asked = question(text, choices=choices)
    for action in Action:
        decision = decide(asked, of({"action": action.value, "kinds": ["permission"], "answer": "y"}))
        assert isinstance(decision, Ask) or decision.choice in {choice.key for choice in choices}
    assert question_from(asked.document()) == asked


def test_a_question_that_is_not_whole_is_judged_by_no_pattern() -> None:
    assert decide(question(whole=False), of(ALLOW_ALL)) == Answer("1", "all")
    assert decide(question(whole=False), of(DENY_RM, ALLOW_ALL)) == Ask()
    assert decide(question("ls ", whole=False), of(ALLOW_LS)) == Ask()
    assert decide(question(whole=False), of({**DENY_RM, "names": ["other"]}, ALLOW_ALL)) == Answer("1", "all")
