"""What a screen says about the program that drew it: ready, working, asking somebody, blocked, or not recognised.

Three rules keep it honest. What is *asked* counts only while the composer (the place where one types) is not there, and
only inside the dialog's own rows, so that a text which quotes a dialog is no dialog and no part of one. *Working*
counts only in the program's own rows around the composer, so that what it has said says nothing. And what fits no rule
is `unrecognised`, never ready: the caller lets that pass after a deadline, a blocked screen never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

from oah.core.dialogue import ticking
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
    """Lines that must all be in the dialog. `choice`: a line that offers one, group 1 its key, group 2 its words.
    `offers`: its choices where no line of their own says them. `free`: any text is an answer.

    `ticks`: lines that only count or move, besides those that any dialog may have (ticking.py): they are none of what
    is asked.

    Where it is: from the lowest `end` line (without one: from the bottom) up, over lines that are all `inside`, to a
    line that is `top`. Without `inside`: from the lowest lines that ask down. `at_cursor`: it is the cursor's line."""

    name: str
    kind: DialogKind
    lines: tuple[Pattern, ...]
    choice: Pattern | None = None
    offers: tuple[Choice, ...] = ()
    free: bool = False
    top: Pattern | None = None
    inside: Pattern | None = None
    end: Pattern | None = None
    at_cursor: bool = False
    ticks: tuple[Pattern, ...] = ()


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
    """What a profile knows of its program's screens. `near`: how many lines that are not blank count as the bottom.
    `busy_above`: a line that says that it works stands at most so many rows above the composer, or below it; None:
    anywhere near the bottom."""

    composer: ComposerRule
    busy: tuple[Pattern, ...] = ()
    dialogs: tuple[DialogRule, ...] = ()
    near: int = 24
    busy_above: int | None = None


@dataclass(frozen=True, slots=True)
class Composer:
    """The composer as it stands: rows `first` to `last`, and the draft in it."""

    first: int
    last: int
    draft: str


@dataclass(frozen=True, slots=True)
class Dialog:
    """A dialog on the screen, its lines and its choices. `whole`: all of its lines are there, and no others. `rows`:
    its lines as they stand, but for those that tick: what it is known by."""

    name: str
    kind: DialogKind
    text: str
    choices: tuple[Choice, ...]
    free: bool = False
    whole: bool = True
    rows: tuple[str, ...] = ()

    @property
    def shape(self) -> ticking.Shape:
        """What it asks, without what ticks."""
        return ticking.shape(self.rows or self.text.splitlines(), self.choices)

    @property
    def question(self) -> Question:
        """What somebody is asked."""
        return Question(
            name=self.name, kind=self.kind, text=self.text, choices=self.choices, free=self.free, whole=self.whole
        )


def unknown(screen: Screen) -> Question:
    """What somebody is asked about a screen that no rule recognises: to look at it, and to type."""
    return Question(name="unknown", kind=DialogKind.QUESTION, text=screen.text, free=True, whole=False)


@dataclass(frozen=True, slots=True)
class Reading:
    """The judgement about one screen."""

    condition: Condition
    composer: Composer | None = None
    dialog: Dialog | None = None


def read(screen: Screen, rules: ScreenRules) -> Reading:
    """Judge one screen."""
    composer = find_composer(screen, rules.composer)
    if composer is None:
        dialog = next((seen for rule in rules.dialogs if (seen := _dialog(rule, screen, rules.near)) is not None), None)
        if dialog is not None:
            return Reading(Condition.BLOCKED if dialog.kind.blocks else Condition.ASKING, None, dialog)
    if _busy(screen, rules, composer):
        return Reading(Condition.WORKING, composer)
    if composer is not None:
        return Reading(Condition.READY, composer)
    return Reading(Condition.UNRECOGNISED)


def stands(asked: Dialog | None, reading: Reading, *, passed: timedelta | None = None) -> bool:
    """Whether the screen still asks this; None: what no rule knew. A choice that is marked and not yet taken, a text
    that is being typed, or a clock that goes on changes nothing. `passed`: since it was seen asking this."""
    if asked is None:
        return reading.condition is Condition.UNRECOGNISED
    return reading.dialog is not None and asks_the_same(asked, reading.dialog, passed=passed)


