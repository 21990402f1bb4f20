"""Screens drawn by hand, for judgements about them."""

from __future__ import annotations

import re
from typing import cast

from oah.core.dialogue.reading import ComposerRule, DialogRule, Pattern, ScreenRules
from oah.core.dialogue.screen import Screen
from oah.core.model.question import DialogKind


def pattern(text: str) -> Pattern:
    return cast(Pattern, re.compile(text))


RULE = "─" * 30
COMPOSER = ComposerRule(start=pattern(r"^> ?(.*)$"), above=pattern(r"^─{20,}"), end=pattern(r"^─{20,}"))
PROMPT = ComposerRule(start=pattern(r"^\$ ?(.*)$"), at_cursor=True, footer=0)
RULES = ScreenRules(
    composer=COMPOSER,
    busy=(pattern("esc to interrupt"),),
    dialogs=(
        DialogRule(
            name="permission",
            kind=DialogKind.PERMISSION,
            lines=(pattern("Do you want to proceed"),),
            choice=pattern(r"^\W*(\d)\. (.*)$"),
        ),
        DialogRule(name="login", kind=DialogKind.LOGIN, lines=(pattern("Select login method"),)),
    ),
)


def screen(text: str, *, rows: int = 20, row: int | None = None, **more: object) -> Screen:
    """From its lines; the cursor is in the last one."""
    lines = text.split("\n")
    values: dict[str, object] = {"row": len(lines) - 1 if row is None else row, "columns": 80, **more}
    return Screen(lines=(*lines, *[""] * (rows - len(lines))), **values)  # type: ignore[arg-type]


def composed(draft: str = "", *, above: str = "", below: str = "? for help") -> Screen:
    """A framed composer under some text."""
    return screen("\n".join([*([above] if above else []), RULE, *f"> {draft}".split("\n"), RULE, below]))


ASKS = """│ Do you want to proceed? │
│ ❯ 1. Yes                │
│   2. No, and say why    │"""
