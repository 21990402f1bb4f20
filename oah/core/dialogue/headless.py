"""What a program without a screen has said: JSON on its output, read by paths.

A *spot* is a path of keys, dotted, through objects and (transparently) lists; it may name conditions on the document
it stands in: ``item.text if item.type=agent_message``, ``result if is_error=true and result^=Error`` (``^=``: begins
with). Of a stream of documents the last one that has something at a spot says it, so that what an agent said while it
worked is not its reply.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_LOOSE = "{["
"""First characters of a document that stands among other lines."""


@dataclass(frozen=True, slots=True)
class Condition:
    """`path` is, or begins with, `value`."""

    path: tuple[str, ...]
    value: str
    prefix: bool = False

    def holds(self, document: Any) -> bool:
        """Whether some value there is so."""
        values = [_text(value) for value in _values(document, self.path)]
        return any(value.startswith(self.value) if self.prefix else value == self.value for value in values)


@dataclass(frozen=True, slots=True)
class Spot:
    """See the module."""

    path: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()

    def found(self, documents: Sequence[Any]) -> str | None:
        """The text at this spot; None where there is none."""
        for document in reversed(documents):
            if all(condition.holds(document) for condition in self.conditions):
                texts = [_text(value) for value in _values(document, self.path)]
                if any(texts):
                    return "\n".join(text for text in texts if text)
        return None


def spot(text: str) -> Spot | None:
    """From a profile's words; None for none. Raises ValueError."""
    if not text:
        return None
    path, _, rest = text.partition(" if ")
    return Spot(_path(path), tuple(_condition(part) for part in rest.split(" and ")) if rest else ())


def _condition(text: str) -> Condition:
    path, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"condition {text!r}: PATH=VALUE or PATH^=BEGINNING")
    prefix = path.endswith("^")
    return Condition(_path(path.rstrip("^")), value, prefix)


def _path(text: str) -> tuple[str, ...]:
    parts = tuple(text.strip().split("."))
    if not all(parts):
        raise ValueError(f"path {text!r}: keys with dots between them")
    return parts


def documents(text: str) -> tuple[Any, ...]:
    """All JSON documents of an output: the whole of it, or a line each, or one that begins at a line among others."""
    whole = _parsed(text)
    if whole is None:
        whole = _block(text)
    if whole is None:
        whole = [found for line in text.splitlines() if (found := _parsed(line)) is not None]
    return tuple(whole) if isinstance(whole, list) else (whole,)


def _block(text: str) -> Any:
    """A document of several lines after lines that are none."""
    lines = text.splitlines()
    openings = [at for at, line in enumerate(lines) if line.strip() in tuple(_LOOSE) and line[:1] != " "]
    return next((found for at in openings[:8] if (found := _parsed("\n".join(lines[at:]))) is not None), None)


def _parsed(text: str) -> Any:
    if text.lstrip()[:1] not in tuple(_LOOSE):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _values(value: Any, path: tuple[str, ...]) -> Iterator[Any]:
    if isinstance(value, list):
        for each in value:
            yield from _values(each, path)
    elif not path:
        yield value
    elif isinstance(value, dict) and path[0] in value:
        yield from _values(value[path[0]], path[1:])


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
