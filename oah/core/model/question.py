"""What a program asks of a person: a dialog on its screen, as data that can be stored, shown and answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class DialogKind(StrEnum):
    """What kind of answer a dialog wants."""

    PERMISSION = "permission"
    TRUST = "trust"
    QUESTION = "question"
    LOGIN = "login"
    UPDATE = "update"
    FATAL = "fatal"

    @property
    def blocks(self) -> bool:
        """Whether no answer of a user can help: the program is not set up, or cannot go on."""
        return self in (DialogKind.LOGIN, DialogKind.FATAL)


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer that a dialog offers: `key` names it, `words` say what it means."""

    key: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`name`: of the profile's rule, `unknown` when no rule knows the dialog. `text`: the screen's lines that ask.
    `free`: whether any text is an answer (then `choices` may be empty). `whole`: `text` is all that asks, and nothing
    else that the screen shows; what is stored does not say so."""

    name: str
    kind: DialogKind
    text: str
    choices: tuple[Choice, ...] = ()
    free: bool = False
    whole: bool = True

    def chosen(self, answer: str) -> Choice | None:
        """The choice that an answer means: by its key, else by its words, whatever the case; or the only one that
        begins with these words."""
        wanted = " ".join(answer.split()).casefold()
        for choice in self.choices:
            if wanted == choice.key.casefold():
                return choice
        said = [(choice, " ".join(choice.words.split()).casefold()) for choice in self.choices]
        for choice, words in said:
            if wanted and wanted == words:
                return choice
        begun = [choice for choice, words in said if wanted and words.startswith(wanted)]
        return begun[0] if len(begun) == 1 else None

    def takes(self, answer: str) -> bool:
        """Whether it is an answer at all."""
        return self.chosen(answer) is not None or (self.free and bool(answer.strip()))

    def document(self) -> dict[str, Any]:
        """As it is stored and shown: JSON."""
        choices = [{"key": each.key, "words": each.words} for each in self.choices]
        return {
            "name": self.name,
            "kind": self.kind.value,
            "text": self.text,
            "choices": choices,
            "free": self.free,
        }


def question_from(document: Mapping[str, Any]) -> Question:
    """What ``document`` wrote; what a later release adds is not looked at."""
    kind = document.get("kind")
    return Question(
        name=str(document.get("name") or "unknown"),
        kind=DialogKind(kind) if kind in set(DialogKind) else DialogKind.QUESTION,
        text=str(document.get("text") or ""),
        choices=tuple(Choice(str(each["key"]), str(each["words"])) for each in document.get("choices") or ()),
        free=bool(document.get("free")),
    )
