"""Text for a program at its terminal: made harmless, cut into writes, and followed until it was seen to be taken.

Text is never a key and never a command: control characters go, pasted text is framed where the program asked for it.
It is written once. What follows is judged on the screen, in two phases: *staged*, our text stands in the composer; then
the submit key, alone; then *submitted*, the composer is empty or the program works. The submit key may be repeated, the
text never.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import assert_never

from oah.core.dialogue.reading import Composer, Condition, Pattern, Reading
from oah.core.dialogue.screen import Screen, folded
from oah.core.policy.throttle import Outcome

PASTE_BEGIN, PASTE_END = b"\x1b[200~", b"\x1b[201~"
PIECE = 1_024
"""Bytes of one write: less than any kernel's input queue."""

SAMPLE = 48
"""Folded characters of head and tail by which a staged text is found again."""


def harmless(text: str) -> str:
    """The text without anything that a terminal or a program takes for a key: line ends are LF, tabs stay, every other
    control character goes, the C1 ones included."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(char for char in lines if char in "\n\t" or not _is_control(char))


def _is_control(char: str) -> bool:
    return char < " " or "\x7f" <= char <= "\x9f"


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionRules:
    """How a program takes text. `submit`: the key. `commands`: first characters that make a line a command; such a
    text gets a blank before it. `multiline`: whether line ends may stand in a text that is not framed as a paste.
    `placeholders`: what a composer shows instead of a large paste, group 1 (if any) its lines or characters.
    `blind`: submit although the text was not seen (programs without a composer that is known)."""

    submit: bytes = b"\r"
    commands: str = ""
    multiline: bool = False
    placeholders: tuple[Pattern, ...] = ()
    blind: bool = False
    pause: timedelta = timedelta(milliseconds=50)
    pause_per_kib: timedelta = timedelta(milliseconds=10)
    longest_pause: timedelta = timedelta(seconds=1)
    window: timedelta = timedelta(seconds=5)
    again: timedelta = timedelta(seconds=1)
    submits: int = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write, in this order, and how long to wait at least before the submit key."""

    text: str
    writes: tuple[bytes, ...]
    pause: timedelta


def plan(text: str, rules: InjectionRules, *, bracketed: bool, command: bool = False) -> Plan | str:
    """The writes for a text, or the reason why this program cannot be given it. `command`: it may be one."""
    clean = harmless(text)
    if clean[:1] in tuple(rules.commands) and clean and not command:
        clean = " " + clean
    if not clean.strip():
        return "the text is empty"
    if not bracketed and not rules.multiline and "\n" in clean.rstrip("\n"):
        return "the program takes one line at a time, and the text has more"
    clean = clean if bracketed else clean.rstrip("\n")
    body = clean.encode()
    framed = PASTE_BEGIN + body + PASTE_END if bracketed else body.replace(b"\n", b"\r")
    pause = min(rules.pause + rules.pause_per_kib * (len(body) / 1024), rules.longest_pause)
    return Plan(clean, tuple(framed[at : at + PIECE] for at in range(0, len(framed), PIECE)), pause)


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
    """A long draft may be scrolled inside the composer: then its end is what shows."""
    if not wanted:
        return bool(seen)
    return wanted[-SAMPLE:] in seen and (wanted[:SAMPLE] in seen or seen in wanted)


def is_shown(text: str, screen: Screen, scrolled: int) -> bool:
    """Whether the text stands anywhere on the screen or above it since then (programs without a known composer)."""
    seen = folded("".join(screen.since(scrolled)))
    wanted = folded(text)
    return bool(wanted) and wanted[:SAMPLE] in seen and wanted[-SAMPLE:] in seen


# --- the delivery as a state machine ---


class Phase(StrEnum):
    """How far a delivery is."""

    STAGING = "staging"
    SUBMITTING = "submitting"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One text on its way. Moments are seconds of a monotonic clock; `at`: when the text was written, or the submit
    key was first pressed."""

    plan: Plan
    at: float
    phase: Phase = Phase.STAGING
    pressed: int = 0
    pressed_at: float = 0.0


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


def step(
    delivery: Delivery, reading: Reading, *, shown: bool, now: float, rules: InjectionRules
) -> tuple[Delivery, Step]:
    """What to do next, given the screen as it is. `shown`: see `is_shown`."""
    match delivery.phase:
        case Phase.STAGING:
            return _staging(delivery, reading, shown=shown, now=now, rules=rules)
        case Phase.SUBMITTING:
            return _submitting(delivery, reading, shown=shown, now=now, rules=rules)
    assert_never(delivery.phase)


def _staging(
    delivery: Delivery, reading: Reading, *, shown: bool, now: float, rules: InjectionRules
) -> tuple[Delivery, Step]:
    if reading.condition in (Condition.ASKING, Condition.BLOCKED):
        return delivery, Ended(Outcome.FAILED, "a dialog came before the text was taken")
    staged = is_staged(delivery.plan.text, reading.composer, rules) or (rules.blind and shown)
    waited = now - delivery.at
    if staged and waited >= delivery.plan.pause.total_seconds():
        return _press(delivery, now), Submit()
    if waited < rules.window.total_seconds():
        return delivery, Wait()
    if rules.blind:
        return _press(delivery, now), Submit()
    return delivery, Ended(Outcome.FAILED, "the text did not appear in the composer; it was not submitted")


def _submitting(
    delivery: Delivery, reading: Reading, *, shown: bool, now: float, rules: InjectionRules
) -> tuple[Delivery, Step]:
    staged = is_staged(delivery.plan.text, reading.composer, rules)
    if reading.condition is Condition.WORKING or reading.condition is Condition.ASKING:
        return delivery, Ended(Outcome.CONFIRMED)
    if rules.blind and shown:
        return delivery, Ended(Outcome.CONFIRMED)
    if reading.composer is not None and not reading.composer.draft:
        return delivery, Ended(Outcome.CONFIRMED)
    if now - delivery.at >= rules.window.total_seconds():
        return delivery, Ended(Outcome.UNVERIFIED, "the text was given, but not seen to be taken")
    if staged and delivery.pressed < rules.submits and now - delivery.pressed_at >= rules.again.total_seconds():
        return replace(delivery, pressed=delivery.pressed + 1, pressed_at=now), Submit()
    return delivery, Wait()


def _press(delivery: Delivery, now: float) -> Delivery:
    return replace(delivery, phase=Phase.SUBMITTING, at=now, pressed=1, pressed_at=now)
