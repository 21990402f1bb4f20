"""Text for a program at its terminal: made harmless, cut into writes, and followed until it was seen to be taken.

Text is never a key and never a command: control characters go, pasted text is framed where the program asked for it.
It is written once. What follows is judged on the screen, in two phases: *staged*, our text stands in the composer; then
the submit key, alone; then *submitted*, the composer is empty or the program works. The submit key may be repeated, the
text never. A text that a program would take for a command is refused, unless a command is meant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import assert_never

from oah.core.dialogue.reading import Composer, Condition, Pattern, Reading
from oah.core.dialogue.screen import Screen, folded
from oah.core.model.delivery import Outcome

PASTE_BEGIN, PASTE_END = b"\x1b[200~", b"\x1b[201~"
LINE_BYTES = 4_095
"""Longest line that a terminal collects; the kernel drops the rest without a word."""

_TAB = "    "
"""A tab that is not in a paste is the key that completes words."""

_UNSEEN = " \t\n\v\f\u00a0\u1680\u2028\u2029\u202f\u205f\u2060\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x2010)))
"""What stands before a command without hiding it: blanks, and characters of no width."""

SAMPLE = 48
"""Folded characters of head and tail by which a staged text is found again."""

_LEAST = 8
"""Folded characters of an end that stand for the whole."""


def harmless(text: str) -> str:
    """The text without anything that a terminal or a program takes for a key: line ends are LF, tabs stay, every other
    control character goes, the C1 ones included."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(char for char in lines if char in "\n\t" or not _is_control(char))


def _is_control(char: str) -> bool:
    return char < " " or "\x7f" <= char <= "\x9f"


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionRules:
    """How a program takes text. `submit`: the key. `clear`: the key that empties a line of the composer.

    `commands`: first characters that make a text a command; `words`: what is one as a whole text (``exit``), and always
    refused. `guard`: what is put before a text of the first kind so that it is none (of programs where that was seen to
    help); without one it is refused. `multiline`: whether line ends may stand in a
    text that is not framed as a paste. `placeholders`: what a composer shows instead of a large paste, group 1 (if any)
    its lines or characters. `blind`: submit although the text was not seen in a composer (plain prompts), `glance`
    later. `window`: how long the text, and then its submission, is looked for. `patience`: how long a line that
    somebody else has begun may stand in the composer before a text is refused. `again`: how long after a submit key
    that changed nothing it is pressed again, `submits` times at most."""

    submit: bytes = b"\r"
    clear: bytes = b"\x15"
    commands: str = ""
    words: tuple[str, ...] = ()
    guard: str = ""
    multiline: bool = False
    placeholders: tuple[Pattern, ...] = ()
    blind: bool = False
    glance: timedelta = timedelta(seconds=1)
    pause: timedelta = timedelta(milliseconds=50)
    pause_per_kib: timedelta = timedelta(milliseconds=10)
    longest_pause: timedelta = timedelta(seconds=1)
    window: timedelta = timedelta(seconds=5)
    patience: timedelta = timedelta(seconds=10)
    again: timedelta = timedelta(seconds=1)
    submits: int = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write, and how long to wait at least before the submit key. `text`: as the program will show it."""

    text: str
    data: bytes
    pause: timedelta


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a text is not given; nothing was typed."""

    code: str
    reason: str


def plan(
    text: str,
    rules: InjectionRules,
    *,
    bracketed: bool,
    canonical: bool = False,
    command: bool = False,
    one_line: bool = False,
) -> Plan | Refusal:
    """What to write for a text. `bracketed`: the program asked for framed pastes. `canonical`: the terminal collects
    whole lines. `command`: the text may be one. `one_line`: where the program takes one line at a time, the text is one
    whose line end may be a blank."""
    clean = harmless(text).rstrip("\n")
    if not clean.strip():
        return Refusal("input_rejected", "the text is empty")
    if not command and " ".join(clean.split()).casefold() in rules.words:
        return _refused(f"the text {clean.strip()!r}")
    if not command and _is_command(clean, rules):
        if not rules.guard:
            return _refused(f"a text that begins with {clean.lstrip(_UNSEEN)[0]!r}")
        clean = rules.guard + clean.lstrip()
    if not bracketed:
        clean = _unframed(clean, rules, canonical=canonical, one_line=one_line)
        if not rules.multiline and "\n" in clean:
            return Refusal("input_rejected", "the program takes one line at a time, and the text has more")
    body = clean.encode("utf-8", "replace")
    longest = max(len(line) for line in body.split(b"\n"))
    if canonical and longest > LINE_BYTES:
        return Refusal("line_too_long", f"a line of {longest} bytes for a program that reads at most {LINE_BYTES}")
    framed = PASTE_BEGIN + body + PASTE_END if bracketed else body.replace(b"\n", b"\r")
    pause = min(rules.pause + rules.pause_per_kib * (len(body) / 1024), rules.longest_pause)
    return Plan(clean, framed, pause)


def _unframed(clean: str, rules: InjectionRules, *, canonical: bool, one_line: bool) -> str:
    """What is not in a paste is keys: a tab completes words, a line end may submit."""
    text = clean if canonical else clean.replace("\t", _TAB)
    return text.replace("\n", " ") if one_line and not rules.multiline else text


def _refused(what: str) -> Refusal:
    return Refusal("command_refused", f"{what} is a command of this agent; a run may say that it is meant as one")


