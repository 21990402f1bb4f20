"""Between the port's values and the words of the scripts. Times become remaining milliseconds here, and only here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TypeVar

from oah.core.model.group import Group, GroupKind
from oah.core.model.ids import WorkerId
from oah.core.model.session import Place
from oah.ports.broker import Freed, Placed

T = TypeVar("T")

CHUNK = 256
"""Items per call of a script: a call holds the server for a few milliseconds at most."""


def as_ms(duration: timedelta) -> int:
    """Whole milliseconds, rounded."""
    return round(duration / timedelta(milliseconds=1))


def maybe_ms(duration: timedelta | None) -> int | None:
    """The same for an optional one."""
    return None if duration is None else as_ms(duration)


def from_ms(text: str) -> timedelta:
    """A duration out of an answer."""
    return timedelta(milliseconds=float(text))


def maybe_from_ms(text: str) -> timedelta | None:
    """``-1`` and nothing mean none."""
    return None if text in ("-1", "") else from_ms(text)


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """In pieces of CHUNK."""
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]


def rows(words: Sequence[str], width: int) -> Iterator[tuple[str, ...]]:
    """A flat answer as rows."""
    return zip(*(iter(words),) * width, strict=True)


def placed(words: Sequence[str]) -> list[Placed]:
    """(state, owner) rows."""
    return [Placed(Place(state), WorkerId(owner) if owner else None) for state, owner in rows(words, 2)]


def freed(words: Sequence[str]) -> list[Freed]:
    """(state or 'other', owner) rows."""
    return [
        Freed(None if state == "other" else Place(state), WorkerId(owner) if owner else None)
        for state, owner in rows(words, 2)
    ]


def group_word(group: Group) -> str:
    """A group as scripts name it."""
    kind = "ws" if group.kind is GroupKind.WORKSPACE else group.kind.value
    return f"{kind}:{group.name}" if group.name else kind