def asks_the_same(asked: Dialog, now: Dialog, *, passed: timedelta | None = None) -> bool:
    """Whether an answer to the one, seen first, is one to the other, seen so much later."""
    if now.name != asked.name:
        return False
    is_open = asked.free and asked.kind is DialogKind.QUESTION
    if is_open and ticking.is_typed_into(asked.shape, now.shape, passed=passed):
        return True
    return ticking.is_same(asked.shape, now.shape, passed=passed)


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
    rows = [row for row, line in enumerate(screen.lines) if line.strip()]
    if composer is not None:
        rows = [row for row in rows if not composer.first <= row <= composer.last]
    near = rules.near
    if rules.busy_above is not None:
        near = rules.busy_above + _STATUS
        if composer is not None:
            rows = [row for row in rows if row >= composer.first - rules.busy_above]
            near = len(rows)
    return any(pattern.search(screen.lines[row]) for row in rows[max(len(rows) - near, 0) :] for pattern in rules.busy)


_STATUS = 3
"""Lines of its own that a program may have at the bottom while it shows no composer, besides those above that."""


# --- dialogs ---

_BELOW = 4
"""Lines that are not blank below the lower border of a dialog, at most."""


@dataclass(frozen=True, slots=True)
class _Region:
    """Rows of a dialog: from `first` up to the one before `end`. `whole`: see Dialog."""

    first: int
    end: int
    whole: bool = True


def _dialog(rule: DialogRule, screen: Screen, near: int) -> Dialog | None:
    region = _region(rule, screen, near)
    if region is None:
        return None
    lines = [line for line in screen.lines[region.first : region.end] if line.strip()]
    if not all(any(pattern.search(line) for line in lines) for pattern in rule.lines):
        return None
    text = "\n".join(line.strip(_FRAME) for line in lines).strip()
    still = [line for line in lines if not any(tick.search(line) for tick in rule.ticks)]
    asking = [any(pattern.search(line) for pattern in rule.lines) for line in still]
    rows = tuple(
        ticking.titled(line.rstrip(_FRAME)) if asks else line.rstrip(_FRAME)
        for line, asks in zip(still, asking, strict=True)
    )
    return Dialog(rule.name, rule.kind, text, _choices(rule, lines), rule.free, region.whole, rows)


def _region(rule: DialogRule, screen: Screen, near: int) -> _Region | None:
    if rule.at_cursor:
        return _Region(screen.row, screen.row + 1) if screen.last <= screen.row < len(screen.lines) else None
    if rule.inside is None:
        return _asked_from(rule, screen, near)
    bottom = screen.last if rule.end is None else _lowest(rule.end, screen, near=_BELOW + 1)
    return None if bottom is None else _framed(rule, rule.inside, screen.lines, bottom)


def _asked_from(rule: DialogRule, screen: Screen, near: int) -> _Region | None:
    """A dialog without a frame: what is above its highest line that asks may be anybody's."""
    found = [_lowest(pattern, screen, near=near) for pattern in rule.lines]
    rows = [row for row in found if row is not None]
    return _Region(min(rows), screen.last + 1) if rows and len(rows) == len(found) else None


def _framed(rule: DialogRule, inside: Pattern, lines: Sequence[str], bottom: int) -> _Region | None:
    """Where two lines could be its first, what is between them may be anybody's; where none is, a part of it may have
    scrolled away: then it is not whole."""
    first = bottom if rule.end is not None else bottom + 1
    while first and inside.search(lines[first - 1]):
        first -= 1
    if rule.top is None:
        return _Region(first, bottom + 1, whole=first > 0)
    if first and rule.top.search(lines[first - 1]):
        return _Region(first - 1, bottom + 1)
    tops = [row for row in range(first, bottom + 1) if rule.top.search(lines[row])]
    if tops:
        return _Region(tops[0], bottom + 1, whole=len(tops) == 1)
    return _Region(0, bottom + 1, whole=False) if first == 0 else None


def _lowest(pattern: Pattern, screen: Screen, *, near: int) -> int | None:
    """The lowest row that matches, among so many that are not blank."""
    rows = [row for row, line in enumerate(screen.lines) if line.strip()]
    return next((row for row in reversed(rows[-near:]) if pattern.search(screen.lines[row])), None)


_FRAME = " │╭╮╰╯─┌┐└┘"


def _choices(rule: DialogRule, lines: Sequence[str]) -> tuple[Choice, ...]:
    """The last list of choices: one that begins anew with the first key is another."""
    choices: list[Choice] = []
    if rule.choice is None:
        return rule.offers
    for line in lines:
        if (found := rule.choice.search(line)) is None:
            continue
        choice = Choice((found.group(1) or "").strip(), (found.group(2) or "").strip(_FRAME))
        if choices and choice.key == choices[0].key:
            choices.clear()
        choices.append(choice)
    return tuple(choices)
