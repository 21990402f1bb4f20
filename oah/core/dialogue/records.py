"""The record that an agent program keeps of a conversation, judged before the program is asked to go on with it.

A record is a file of JSON documents, one a line, that only grows. A program that was killed leaves two kinds of damage:
a last line that is not whole, and a call of a tool that nobody answered, which makes the model's API refuse every later
request. Both are at the end: cutting back to before them is a repair. Anything else that is wrong is no work for us.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_STEP = re.compile(r"(\w+)(?:\[(\w+)=([\w.-]+)\])?\Z")


@dataclass(frozen=True, slots=True)
class Step:
    """One key of a path; of a list, every entry. ``field``: only entries whose field has this value."""

    key: str
    field: str = ""
    value: str = ""


Path = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class RecordRules:
    """Where in a line the ids of calls and of their answers are. ``cut``: whether a call without an answer may be cut
    off with all that follows; else such a record is of no use."""

    calls: tuple[Path, ...] = ()
    answers: tuple[Path, ...] = ()
    cut: bool = False


class State(StrEnum):
    """What a record is good for."""

    SOUND = "sound"
    CUT = "cut"
    """Sound when it is as long as the judgement says (and ends in a newline)."""
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Judgement:
    """``keep``: how many bytes of what was judged are sound. ``newline``: one is missing after them."""

    state: State
    keep: int
    why: str = ""
    newline: bool = False


def path_of(text: str) -> Path | None:
    """``a.b[type=call].id``; None where it is no path."""
    steps = []
    for part in text.split("."):
        found = _STEP.match(part)
        if found is None:
            return None
        steps.append(Step(found[1], found[2] or "", found[3] or ""))
    return tuple(steps)


def judge(data: bytes, rules: RecordRules, *, partial: bool = False) -> Judgement:
    """The record, or its end: with ``partial`` the first line may be the rest of one."""
    lines = _lines(data)
    if partial and lines:
        lines.pop(0)
    documents: list[tuple[int, Any]] = []
    for index, (begin, line) in enumerate(lines):
        if not line.strip():
            continue
        document = parsed(line)
        if document is not None:
            documents.append((begin, document))
        elif index == len(lines) - 1:
            return _without_calls(documents, rules, end=begin, length=len(data), why="its last line is not whole")
        else:
            return Judgement(State.BROKEN, begin, "a line in its middle is not whole")
    if not documents:
        return Judgement(State.BROKEN, 0, "there is nothing in it")
    return _without_calls(documents, rules, end=len(data), length=len(data), newline=not data.endswith(b"\n"))


def _without_calls(
    documents: Sequence[tuple[int, Any]],
    rules: RecordRules,
    *,
    end: int,
    length: int,
    why: str = "",
    newline: bool = False,
) -> Judgement:
    """Back to where every call has its answer: what is cut off may have held the answer of an earlier one."""
    found = [
        (begin, set(_ids(document, rules.calls)), set(_ids(document, rules.answers))) for begin, document in documents
    ]
    keep = end
    while True:
        answered = {name for begin, _, answers in found if begin < keep for name in answers}
        loose = [begin for begin, calls, _ in found if begin < keep and calls - answered]
        if not loose:
            break
        keep, why = loose[0], "a call in it was never answered"
        if not rules.cut:
            return Judgement(State.BROKEN, keep, why)
    if keep == 0 or not any(begin < keep for begin, _, _ in found):
        return Judgement(State.BROKEN, 0, why or "there is nothing in it")
    missing = newline and keep == length
    if keep < length or missing:
        return Judgement(State.CUT, keep, why or "its last line has no end", missing)
    return Judgement(State.SOUND, keep)


def _lines(data: bytes) -> list[tuple[int, bytes]]:
    lines, begin = [], 0
    while begin < len(data):
        end = data.find(b"\n", begin)
        end = len(data) if end < 0 else end + 1
        lines.append((begin, data[begin:end]))
        begin = end
    return lines


def parsed(line: bytes) -> Any:
    """The object of a line of a record; None for what is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _ids(document: Any, paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        yield from _at(document, path)


def _at(value: Any, path: Path) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _at(each, path)
    elif not path:
        if isinstance(value, str):
            yield value
    elif isinstance(value, dict) and path[0].key in value:
        step, inner = path[0], value[path[0].key]
        if step.field:
            entries = inner if isinstance(inner, list) else [inner]
            inner = [each for each in entries if isinstance(each, dict) and each.get(step.field) == step.value]
        yield from _at(inner, path[1:])
