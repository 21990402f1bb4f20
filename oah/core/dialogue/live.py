"""A reply as it grows on a screen: the lines that stand, each shown once."""

from __future__ import annotations


class GrowingReply:
    """`look` with the reply as it stands now; what is new of it, as far as it will stay."""

    def __init__(self) -> None:
        self._last: list[str] = []
        self._shown: list[str] = []

    def look(self, reply: str) -> str:
        """New lines that stood already when it was last looked; the last line may still grow. A program that redraws
        what was shown adds nothing until the end."""
        lines = reply.split("\n") if reply else []
        last, self._last = self._last, lines
        stable = _common(lines, last)
        stable = min(stable, len(lines) - 1)
        return self._show(lines, stable)

    def end(self, reply: str) -> str:
        """The rest, with the reply as it ended; all of it when it is another than was shown."""
        lines = reply.split("\n") if reply else []
        if self._shown and _common(lines, self._shown) < len(self._shown):
            self._shown = []
            return "\n" + reply
        return self._show(lines, len(lines)).removesuffix("\n") if lines else ""

    def _show(self, lines: list[str], count: int) -> str:
        known = len(self._shown)
        if count <= known or lines[:known] != self._shown:
            return ""
        self._shown = lines[:count]
        return "".join(line + "\n" for line in lines[known:count])


def _common(lines: list[str], others: list[str]) -> int:
    """How many lines they begin with in common."""
    count = 0
    for line, other in zip(lines, others, strict=False):
        if line != other:
            break
        count += 1
    return count
