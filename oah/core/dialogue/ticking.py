"""Whether two dialogs ask the same, though one of them has gone on counting.

A countdown ("Continuing in 9 s…") or a spinner inside a dialog is none of what it asks. All else is, to the last blank:
two commands that differ in a number, a slash or an indent are two questions, for an answer to the one must never reach
the other. So a number ticks only where it cannot be a part of what is to be allowed: in a line of its own that says how
long the dialog stays or has stayed, in brackets after a choice or after the question mark of the program's own line, or
as an item of its own below the choices. In doubt nothing ticks, and somebody is asked anew. A countdown that is longer
than it was began anew: that is another question, too.

Other forms are for profiles to name (`ticks` of a dialog's rule).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from oah.core.model.question import Choice

_MASK = "\0"
"""In the place of what ticks; no screen shows it."""
_LONGEST = 200
"""Characters of a line in which something is looked for."""

_SPINNERS = "".join(map(chr, range(0x2800, 0x2900))) + "✻✽✶✢✳✺✹✸✷∗◐◓◑◒◴◷◶◵◰◳◲◱▖▘▝▗⏳⌛"
_BARS = "─━═╌╍┄┅┈┉│┃║╭╮╰╯┌┐└┘├┤" + "".join(map(chr, range(0x2580, 0x25A0))) + "■□⬝▪▫"
_UNIT = "(?:s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?)"
_TIME = rf"(?:\d{{1,4}} ?{_UNIT}(?: ?\d{{1,2}} ?{_UNIT})*|\d{{1,2}}(?::\d\d){{1,2}})(?![\w:])"
_SECONDS = r"(?:(?:\d{1,2} ?m(?:in(?:ute)?s?)? ?)?\d{1,4} ?s(?:ec(?:ond)?s?)?|\d{1,2}(?::\d\d){1,2})(?![\w:])"
"""Who counts down shows seconds: a link that "expires in 2 hours" is what is asked about."""
_WORDS = r"[A-Za-z][A-Za-z'’ ,-]*"
_REST = r"(?P<rest>[A-Za-z'’ ,.…·—-]*)"
_FATE = re.compile(
    r"(?i)(?:\A| )(?:auto(?:matically)?\b.*|tim(?:es|ing) out|will \w+.*"
    r"|(?:contin|proceed|accept|approv|allow|confirm|declin|deny|reject|cancel|dismiss|clos|skip|default|select|choos|expir"
    r"|resum)\w*(?:ing|s)\b.*)\Z"
)
"""What a program says that it is about to do; an order ("Cancel the meeting in 9 s") is none of that."""
_WHOLE = [
    # as in: Continuing in 9 s…, Closes automatically in 5
    re.compile(rf"(?i)(?P<fate>{_WORDS}) in (?P<down>{_SECONDS}|\d{{1,4}}(?=\W*\Z)){_REST}"),
    # as in: 9 s left, Time remaining 0:09
    re.compile(rf"(?i)(?P<down>{_SECONDS}) (?:left|remaining|to go){_REST}"),
    re.compile(rf"(?i)(?:time (?:left|remaining)|countdown):? (?P<down>{_SECONDS})"),
    # as in: Waiting for you… 12s, 12 s elapsed
    re.compile(rf"(?i)(?:waiting|waited|pending|elapsed)(?: [A-Za-z'’ ,-]*)?[….:]* ?(?P<up>{_TIME})"),
    re.compile(rf"(?i)(?P<up>{_TIME}) elapsed"),
]
"""Lines that are nothing but a clock, once decoration is stripped."""
_EDGES = _SPINNERS + " \t│┃|/\\-()[]….·"

_BRACKET = re.compile(
    rf"[(\[](?P<before>(?:{_WORDS}|[A-Za-z ]*[:·,…]) ?)?(?P<time>{_TIME})(?P<after>[A-Za-z'’ ,.…·-]*)[)\]]:?\s*\Z"
)
_WAITS = re.compile(rf"{_MASK}[A-Za-z'’ ,.…-]*")
_ASKED = re.compile(r"\?\s*(?:[(\[][A-Za-z/]{1,9}[)\]]\s*)?\Z")
_ITEM = re.compile(rf"(?:(?<=[·•,(|])|^)(?P<blank>\s*){_TIME}(?=\s*(?:[·•,)|]|\Z))")


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a dialog is asked. ``rows``: without what ticks; ``left``: seconds of its countdowns."""

    rows: tuple[str, ...]
    left: tuple[int, ...] = ()


