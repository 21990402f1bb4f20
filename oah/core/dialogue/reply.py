"""The reply of a program, read from its screens: what stands between our text and the composer.

A best effort by nature: a program wraps and frames what it says, and one that draws on its other screen scrolls it out
of reach. A program's own record, or its headless mode, says it exactly; profiles name those.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

from oah.core.dialogue.reading import ComposerRule, Pattern, find_composer
from oah.core.dialogue.screen import Screen, folded


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRules:
    """`echo`: a line of our own text as the program shows it, group 1 the text. `begin`: the first line of what the
    program says, group 1 its text. `noise`: lines that are none of it. `stop`: a line that ends it.
    `trim`: what is drawn beside its text (a scroll bar), group 1 the text."""

    echo: Pattern | None = None
    begin: Pattern | None = None
    noise: tuple[Pattern, ...] = ()
    stop: tuple[Pattern, ...] = ()
    trim: Pattern | None = None


def reply(screen: Screen, text: str, rules: ReplyRules, composer: ComposerRule, *, mark: int) -> str:
    """What the program said to `text`. `mark`: the line (counted from the first that ever was) from which on it was
    given; a program on its other screen counts anew with each repaint, so there it says nothing."""
    lines = _trimmed(screen.lines if screen.alternate else screen.since(mark), rules)
    found = find_composer(screen, composer)
    if found is not None:
        above = found.first - (1 if composer.above is not None else 0)
        lines = lines[: max(len(lines) - len(screen.lines) + above, 0)]
    said = _told(lines[_after(lines, text, rules, first=composer.at_cursor) :], rules)
    if not said and rules.begin is not None:  # it repaints all it ever said: the last of it is the reply
        visible = _trimmed(screen.lines[: found.first] if found is not None else screen.lines, rules)
        begins = [at for at, line in enumerate(visible) if rules.begin.search(line)]
        said = _told(visible[begins[-1] :], rules) if begins else []
        if not begins and _is_begun_elsewhere(screen, visible, rules, mark=mark):
            rest = lines[_after(lines, text, rules, first=False) :]  # its beginning has scrolled out of reach
            said = _told(rest, replace(rules, begin=None))
            return textwrap.dedent("\n".join(said)).strip("\n")
    return _dedented(said, rules).strip("\n")


CUT = "[... the beginning has scrolled off the program's screen; the recording has it ...]"
"""Before a reply of which only the end could be read."""
_TAIL = 8
"""Folded characters at the end of our text by which it is known to stand there."""


def is_cut(screen: Screen, text: str, rules: ReplyRules, composer: ComposerRule, *, mark: int) -> bool:
    """Whether the beginning of a reply is out of reach: on a program's other screen nothing that scrolls away is kept,
    so the reply is whole only where what stands before it still shows."""
    if not screen.alternate:
        return _is_forgotten(screen, mark=mark)
    found = find_composer(screen, composer)
    visible = _trimmed(screen.lines[: found.first] if found is not None else screen.lines, rules)
    after = _after(visible, text, rules, first=False)
    if after and rules.begin is not None and any(_begins_next(visible[after:], rules.begin)):
        return False
    if rules.echo is not None:
        return _is_scrolled(visible, rules)
    return after == 0 and not _ends_with(folded(text), visible)


def _is_forgotten(screen: Screen, *, mark: int) -> bool:
    """Whether lines since the mark are kept no more."""
    return screen.scrolled - mark > len(screen.above)


def _is_begun_elsewhere(screen: Screen, visible: Sequence[str], rules: ReplyRules, *, mark: int) -> bool:
    if not screen.alternate:
        return _is_forgotten(screen, mark=mark)
    return rules.echo is not None and _is_scrolled(visible, rules)


def _begins_next(lines: Sequence[str], begin: Pattern) -> list[bool]:
    """Whether the first of them that is not blank is the first of what the program says."""
    return [begin.search(line) is not None for line in lines if line.strip()][:1]


def _ends_with(wanted: str, lines: Sequence[str]) -> bool:
    """Whether the end of our text is among them: its beginning may have scrolled away before the reply began."""
    seen = [folded(line) for line in lines]
    return any(len(line) >= min(_TAIL, len(wanted)) and wanted.endswith(line) for line in seen if line)


def _trimmed(lines: Sequence[str], rules: ReplyRules) -> list[str]:
    if rules.trim is None:
        return list(lines)
    found = [(line, rules.trim.search(line)) for line in lines]
    return [line if match is None else match.group(1) or "" for line, match in found]


def _dedented(said: Sequence[str], rules: ReplyRules) -> str:
    """Without the indent that all lines have; what follows a first line that was cut free of its mark has its own."""
    if rules.begin is None or not said:
        return textwrap.dedent("\n".join(said))
    rest = textwrap.dedent("\n".join(said[1:]))
    return "\n".join((said[0], rest)) if len(said) > 1 else said[0]


def _after(lines: Sequence[str], text: str, rules: ReplyRules, *, first: bool) -> int:
    """The line after the lowest echo of our text (`first`: the highest, of programs that may say the same); 0 where
    there is none (shown shortened, or gone)."""
    wanted = folded(text)
    for at in range(len(lines)) if first else reversed(range(len(lines))):
        end = _covers(lines, at, wanted, rules)
        if end is not None:
            return end
    return 0


def _covers(lines: Sequence[str], at: int, wanted: str, rules: ReplyRules) -> int | None:
    """Where our text ends if it begins in this line, however it was wrapped."""
    left = wanted
    for row in range(at, len(lines)):
        seen = folded(_echoed(lines[row], rules))
        if not seen:
            if row == at:
                return None
            continue
        if not left.startswith(seen):
            return None
        left = left[len(seen) :]
        if not left:
            return row + 1
    return None


def _echoed(line: str, rules: ReplyRules) -> str:
    found = rules.echo.search(line) if rules.echo is not None else None
    return line if found is None else found.group(1) or ""


def _is_scrolled(lines: Sequence[str], rules: ReplyRules) -> bool:
    """Whether our text has scrolled away, or stays on top while what follows it scrolls."""
    shown = [line for line in lines if line.strip()]
    return rules.echo is not None and not any(rules.echo.search(line) for line in shown[1:])


def _told(lines: Sequence[str], rules: ReplyRules) -> list[str]:
    said: list[str] = []
    begun = rules.begin is None
    for line in lines:
        found = rules.begin.search(line) if rules.begin is not None else None
        if found is not None and rules.begin is not None:
            begun = True
            said.append((found.group(1) or "") if rules.begin.groups else line)
        elif any(pattern.search(line) for pattern in rules.stop):
            break
        elif begun and not any(pattern.search(line) for pattern in rules.noise):
            said.append(line)
    return said
