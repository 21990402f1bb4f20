"""Whether two dialogs ask the same, though one of them has gone on counting.

A countdown ("Continuing in 9 s…") or a spinner inside a dialog is none of what it asks. All else is, to the last blank:
two commands that differ in a number, a slash or an indent are two questions, for an answer to the one must never reach
the other. So a number ticks only where it cannot be a part of what is to be allowed: in a line of its own that says how
long the dialog stays or has stayed, in brackets after a choice or after the question mark of the program's own line, or
as an item of its own below the choices. In doubt nothing ticks, and somebody is asked anew. A countdown that is longer
than it was began anew, and a clock that has moved further than time has passed is another one: those are other
questions, too.

Other forms are for profiles to name (`ticks` of a dialog's rule).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.question import Choice

_MASK = "\0"
"""In the place of what ticks; no screen shows it."""
_LONGEST = 200
"""Characters of a line in which something is looked for."""
_LAG = timedelta(seconds=3)
"""By so much a clock may have moved further than time has passed, and be over longer: it shows whole seconds, and a
machine that stalls shows it late."""

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
_ITEM = re.compile(rf"(?:(?<=[·•,(|])|^)(?P<blank>\s*)(?P<time>{_TIME})(?=\s*(?:[·•,)|]|\Z))")
_KNOWN = re.compile(rf"{_MASK}(?P<time>[^{_MASK}]+){_MASK}")
"""A clock that `titled` has found."""


@dataclass(frozen=True, slots=True)
class Clock:
    """What one shows, in seconds, and how many of them its next tick is. ``down``: it counts down; else nobody knows
    which way, or it begins anew with any key."""

    seconds: int
    tick: int
    down: bool

    def goes_on(self, now: Clock, passed: timedelta | None) -> bool:
        """Whether it may show ``now`` after so long a time; None: nobody knows how long."""
        if self.down and now.seconds > self.seconds:
            return False
        if passed is None or now == self:
            return True
        most = (passed + _LAG).total_seconds() + max(self.tick, now.tick) - 1
        is_over = self.down and (passed - _LAG).total_seconds() > self.seconds
        return abs(now.seconds - self.seconds) <= most and not is_over


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a dialog is asked. ``rows``: without what ticks; ``clocks``: its times, from the first to the last."""

    rows: tuple[str, ...]
    clocks: tuple[Clock, ...] = ()


def shape(rows: Sequence[str], choices: Sequence[Choice] = ()) -> Shape:
    """Of the rows of a dialog, of which the last list of choices is its own."""
    made: list[str] = []
    clocks: list[Clock] = []
    waited = list(choices)
    last = _last_choice(rows, choices)
    for at in reversed(range(len(rows))):
        row = rows[at].rstrip()
        choice = waited[-1] if waited and at <= last else None
        if choice is not None and _offers(row, choice):
            waited.pop()
            made.append(f"{choice.key}{_MASK}{_unbracketed(choice.words, clocks)}")
        else:
            made.append(_still(row, clocks, below=0 <= last < at))
    return Shape(tuple(reversed(made)), tuple(reversed(clocks)))


def titled(row: str) -> str:
    """A row by which the program asks, with a clock in brackets behind its question mark known as one."""
    found = _BRACKET.search(row) if len(row) <= _LONGEST else None
    if found is None or not _ASKED.search(row[: found.start()]):
        return row
    return f"{row[: found.start()]}({found['before'] or ''}{_MASK}{found['time']}{_MASK}{found['after']})"


def is_same(asked: Shape, now: Shape, *, passed: timedelta | None = None) -> bool:
    """Whether ``now``, seen so much later, still asks what ``asked`` did."""
    return asked.rows == now.rows and _go_on(asked, now, passed)


def is_typed_into(asked: Shape, now: Shape, *, passed: timedelta | None = None) -> bool:
    """The same, where a text is being typed in: one row may have grown or shrunk at its end, and rows may have been
    added; the first says what is asked, unless it is the only one."""
    if not _go_on(asked, now, passed):
        return False
    pairs = list(zip(asked.rows, now.rows, strict=False))
    changed = [at for at, (one, other) in enumerate(pairs) if one != other]
    if not changed or len(now.rows) < len(asked.rows):
        return len(now.rows) >= len(asked.rows) > 0
    one, other = pairs[changed[0]]
    is_first = changed[0] == 0 and len(now.rows) > 1
    return len(changed) == 1 and not is_first and (one.startswith(other) or other.startswith(one))


def _go_on(asked: Shape, now: Shape, passed: timedelta | None) -> bool:
    """The clocks that both have, from the first on: a text that looks like one may have been typed below them."""
    return all(was.goes_on(is_, passed) for was, is_ in zip(asked.clocks, now.clocks, strict=False))


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


def _still(row: str, clocks: list[Clock], *, below: bool) -> str:
    """The row without what ticks in it."""
    known = _KNOWN.search(row)
    if known is not None:
        clocks.append(_clock(known["time"]))
        return row[: known.start()] + _MASK + row[known.end() :]
    if not row.strip(_BARS + _SPINNERS + " \t"):
        return _MASK
    if len(row) > _LONGEST:
        return row
    whole = _whole(row, clocks)
    if whole is not None:
        return whole
    row = _unspun(row)
    found = _BRACKET.search(row)
    if found is not None and _WAITS.fullmatch(row, 0, found.start()):
        return row[: found.start()] + _bracket(found, clocks)
    if not below:
        return row
    clocks.extend(_clock(item["time"]) for item in reversed(list(_ITEM.finditer(row))))
    return _ITEM.sub(lambda item: item["blank"] + _MASK, row)


def _whole(row: str, clocks: list[Clock]) -> str | None:
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
        clocks.append(_clock(groups[name], down=name == "down"))
        begin, end = found.span(name)
        return text[:begin] + _MASK + text[end:].rstrip(_EDGES)
    return None


def _unspun(row: str) -> str:
    """A spinner before a text is none of it."""
    inner = row.lstrip(" │┃")
    if len(inner) > 1 and inner[0] in _SPINNERS and inner[1] == " ":
        return _MASK + inner[1:]
    return row


def _unbracketed(words: str, clocks: list[Clock]) -> str:
    found = _BRACKET.search(words)
    return words if found is None else words[: found.start()] + _bracket(found, clocks)


def _bracket(found: re.Match[str], clocks: list[Clock]) -> str:
    clocks.append(_clock(found["time"]))
    return f"({found['before'] or ''}{_MASK}{found['after']})"


def _clock(text: str, *, down: bool = False) -> Clock:
    """``1m 5s``, ``0:09``, ``9 seconds`` or a bare number."""
    if ":" in text:
        total = 0
        for part in text.split(":"):
            total = total * 60 + int(part)
        return Clock(total, 1, down)
    factors = {"s": 1, "m": 60, "h": 3600}
    parts = [(int(number), factors.get(unit, 1)) for number, unit in re.findall(r"(\d+) ?([smh]?)", text.lower())]
    return Clock(sum(number * factor for number, factor in parts), min(factor for _, factor in parts), down)
