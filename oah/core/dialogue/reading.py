"""What a screen says about the program that drew it: ready, working, asking somebody, blocked, or not recognised.

Three rules keep it honest. What is *asked* counts only while the composer (the place where one types) is not there, so
that a text which quotes a dialog is no dialog. *Working* counts only near the bottom, so that old lines above say
nothing. And what fits no rule is `unrecognised`, never ready: the caller lets that pass after a deadline, a blocked
screen never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from oah.core.dialogue.screen import Screen
from oah.core.model.question import Choice, DialogKind, Question


class Found(Protocol):
    """A match of a pattern."""

    def group(self, number: int, /) -> str | None: ...


class Pattern(Protocol):
    """A compiled pattern; which library compiled it is the adapters' business (RE2, which cannot backtrack)."""

    @property
    def groups(self) -> int: ...

    def search(self, text: str, /) -> Found | None: ...


class Condition(StrEnum):
    """What the program is doing, as far as its screen says."""

    READY = "ready"
    WORKING = "working"
    ASKING = "asking"
    BLOCKED = "blocked"
    UNRECOGNISED = "unrecognised"


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogRule:
    """Lines that must all be near the bottom. `choice`: a line that offers one, group 1 its key, group 2 its words.
    `offers`: its choices where no line of their own says them. `free`: any text is an answer."""

    name: str
    kind: DialogKind
    lines: tuple[Pattern, ...]
    choice: Pattern | None = None
    offers: tuple[Choice, ...] = ()
    free: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposerRule:
    """Where one types. `start`: its first line, group 1 (if any) what stands in it. `above`, `end`: the lines around
    it. `never`: a first line that only looks like one. `hints`: what an empty one shows. `footer`: at most so many
    lines that are not blank lie below. `at_cursor`: it is where the cursor is (plain prompts). `stacked`: each of its
    lines begins like the first."""

    start: Pattern
    above: Pattern | None = None
    end: Pattern | None = None
    never: Pattern | None = None
    hints: tuple[Pattern, ...] = ()
    footer: int = 4
    at_cursor: bool = False
    stacked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenRules:
    """What a profile knows of its program's screens. `near`: how many lines that are not blank count as the bottom."""

    composer: ComposerRule
    busy: tuple[Pattern, ...] = ()
    dialogs: tuple[DialogRule, ...] = ()
    near: int = 24


@dataclass(frozen=True, slots=True)
class Composer:
    """The composer as it stands: rows `first` to `last`, and the draft in it."""

    first: int
    last: int
    draft: str


@dataclass(frozen=True, slots=True)
class Dialog:
    """A dialog on the screen, its lines and its choices."""

    name: str
    kind: DialogKind
    text: str
    choices: tuple[Choice, ...]
    free: bool = False

    @property
    def question(self) -> Question:
        """What somebody is asked."""
        return Question(name=self.name, kind=self.kind, text=self.text, choices=self.choices, free=self.free)


def unknown(screen: Screen) -> Question:
    """What somebody is asked about a screen that no rule recognises: to look at it, and to type."""
    return Question(name="unknown", kind=DialogKind.QUESTION, text=screen.text, free=True)


@dataclass(frozen=True, slots=True)
class Reading:
    """The judgement about one screen."""

    condition: Condition
    composer: Composer | None = None
    dialog: Dialog | None = None


def read(screen: Screen, rules: ScreenRules) -> Reading:
    """Judge one screen."""
    composer = find_composer(screen, rules.composer)
    bottom = near_bottom(screen, rules.near)
    if composer is None:
        dialog = next((seen for rule in rules.dialogs if (seen := _dialog(rule, bottom)) is not None), None)
        if dialog is not None:
            return Reading(Condition.BLOCKED if dialog.kind.blocks else Condition.ASKING, None, dialog)
    if _busy(screen, rules, composer):
        return Reading(Condition.WORKING, composer)
    if composer is not None:
        return Reading(Condition.READY, composer)
    return Reading(Condition.UNRECOGNISED)


def near_bottom(screen: Screen, count: int) -> tuple[str, ...]:
    """The lowest `count` lines that are not blank, in their order."""
    lines = [line for line in screen.lines if line.strip()]
    return tuple(lines[-count:])


def find_composer(screen: Screen, rule: ComposerRule) -> Composer | None:
    """The lowest place that the rule describes, if it is near enough to the bottom."""
    lowest = max(screen.last, screen.row) if rule.at_cursor else screen.last
    for first in range(min(lowest, len(screen.lines) - 1), -1, -1):
        found = _starts(screen, rule, first)
        if found is None:
            continue
        last = _ends(screen, rule, first)
        if last is None:
            continue
        below = sum(1 for line in screen.lines[last + 1 :] if line.strip())
        if below > rule.footer:
            return None
        top = _top(screen, rule, first)
        return Composer(top, last, _draft(screen, rule, top, last))
    return None


def _starts(screen: Screen, rule: ComposerRule, row: int) -> Found | None:
    line = screen.lines[row]
    if rule.at_cursor and row != screen.row:
        return None
    if rule.never is not None and rule.never.search(line):
        return None
    if rule.above is not None and not (row and rule.above.search(screen.lines[row - 1])):
        return None
    return rule.start.search(line)


def _top(screen: Screen, rule: ComposerRule, first: int) -> int:
    while rule.stacked and first and rule.start.search(screen.lines[first - 1]):
        first -= 1
    return first


def _ends(screen: Screen, rule: ComposerRule, first: int) -> int | None:
    """The last row of the composer; None where its lower border is missing. Without one it ends before a blank line."""
    if rule.end is None:
        row = first
        while not rule.at_cursor and row + 1 < len(screen.lines) and screen.lines[row + 1].strip():
            row += 1
        return row
    for row in range(first + 1, len(screen.lines)):
        if rule.end.search(screen.lines[row]):
            return row - 1
    return None


def _draft(screen: Screen, rule: ComposerRule, first: int, last: int) -> str:
    lines = []
    for row in range(first, last + 1):
        line = screen.lines[row]
        if any(hint.search(line) for hint in rule.hints):
            continue
        found = rule.start.search(line)
        lines.append((found.group(1) or "") if found and rule.start.groups else line)
    return "\n".join(line.strip() for line in lines).strip()


def _busy(screen: Screen, rules: ScreenRules, composer: Composer | None) -> bool:
    """What is typed in the composer says nothing about the program."""
    draft = range(composer.first, composer.last + 1) if composer is not None else range(0)
    lines = [line for row, line in enumerate(screen.lines) if row not in draft and line.strip()]
    return any(pattern.search(line) for line in lines[-rules.near :] for pattern in rules.busy)


def _dialog(rule: DialogRule, bottom: Sequence[str]) -> Dialog | None:
    if not all(any(pattern.search(line) for line in bottom) for pattern in rule.lines):
        return None
    text = "\n".join(line.strip(_FRAME) for line in bottom).strip()
    return Dialog(rule.name, rule.kind, text, _choices(rule, bottom), rule.free)


_FRAME = " │╭╮╰╯─┌┐└┘"


def _choices(rule: DialogRule, bottom: Sequence[str]) -> tuple[Choice, ...]:
    """The last list of choices: one that begins anew with the first key is another."""
    choices: list[Choice] = []
    if rule.choice is None:
        return rule.offers
    for line in bottom:
        if (found := rule.choice.search(line)) is None:
            continue
        choice = Choice((found.group(1) or "").strip(), (found.group(2) or "").strip(_FRAME))
        if choices and choice.key == choices[0].key:
            choices.clear()
        choices.append(choice)
    return tuple(choices)
