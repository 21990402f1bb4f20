"""A terminal's screen as a value: what a person would see now, and what has scrolled away above it."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Screen:
    """`lines` from the top, without trailing blanks; `row` and `column` of the cursor count from 0.

    `above`: lines that scrolled off the top of the main screen, the newest last, bounded. `scrolled`: how many did in
    all, so that a place can be named that a later screen still finds. `alternate`: the program draws on its other
    screen, where nothing scrolls away. `damaged`: something was skipped or could not be drawn since the last full
    repaint; judgements that need every line wait for the next one.
    """

    lines: tuple[str, ...]
    columns: int
    row: int = 0
    column: int = 0
    above: tuple[str, ...] = ()
    scrolled: int = 0
    alternate: bool = False
    bracketed_paste: bool = False
    damaged: bool = False

    @property
    def text(self) -> str:
        """The visible lines, without the blank ones at the end."""
        return "\n".join(self.lines).rstrip()

    @property
    def last(self) -> int:
        """Index of the last line that is not blank, -1 when all are."""
        return next((index for index in range(len(self.lines) - 1, -1, -1) if self.lines[index].strip()), -1)

    def since(self, mark: int) -> tuple[str, ...]:
        """The lines from `mark` on (counted from the first that ever was), as far as they are kept."""
        gone = min(max(self.scrolled - mark, 0), len(self.above))
        return (*self.above[len(self.above) - gone :], *self.lines[max(mark - self.scrolled, 0) :])


def folded(text: str) -> str:
    """Letters and digits only, without case and compatibility forms: what stays of a text however a program wraps,
    frames and colours it."""
    return "".join(char for char in unicodedata.normalize("NFKC", text).casefold() if char.isalnum())
