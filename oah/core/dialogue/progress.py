"""Is what a terminal says progress, or only something that moves? A spinner that redraws its line says nothing new.

Plain text that is appended is progress. Text that is drawn over (after a carriage return, a backspace, a move of the
cursor or on a full screen) is progress only when it has not been seen lately: its words count, and numbers that are
percentages; decorations, counters and elapsed seconds do not.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence

REMEMBERED = 512
"""Shapes of drawn lines that are known: more than the words a spinner chooses from."""
_LINE = 400
"""Characters of a drawn line that are compared."""

_TOKENS = re.compile(
    "(?P<plain>\r?\n)"
    "|(?P<back>[\r\x08])"
    "|\x1b\\[(?P<args>[0-?]*)[ -/]*(?P<final>[@-~])"
    "|(?P<other>\x1b[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)|\x1b[ -/]*[0-~]|\x1b)"
)
_UNFINISHED = re.compile("(?:\r|\x1b(?:\\[[0-?]*[ -/]*|[\\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?)\\Z")
_HELD = 4096
_WORDS = re.compile(r"[^\W\d_]+|\d+(?=\s*%)")


def shape(line: str) -> str:
    """What of a drawn line counts: its words and percentages. Empty: nothing but decoration."""
    return " ".join(_WORDS.findall(line[:_LINE]))


class ScreenProgress:
    """Follows the looks at a full screen: lines that scroll away, a reply that changes and words that were not seen
    lately are progress; what only moves is none."""

    def __init__(self) -> None:
        self._scrolled = 0
        self._said = ""
        self._seen = _Shapes()

    def look(self, lines: Sequence[str], *, scrolled: int, said: str) -> bool:
        """Whether there is progress since the last look. `said`: the reply as it stands."""
        new = scrolled > self._scrolled or said != self._said
        self._scrolled, self._said = scrolled, said
        for line in lines:
            new = self._seen.add(shape(line)) or new
        return new


class _Shapes:
    """What was seen lately, bounded."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, None] = OrderedDict()

    def add(self, known: str) -> bool:
        """Whether it is new; an empty one never is."""
        if not known:
            return False
        new = known not in self._seen
        self._seen[known] = None
        self._seen.move_to_end(known)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return new


class Progress:
    """Follows the decoded output of one turn."""

    def __init__(self) -> None:
        self._held = ""
        self._line = ""
        self._above = 0
        """How many lines the cursor is above the lowest one: they are drawn over."""
        self._drawing = False
        """The current line was begun again."""
        self._screen = False
        """A full-screen program: everything is drawn."""
        self._seen = _Shapes()

    def feed(self, text: str) -> bool:
        """The next piece; whether there is progress in it."""
        text = self._held + text
        unfinished = _UNFINISHED.search(text, max(0, len(text) - _HELD))
        cut = len(text) if unfinished is None else unfinished.start()
        if len(text) - cut > _HELD:
            cut = len(text)
        self._held = text[cut:]
        new, at = False, 0
        for token in _TOKENS.finditer(text, 0, cut):
            new = self._write(text[at : token.start()]) or new
            new = self._take(token) or new
            at = token.end()
        return self._write(text[at:cut]) or new

    def _write(self, text: str) -> bool:
        """Text at the cursor. Drawn text is judged when its line is over."""
        if self._drawn:
            self._line = (self._line + text)[:_LINE]
            return False
        return bool(text.strip())

    @property
    def _drawn(self) -> bool:
        return self._screen or self._drawing or self._above > 0

    def _take(self, token: re.Match[str]) -> bool:
        if token["plain"] is not None:
            new = self._judge()
            self._drawing, self._above = False, max(0, self._above - 1)
            return new
        if token["back"] is not None:
            new = self._judge()
            self._drawing = True
            return new
        if token["final"] is not None:
            return self._control(token["args"], token["final"])
        return False

    def _control(self, args: str, final: str) -> bool:
        match final:
            case "A" | "F":
                new = self._judge()
                self._above += int(args) if args.isdigit() else 1
            case "H" | "f" | "d" | "r":
                new = self._judge()
                self._screen = True
            case "J" if args in ("2", "3"):  # a cleared screen is a new page
                new = self._judge()
                self._screen, self._above = False, 0
            case "h" | "l" if args in ("?1049", "?1047", "?47"):
                new = self._judge()
                self._screen = final == "h"
            case "B" | "E":
                new = self._judge()
                self._above = max(0, self._above - (int(args) if args.isdigit() else 1))
            case "G" | "K" | "D" | "J" | "C" | "X" | "P":
                new = self._judge()
                self._drawing = self._drawing or final in "GD"
            case _:
                return False
        return new

    def _judge(self) -> bool:
        """The drawn line is over: has it been seen lately?"""
        line, self._line = self._line, ""
        return self._seen.add(shape(line))
