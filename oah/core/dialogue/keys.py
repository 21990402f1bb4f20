"""What to type for an answer to a question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oah.core.dialogue.injection import InjectionRules, harmless
from oah.core.model.question import Question


@dataclass(frozen=True, slots=True)
class Typing:
    """`text` first, then, after a pause, `key`; either may be empty."""

    text: bytes = b""
    key: bytes = b""


def typing(
    question: Question, answer: str, keys: Mapping[str, Mapping[str, str]], rules: InjectionRules
) -> Typing | None:
    """None: it is no answer. `keys`: dialog name → choice key → what to type; without an entry the choice's key. Free
    text is one line, harmless, and followed by the submit key."""
    choice = question.chosen(answer)
    if choice is not None:
        return Typing(key=keys.get(question.name, {}).get(choice.key, choice.key).encode())
    line = " ".join(harmless(answer).split())
    return Typing(line.encode("utf-8", "replace"), rules.submit) if question.free and line else None