def _is_command(clean: str, rules: InjectionRules) -> bool:
    """Programs look past blanks, and past characters that nobody sees."""
    return clean.lstrip(_UNSEEN)[:1] in tuple(rules.commands)


# --- what is seen of it ---


def is_staged(text: str, composer: Composer | None, rules: InjectionRules) -> bool:
    """Whether the composer holds this text: its head and its tail, or a placeholder of its size."""
    if composer is None or not composer.draft:
        return False
    if any(_stands_for(pattern, composer.draft, text) for pattern in rules.placeholders):
        return True
    return _holds(folded(composer.draft), folded(text))


def _stands_for(pattern: Pattern, draft: str, text: str) -> bool:
    found = pattern.search(draft)
    if found is None:
        return False
    if not pattern.groups or not (size := found.group(1)):
        return True
    lines = text.count("\n")
    return int(size) in (lines, lines + 1, len(text), len(text.encode()))


def _holds(seen: str, wanted: str) -> bool:
    """A long draft may be scrolled inside the composer: then its end is what shows. A text without a letter or digit
    is not looked for: the composer was empty before."""
    if not wanted:
        return True
    if wanted[-SAMPLE:] in seen and wanted[:SAMPLE] in seen:
        return True
    return len(seen) >= min(len(wanted), _LEAST) and wanted.endswith(seen)


def is_shown(text: str, screen: Screen, mark: int) -> bool:
    """Whether the text stands anywhere from this line on (programs without a known composer). `mark`: see
    `Screen.since`."""
    lines = "".join(screen.since(mark))
    seen, wanted = folded(lines), folded(text)
    if not wanted:
        return "".join(text.split()) in "".join(lines.split())
    return wanted[:SAMPLE] in seen and wanted[-SAMPLE:] in seen


# --- the delivery as a state machine ---


class Phase(StrEnum):
    """How far a delivery is."""

    STAGING = "staging"
    SUBMITTING = "submitting"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One text on its way. Moments are seconds of a monotonic clock; `at`: when the text was written, or the submit
    key was first pressed. `live`: the program was at work before, so that work proves nothing."""

    plan: Plan
    at: float
    live: bool = False
    phase: Phase = Phase.STAGING
    pressed: int = 0
    pressed_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """The screen as it is. `shown`: the text stands somewhere on it (`is_shown`; looked at for blind programs only).
    `moved`: something changed since the submit key."""

    reading: Reading
    shown: bool = False
    moved: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again when the screen changes, at the latest after a short while."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Press the submit key now."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The delivery is over; `reason` says why it is not confirmed."""

    outcome: Outcome
    reason: str = ""


Step = Wait | Submit | Ended


def step(delivery: Delivery, seen: Seen, *, now: float, rules: InjectionRules) -> tuple[Delivery, Step]:
    """What to do next."""
    match delivery.phase:
        case Phase.STAGING:
            return _staging(delivery, seen, now=now, rules=rules)
        case Phase.SUBMITTING:
            return _submitting(delivery, seen, now=now, rules=rules)
    assert_never(delivery.phase)


def _staging(delivery: Delivery, seen: Seen, *, now: float, rules: InjectionRules) -> tuple[Delivery, Step]:
    if seen.reading.condition in (Condition.ASKING, Condition.BLOCKED):
        return delivery, Ended(Outcome.FAILED, "a dialog came before the text was taken; it was not submitted")
    staged = is_staged(delivery.plan.text, seen.reading.composer, rules) or (rules.blind and seen.shown)
    waited = now - delivery.at
    if staged and waited >= delivery.plan.pause.total_seconds():
        return _press(delivery, now), Submit()
    if rules.blind and waited >= min(rules.glance, rules.window).total_seconds():
        return _press(delivery, now), Submit()
    if waited < rules.window.total_seconds():
        return delivery, Wait()
    return delivery, Ended(Outcome.FAILED, "the text did not appear in the composer; it was not submitted")


def _submitting(delivery: Delivery, seen: Seen, *, now: float, rules: InjectionRules) -> tuple[Delivery, Step]:
    staged = is_staged(delivery.plan.text, seen.reading.composer, rules)
    if not staged and _was_taken(delivery, seen, rules):
        return delivery, Ended(Outcome.CONFIRMED)
    if now - delivery.at >= rules.window.total_seconds():
        if staged:
            return delivery, Ended(Outcome.FAILED, "the text stands in the composer, the submit key is not taken")
        return delivery, Ended(Outcome.UNVERIFIED, "the text was given, but not seen to be taken")
    if staged and delivery.pressed < rules.submits and now - delivery.pressed_at >= rules.again.total_seconds():
        return replace(delivery, pressed=delivery.pressed + 1, pressed_at=now), Submit()
    return delivery, Wait()


def _was_taken(delivery: Delivery, seen: Seen, rules: InjectionRules) -> bool:
    condition, composer = seen.reading.condition, seen.reading.composer
    if rules.blind:
        return seen.shown and seen.moved
    if composer is not None and not composer.draft:
        return True
    return condition is Condition.ASKING or (condition is Condition.WORKING and not delivery.live)


def _press(delivery: Delivery, now: float) -> Delivery:
    return replace(delivery, phase=Phase.SUBMITTING, at=now, pressed=1, pressed_at=now)