def shape(rows: Sequence[str], choices: Sequence[Choice] = ()) -> Shape:
    """Of the rows of a dialog, of which the last list of choices is its own."""
    made: list[str] = []
    left: list[int] = []
    waited = list(choices)
    last = _last_choice(rows, choices)
    for at in reversed(range(len(rows))):
        row = rows[at].rstrip()
        choice = waited[-1] if waited and at <= last else None
        if choice is not None and _offers(row, choice):
            waited.pop()
            made.append(f"{choice.key}{_MASK}{_unbracketed(choice.words)}")
        else:
            made.append(_still(row, left, below=0 <= last < at))
    return Shape(tuple(reversed(made)), tuple(reversed(left)))


def titled(row: str) -> str:
    """A row by which the program asks, without a clock in brackets behind its question mark."""
    found = _BRACKET.search(row) if len(row) <= _LONGEST else None
    if found is None or not _ASKED.search(row[: found.start()]):
        return row
    return row[: found.start()] + _bracket(found)


def is_same(asked: Shape, now: Shape) -> bool:
    """Whether ``now`` still asks what ``asked`` did."""
    return asked.rows == now.rows and all(less <= more for more, less in zip(asked.left, now.left, strict=True))


def is_typed_into(asked: Shape, now: Shape) -> bool:
    """The same, where a text is being typed in: one row may have grown or shrunk at its end, and rows may have been
    added; the first says what is asked, unless it is the only one."""
    pairs = list(zip(asked.rows, now.rows, strict=False))
    changed = [at for at, (one, other) in enumerate(pairs) if one != other]
    if not changed or len(now.rows) < len(asked.rows):
        return len(now.rows) >= len(asked.rows) > 0
    one, other = pairs[changed[0]]
    is_first = changed[0] == 0 and len(now.rows) > 1
    return len(changed) == 1 and not is_first and (one.startswith(other) or other.startswith(one))


def _last_choice(rows: Sequence[str], choices: Sequence[Choice]) -> int:
    """The lowest row that offers the last of them; -1: none does."""
    if not choices:
        return -1
    return next((at for at in reversed(range(len(rows))) if _offers(rows[at].rstrip(), choices[-1])), -1)


def _offers(row: str, choice: Choice) -> bool:
    """Whether it is nothing but this choice, marked or not."""
    text = row.rstrip(_BARS + " ")
    if not choice.words or not text.endswith(choice.words):
        return False
    return "".join(filter(str.isalnum, text.removesuffix(choice.words))) == choice.key


def _still(row: str, left: list[int], *, below: bool) -> str:
    """The row without what ticks in it."""
    if not row.strip(_BARS + _SPINNERS + " \t"):
        return _MASK
    if len(row) > _LONGEST:
        return row
    whole = _whole(row, left)
    if whole is not None:
        return whole
    row = _unspun(row)
    found = _BRACKET.search(row)
    if found is not None and _WAITS.fullmatch(row, 0, found.start()):
        return row[: found.start()] + _bracket(found)
    return _ITEM.sub(lambda item: item["blank"] + _MASK, row) if below else row


def _whole(row: str, left: list[int]) -> str | None:
    """A row that is a clock and nothing else."""
    text = row.strip(_EDGES)
    for pattern in _WHOLE:
        found = pattern.fullmatch(text)
        if found is None:
            continue
        groups = found.groupdict()
        if "fate" in groups and not _FATE.search(groups["fate"]):
            continue
        name = "down" if "down" in groups else "up"
        if name == "down":
            left.append(_seconds(groups["down"]))
        begin, end = found.span(name)
        return text[:begin] + _MASK + text[end:].rstrip(_EDGES)
    return None


def _unspun(row: str) -> str:
    """A spinner before a text is none of it."""
    inner = row.lstrip(" │┃")
    if len(inner) > 1 and inner[0] in _SPINNERS and inner[1] == " ":
        return _MASK + inner[1:]
    return row


def _unbracketed(words: str) -> str:
    found = _BRACKET.search(words)
    return words if found is None else words[: found.start()] + _bracket(found)


def _bracket(found: re.Match[str]) -> str:
    return f"({found['before'] or ''}{_MASK}{found['after']})"


def _seconds(text: str) -> int:
    """``1m 5s``, ``0:09``, ``9 seconds`` or a bare number."""
    if ":" in text:
        total = 0
        for part in text.split(":"):
            total = total * 60 + int(part)
        return total
    factors = {"s": 1, "m": 60, "h": 3600}
    parts = re.findall(r"(\d+) ?([smh]?)", text.lower())
    return sum(int(number) * factors.get(unit, 1) for number, unit in parts)
