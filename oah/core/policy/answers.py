"""Who answers what a program asks: a person, or a rule that somebody has written for such questions.

Guarantees: without a rule a person is asked. What blocks a program for good (a login, a failure) no rule answers, and a
dialog that no profile knows only a rule that names `unknown`. A rule that denies comes before all others, then the
workspace's rules, then the profile's, each in their order. A rule answers only with a choice that the dialog offers;
where that is not there, or not the only one, a person is asked: nothing is guessed. Patterns see the dialog's own lines
and nothing else, so that what a run was told to do cannot look like a question; where that cannot be told, because the
dialog's lines are not all there or not the only ones, a person is asked instead of a rule with a pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from oah.core.model.question import Choice, DialogKind, Question
from oah.errors import InvalidRequest

UNKNOWN = "unknown"
"""The name of a dialog that no rule of its profile knows."""
MOST_RULES = 100
MOST_PATTERN = 1_000
"""Characters of a pattern."""
_YES = ("yes", "allow", "allow once", "approve", "proceed", "yes, proceed", "yes, allow once", "accept", "y", "ok")
_NO = ("no", "deny", "reject", "cancel", "don't allow", "do not allow", "n")


class Pattern(Protocol):
    """A compiled RE2."""

    def search(self, text: str, /) -> object: ...


Compile = Callable[[str], Pattern]
"""Raises InvalidRequest for what RE2 refuses."""


class Action(StrEnum):
    """What a rule wants."""

    ASK = "ask"
    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Rule:
    """It fits a question that has one of its ``names``, is of one of its ``kinds`` and has a line its ``pattern``
    matches; what is not said fits all. ``answer``: the choice, by key or words; None: the plain yes or no."""

    action: Action
    name: str
    names: tuple[str, ...] = ()
    kinds: tuple[DialogKind, ...] = ()
    pattern: Pattern | None = None
    answer: str | None = None

    def fits(self, question: Question) -> bool:
        """Whether it speaks of this question."""
        if not self.concerns(question):
            return False
        return self.pattern is None or any(self.pattern.search(line) for line in question.text.splitlines())

    def concerns(self, question: Question) -> bool:
        """Whether it does as far as name and kind say."""
        if self.names and question.name not in self.names:
            return False
        if question.name == UNKNOWN and UNKNOWN not in self.names:
            return False
        return not self.kinds or question.kind in self.kinds


@dataclass(frozen=True, slots=True)
class Rules:
    """In the order in which they are asked."""

    workspace: tuple[Rule, ...] = ()
    profile: tuple[Rule, ...] = ()


ASK_ALWAYS = Rules()


@dataclass(frozen=True, slots=True)
class Ask:
    """A person answers."""


@dataclass(frozen=True, slots=True)
class Answer:
    """It may; ``choice`` is the key of a choice."""

    choice: str
    rule: str


@dataclass(frozen=True, slots=True)
class Deny:
    """It may not; ``choice`` is the key of a choice."""

    choice: str
    rule: str


Decision = Ask | Answer | Deny


def decide(question: Question, rules: Rules) -> Decision:
    """Total: every question gets a decision."""
    if question.kind.blocks:
        return Ask()
    concerned = [rule for rule in (*rules.workspace, *rules.profile) if rule.concerns(question)]
    if not question.whole and any(rule.pattern is not None for rule in concerned):
        return Ask()
    fitting = [rule for rule in concerned if rule.fits(question)]
    denying = [rule for rule in fitting if rule.action is Action.DENY]
    if not fitting:
        return Ask()
    rule = (denying or fitting)[0]
    choice = None if rule.action is Action.ASK else _choice(question, rule)
    if choice is None:
        return Ask()
    return Deny(choice.key, rule.name) if rule.action is Action.DENY else Answer(choice.key, rule.name)


def _choice(question: Question, rule: Rule) -> Choice | None:
    if rule.answer is not None:
        return question.chosen(rule.answer)
    plain = _NO if rule.action is Action.DENY else _YES
    found = [choice for choice in question.choices if _folded(choice.words) in plain]
    if not found and rule.action is Action.DENY:  # "No, and tell the agent what to do differently (esc)"
        found = [choice for choice in question.choices if _folded(choice.words).split(",")[0].split(" (")[0] in plain]
    return found[0] if len(found) == 1 else None


def _folded(words: str) -> str:
    return " ".join(words.split()).casefold().rstrip(".!")


_KEYS = {"action", "name", "names", "kinds", "matches", "answer"}


def rules_from(tables: Sequence[Mapping[str, Any]], compile_: Compile, *, source: str) -> tuple[Rule, ...]:
    """Rules as a profile's ``[[answers]]`` or a workspace's ``answers`` say them. Raises InvalidRequest
    ``invalid_answers`` that names the rule."""
    if len(tables) > MOST_RULES:
        raise _invalid(source, f"at most {MOST_RULES} rules")
    return tuple(_rule(table, compile_, f"{source} {n}") for n, table in enumerate(tables, 1))


def _rule(table: Mapping[str, Any], compile_: Compile, source: str) -> Rule:
    if not isinstance(table, Mapping):
        raise _invalid(source, "a rule is a table")
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        raise _invalid(source, f"unknown key {unknown[0]!r}")
    action, kinds = table.get("action"), _texts(table, "kinds", source)
    if action not in set(Action):
        raise _invalid(source, f"action: one of {', '.join(Action)}")
    wrong = [kind for kind in kinds if kind not in set(DialogKind)]
    if wrong:
        raise _invalid(source, f"kind {wrong[0]!r}: one of {', '.join(DialogKind)}")
    names = _texts(table, "names", source)
    matches = _text(table, "matches", source)
    if not (names or kinds or matches is not None):
        raise _invalid(source, "a rule says for which questions it is: names, kinds or matches")
    return Rule(
        action=Action(action),
        name=_text(table, "name", source) or source,
        names=names,
        kinds=tuple(DialogKind(kind) for kind in kinds),
        pattern=None if matches is None else compile_(matches),
        answer=_text(table, "answer", source),
    )


def _text(table: Mapping[str, Any], key: str, source: str) -> str | None:
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MOST_PATTERN:
        raise _invalid(source, f"{key} is a text of 1 to {MOST_PATTERN} characters")
    return value


def _texts(table: Mapping[str, Any], key: str, source: str) -> tuple[str, ...]:
    value = table.get(key, ())
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) and each for each in value):
        raise _invalid(source, f"{key} is a list of texts")
    return tuple(value)


def _invalid(source: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"answers of {source}: {reason}", code="invalid_answers")
